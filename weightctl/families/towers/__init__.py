"""Towers as data: the encoders beside a text model, which GGUF stores in a file of their own.

llama.cpp calls this file `mmproj`. In Hugging Face's convention, the tensors of a tower are in the
same checkpoint as those of the text model.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from weightctl.families.index import TABLES, list_types

if TYPE_CHECKING:
    from pathlib import Path

    from weightctl.families.towers.tower import Tower

__all__ = ["TOWERS", "TOWER_TABLES", "TowerLine", "find_tower"]

# The folder with the files of towers.
TOWER_TABLES = TABLES / "towers"


class TowerLine(NamedTuple):
    """An entry of the index of towers, by which only the file that is needed is read.

    - `source`: the file that describes the tower.
    - `model_types`: the values of `model_type` in the config.json of whole multimodal models.
    - `tower`: the tower itself, if its file was added (`families/added.py`).
    """

    source: Path
    model_types: tuple[str, ...]
    tower: Tower | None = None

    def load(self) -> Tower:
        return _read_table(self.source) if self.tower is None else self.tower


@cache
def _read_table(path: Path) -> Tower:
    from weightctl.families.towers.tower_files import read_tower

    return read_tower(path)


# By the value of `clip.projector_type` in GGUF, which is the name of the file.
TOWERS: dict[str, TowerLine] = {
    path.stem: TowerLine(path, list_types(path.read_text("utf-8")))
    for path in sorted(TOWER_TABLES.glob("*.toml"))
}


def find_tower(model_type: object) -> Tower | None:
    """Return the tower of a multimodal model by its `model_type`, None if it is not supported."""
    return next((each.load() for each in TOWERS.values() if model_type in each.model_types), None)
