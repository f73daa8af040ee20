"""Families that users and installed packages add, by files such as those in `families/tables/`."""

from __future__ import annotations

from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from weightctl.errors import FormatError
from weightctl.families import FAMILIES, FamilyLine
from weightctl.families.family_files import read_family

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

ENTRY_POINTS = "weightctl.families"


def add_family(path: str | Path) -> str:
    """Add the family that a file describes to those of this process, and return its name.

    The name is that of the file. A file that is added again is read again. Raises `FormatError` if
    the file is invalid, or if weightctl has a family of the name or of a `model_type`.
    """
    place = str(Path(path).resolve())
    family = read_family(path, lambda base: FAMILIES[base].load())
    for name, line in FAMILIES.items():
        if line.source == place:
            continue
        shared = [each for each in line.model_types if each in family.model_types]
        if name == family.name or shared:
            what = f"the model_type `{shared[0]}`" if shared else f"the name `{name}`"
            raise FormatError(
                str(path),
                None,
                f"{what} belongs to the family {name}, which weightctl has already",
                hint="use another name, or leave out --family",
            )
    FAMILIES[family.name] = FamilyLine(place, family.gguf_name, tuple(family.model_types), family)
    return family.name


@contextmanager
def with_families(paths: Iterable[str]) -> Generator[None, None, None]:
    """Have the families of some files while a context lasts."""
    before, added = dict(FAMILIES), list[str]()
    try:
        for path in paths:
            added.append(add_family(path))
        yield
    finally:
        # Families of installed packages, which are added once, stay.
        for name in added:
            if name in before:
                FAMILIES[name] = before[name]
            else:
                del FAMILIES[name]


@cache
def add_installed_families() -> bool:
    """Add the families of installed packages; return whether there are any.

    An entry point in the group `weightctl.families` is the path of a file.
    """
    from importlib.metadata import entry_points  # it takes 10 ms

    found = entry_points(group=ENTRY_POINTS)
    for each in found:
        add_family(each.load())
    return bool(found)
