"""Scanning of files in any container: the pickles that programs load, and other code."""

from __future__ import annotations

from weightctl.formats.scanning.found import (
    AllowList,
    FoundCode,
    Scanned,
    Severity,
    unread,
)
from weightctl.formats.scanning.scan import scan_file

__all__ = [
    "AllowList",
    "FoundCode",
    "Scanned",
    "Severity",
    "scan_file",
    "unread",
]
