"""Towers as data: the encoders beside a text model, which GGUF stores in a file of their own.

llama.cpp calls this file `mmproj`. In Hugging Face's convention, the tensors of a tower are in the
same checkpoint as those of the text model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

from weightctl.system.registry import load

if TYPE_CHECKING:
    from weightctl.families.towers.tower import Tower

__all__ = ["TOWERS", "TowerLine", "find_tower"]


class TowerLine(NamedTuple):
    """An entry of the table of towers, by which only the tower that is needed is imported.

    - `module`: the Python module whose `TOWER` is the `Tower`.
    - `model_types`: the values of `model_type` in the config.json of whole multimodal models.
    """

    module: str
    model_types: tuple[str, ...]

    def load(self) -> Tower:
        """Import the tower."""
        return cast("Tower", load(f"{self.module}:TOWER"))


# By the value of `clip.projector_type` in GGUF. To add a tower, add a line here and a module:
# `families/towers/gemma3.py` lists the names of its tensors and the keys of its config.
TOWERS: dict[str, TowerLine] = {
    "gemma3": TowerLine("weightctl.families.towers.gemma3", ("gemma3",)),
    "pixtral": TowerLine("weightctl.families.towers.pixtral", ("mistral3", "llava")),
    "idefics3": TowerLine("weightctl.families.towers.idefics3", ("idefics3", "smolvlm")),
    "llama4": TowerLine("weightctl.families.towers.llama4", ("llama4",)),
    "gemma4v": TowerLine("weightctl.families.towers.gemma4v", ("gemma4",)),
    "internvl": TowerLine("weightctl.families.towers.internvl", ("internvl",)),
    "qwen2a": TowerLine("weightctl.families.towers.qwen2a", ("qwen2_audio",)),
    "voxtral": TowerLine("weightctl.families.towers.voxtral", ("voxtral",)),
    "musicflamingo": TowerLine("weightctl.families.towers.musicflamingo", ("audioflamingo3",)),
    "qwen2vl_merger": TowerLine("weightctl.families.towers.qwen2vl", ("qwen2_vl",)),
    "qwen2.5vl_merger": TowerLine("weightctl.families.towers.qwen2_5vl", ("qwen2_5_vl",)),
    "qwen3vl_merger": TowerLine(
        "weightctl.families.towers.qwen3vl",
        ("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"),
    ),
}


def find_tower(model_type: object) -> Tower | None:
    """Return the tower of a multimodal model by its `model_type`, None if it is not supported."""
    return next((each.load() for each in TOWERS.values() if model_type in each.model_types), None)
