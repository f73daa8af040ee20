"""Model families as data: names of tensors, config keys, shapes, and how parts are cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.system.registry import load_on_use

if TYPE_CHECKING:
    from weightctl.families.checkpoint import RecognizedModel
    from weightctl.families.recognition import recognize

__all__ = ["FAMILIES", "RecognizedModel", "recognize"]

# A family is a line here, its name and the `Family`, and two modules: `families/llama.py` has the
# names of its tensors, the keys of its config and the config's class, `nn/models/llama.py` the
# `Network` that runs it. Nothing else knows of it.
FAMILIES: dict[str, str] = {
    "llama": "weightctl.families.llama:FAMILY",
    "bert": "weightctl.families.bert:FAMILY",
    "gpt2": "weightctl.families.gpt2:FAMILY",
    "gemma2": "weightctl.families.gemma2:FAMILY",
    "gemma3": "weightctl.families.gemma3:FAMILY",
    "qwen2": "weightctl.families.qwen2:FAMILY",
    "qwen3": "weightctl.families.qwen3:FAMILY",
    "phi3": "weightctl.families.phi3:FAMILY",
    "mixtral": "weightctl.families.mixtral:FAMILY",
    "qwen3moe": "weightctl.families.qwen3moe:FAMILY",
}

_NAMES = {
    "RecognizedModel": "weightctl.families.checkpoint:RecognizedModel",
    "recognize": "weightctl.families.recognition:recognize",
}

__getattr__ = load_on_use(__name__, _NAMES)


def __dir__() -> list[str]:
    return sorted(__all__)
