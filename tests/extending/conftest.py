from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from extended_package import ExtendedPackage

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def extended(tmp_path: Path) -> ExtendedPackage:
    return ExtendedPackage(tmp_path)
