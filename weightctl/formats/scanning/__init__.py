"""Every pickle in a file that some program would load, in whatever container, and what it names."""

from __future__ import annotations

from weightctl.formats.scanning.found import AllowList, Scanned, Severity, read_allow_file, unread
from weightctl.formats.scanning.scan import scan_file

__all__ = ["AllowList", "Scanned", "Severity", "read_allow_file", "scan_file", "unread"]
