"""Families and towers that users and installed packages add, by files such as weightctl's own."""

from __future__ import annotations

from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weightctl.errors import ConversionError, FormatError, WeightctlError
from weightctl.families.family import Family
from weightctl.families.family_files import read_family
from weightctl.families.file_tables import open_table
from weightctl.families.index import FAMILIES, FamilyLine
from weightctl.families.towers import TOWERS, TowerLine
from weightctl.families.towers.tower_files import read_tower
from weightctl.system.registry import load_entry_points

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping

ENTRY_POINTS = "weightctl.families"
# An entry that files of towers have, and files of families do not.
_TOWER_ENTRY = "texts"


def add_family(path: str | Path) -> str:
    """Add the family or the tower that a file describes to this process, and return its name.

    The name is that of the file. A file that is added again is read again. Raises `FormatError` if
    the file is invalid, or if weightctl has a family or a tower of the name or of a `model_type`.
    """
    place = Path(path).resolve()
    if _TOWER_ENTRY in open_table(path):
        tower = read_tower(path)
        types = tuple(tower.family.model_types)
        _refuse_known(path, place.stem, types, TOWERS, "tower")
        TOWERS[place.stem] = TowerLine(place, types, tower)
        return place.stem
    return _add(str(place), read_family(path, lambda base: FAMILIES[base].load()))


def _add(source: str, family: Family) -> str:
    types = tuple(family.model_types)
    _refuse_known(source, family.name, types, FAMILIES, "family")
    FAMILIES[family.name] = FamilyLine(source, family.gguf_name, types, family)
    return family.name


def _refuse_known(
    path: str | Path,
    own: str,
    types: Iterable[str],
    known: Mapping[str, FamilyLine | TowerLine],
    called: str,
) -> None:
    """Raise `FormatError` if something of another file has the name or one of the types."""
    for name, line in known.items():
        shared = [each for each in line.model_types if each in types]
        if Path(line.source) != Path(path).resolve() and (name == own or shared):
            what = f"the model_type `{shared[0]}`" if shared else f"the name `{name}`"
            raise FormatError(
                str(path),
                None,
                f"{what} belongs to the {called} {name}, which weightctl has already",
                hint="use another name, or leave out --family",
            )


@contextmanager
def with_families(paths: Iterable[str]) -> Generator[None, None, None]:
    """Have the families and towers of some files while a context lasts."""
    families, towers, added = dict(FAMILIES), dict(TOWERS), list[str]()
    try:
        for path in paths:
            added.append(add_family(path))
        yield
    finally:
        _restore(FAMILIES, families, added)
        _restore(TOWERS, towers, added)


def _restore(table: dict[str, Any], before: Mapping[str, Any], names: Iterable[str]) -> None:
    """Restore the lines of names; families of installed packages, which are added once, stay."""
    for name in names:
        if name in before:
            table[name] = before[name]
        else:
            table.pop(name, None)


@cache
def add_installed_families() -> bool:
    """Add the families of installed packages; return whether there are any.

    An entry point in the group `weightctl.families` is the path of a file, or a `Family`. Raises
    `ConversionError` for other objects, and for families that cannot be added.
    """
    found = load_entry_points(ENTRY_POINTS)
    for each in found:
        try:
            if isinstance(each.value, Family):
                _add(each.place, each.value)
            elif isinstance(each.value, str | Path):
                add_family(each.value)
            else:
                form = "neither the path of a file nor a `weightctl.families.family.Family`"
                raise ConversionError(f"it is {form}")
        except (WeightctlError, OSError) as error:
            raise ConversionError(f"{each.place}: {error}", hint=each.remedy) from error
    return bool(found)
