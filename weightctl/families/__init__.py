"""What models call their tensors, and what of that decides how they are stored and run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.system.registry import load_on_use

if TYPE_CHECKING:
    from weightctl.families.checkpoint import RecognizedModel
    from weightctl.families.recognition import recognize

__all__ = ["ARCHS", "RecognizedModel", "recognize"]

# A family is a line here, its name and the `Arch`, and two modules: `families/llama.py` has the
# names of its tensors, the keys of its config and the config's class, `nn/models/llama.py` the
# `Network` that runs it. Nothing else knows of it.
ARCHS: dict[str, str] = {
    "llama": "weightctl.families.llama:ARCH",
    "bert": "weightctl.families.bert:ARCH",
    "gpt2": "weightctl.families.gpt2:ARCH",
    "gemma2": "weightctl.families.gemma2:ARCH",
    "gemma3": "weightctl.families.gemma3:ARCH",
    "qwen2": "weightctl.families.qwen2:ARCH",
    "qwen3": "weightctl.families.qwen3:ARCH",
    "phi3": "weightctl.families.phi3:ARCH",
    "mixtral": "weightctl.families.mixtral:ARCH",
    "qwen3moe": "weightctl.families.qwen3moe:ARCH",
}

_NAMES = {
    "RecognizedModel": "weightctl.families.checkpoint:RecognizedModel",
    "recognize": "weightctl.families.recognition:recognize",
}

__getattr__ = load_on_use(__name__, _NAMES)


def __dir__() -> list[str]:
    return sorted(__all__)
