"""Packages that a test installs, from which this process imports for a while."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from weightctl.families.added import add_installed_families
from weightctl.families.index import FAMILIES
from weightctl.families.towers import TOWERS
from weightctl.formats import added_formats
from weightctl.plan.scheme_names import list_written
from weightctl.schemes import added_schemes
from weightctl.schemes.matching import _find_ways
from weightctl.storage.location import _STORES, added_storages

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

# What keeps the parts of packages.
CACHES = (
    added_formats, added_schemes, added_storages, add_installed_families, list_written, _find_ways,
)  # fmt: skip


def install(folder: Path, module: str, code: str, *entries: str) -> None:
    """Put a package with a module and entry points in a folder, as pip does."""
    (folder / f"{module}.py").write_text(code)
    described = folder / f"{module}-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text("\n".join(entries) + "\n")


@contextmanager
def importing_from(folder: Path) -> Generator[None, None, None]:
    """Import also from a folder, in which packages may be installed later."""
    families, towers = dict(FAMILIES), dict(TOWERS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        for cache in CACHES:
            cache.cache_clear()
        try:
            yield
        finally:
            for table, before in ((FAMILIES, families), (TOWERS, towers)):
                table.clear()
                table.update(before)
            _STORES.clear()
            for cache in CACHES:
                cache.cache_clear()
            for path in folder.glob("*.py"):
                sys.modules.pop(path.stem, None)
