"""The index of model families, which follows from the files in `families/tables/`."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from weightctl.system.registry import load

if TYPE_CHECKING:
    from weightctl.families.family import Family

# The folder with the files of families.
TABLES = Path(__file__).parent / "tables"
# What the index has of a file: the architecture, which precedes all tables, the names of types, and
# those of multimodal models. To parse whole files would take ten times as long.
_ARCHITECTURE = re.compile(r'\ngguf = "(.+)"')
_TYPE = re.compile(r"\n\[types\.([^.\]]+)\]")
_MULTIMODAL = re.compile(r"\n\[multimodal\]([^\[]+)")
_ENTRY = re.compile(r"\n(\w+) = ")


class FamilyLine(NamedTuple):
    """An entry of the index, by which only the family that is needed is read or imported.

    - `source`: the file in `families/tables/` that describes the family, or the Python module whose
      `FAMILY` it is.
    - `gguf`: the value of GGUF's `general.architecture`, which several families can share.
    - `model_types`: the values of `model_type` in config.json, which several families can share.
    - `family`: the family itself, if its file was added (`families/added.py`).
    """

    source: str
    gguf: str
    model_types: tuple[str, ...]
    family: Family | None = None

    def load(self) -> Family:
        if self.family is not None:
            return self.family
        if self.source.endswith(".toml"):
            return _read_table(self.source)
        return cast("Family", load(f"{self.source}:FAMILY"))


@cache
def _read_table(name: str) -> Family:
    from weightctl.families.family_files import read_family

    return read_family(TABLES / name, lambda base: FAMILIES[base].load())


# The families that are mostly functions. All others are files.
_MODULES = {
    line.source.rpartition(".")[2]: line
    for line in (
        FamilyLine("weightctl.families.apertus", "apertus", ("apertus",)),
        FamilyLine("weightctl.families.deepseek_v4", "deepseek4", ("deepseek_v4",)),
        FamilyLine("weightctl.families.falcon", "falcon", ("falcon",)),
        FamilyLine("weightctl.families.falcon_h1", "falcon-h1", ("falcon_h1",)),
        FamilyLine("weightctl.families.gemma3n", "gemma3n", ("gemma3n_text", "gemma3n")),
        FamilyLine(
            "weightctl.families.gemma4",
            "gemma4",
            ("gemma4_text", "gemma4", "gemma4_unified_text", "gemma4_unified"),
        ),
        FamilyLine("weightctl.families.kimi_linear", "kimi-linear", ("kimi_linear",)),
        FamilyLine("weightctl.families.mimo2", "mimo2", ("mimo_v2_flash",)),
        FamilyLine("weightctl.families.nemotron_h", "nemotron_h", ("nemotron_h",)),
        FamilyLine("weightctl.families.nemotron_h_moe", "nemotron_h_moe", ("nemotron_h",)),
        FamilyLine("weightctl.families.plamo2", "plamo2", ("plamo2",)),
        FamilyLine("weightctl.families.rwkv6", "rwkv6", ("rwkv6",)),
        FamilyLine("weightctl.families.rwkv7", "rwkv7", ("rwkv7",)),
        FamilyLine("weightctl.families.t5", "t5", ("t5",)),
    )
}


def _read_line(path: Path) -> FamilyLine:
    text = path.read_text("utf-8")
    stated = _ARCHITECTURE.search(text, 0, text.index("\n["))
    multimodal = _MULTIMODAL.search(text)
    types = (*list_types(text), *(_ENTRY.findall(multimodal[1]) if multimodal else ()))
    return FamilyLine(path.name, stated[1] if stated else path.stem, types)


def list_types(text: str) -> tuple[str, ...]:
    """Return the names of the types that a file describes."""
    return tuple(_TYPE.findall(text))


# The families in the order of their names. Nothing depends on the order: if families share an
# architecture or a `model_type`, `Family.is_of` and `Family.is_of_config` decide between them.
FAMILIES: dict[str, FamilyLine] = dict(
    sorted([*_MODULES.items(), *((path.stem, _read_line(path)) for path in TABLES.glob("*.toml"))])
)


# Draft models, which are not models of their own.
DRAFTS = {"eagle3": FamilyLine("weightctl.families.eagle3", "eagle3", ("llama",))}


def is_added(family: Family) -> bool:
    """Whether a family is that of a user's file or of an installed package."""
    return family.name in FAMILIES and FAMILIES[family.name].family is family
