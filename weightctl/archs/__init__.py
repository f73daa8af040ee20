"""What models call their tensors, and what of that decides how they are stored and run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.registry import loaded_on_use

if TYPE_CHECKING:
    from weightctl.archs.checkpoint import RecognizedModel
    from weightctl.archs.network import Network
    from weightctl.archs.recognition import recognize

__all__ = ["ARCHS", "Network", "RecognizedModel", "recognize"]

# A family is a line here, its name and the `Arch`, and two modules: `llama.py` has the names of its
# tensors and the keys of its config, `llama_model.py` the config's class and the `Network` that
# runs it. Nothing else knows of it.
ARCHS: dict[str, str] = {
    "llama": "weightctl.archs.llama:ARCH",
    "bert": "weightctl.archs.bert:ARCH",
    "gpt2": "weightctl.archs.gpt2:ARCH",
    "gemma2": "weightctl.archs.gemma2:ARCH",
    "gemma3": "weightctl.archs.gemma3:ARCH",
    "qwen2": "weightctl.archs.qwen2:ARCH",
    "qwen3": "weightctl.archs.qwen3:ARCH",
    "phi3": "weightctl.archs.phi3:ARCH",
    "mixtral": "weightctl.archs.mixtral:ARCH",
    "qwen3moe": "weightctl.archs.qwen3moe:ARCH",
}

_NAMES = {
    "RecognizedModel": "weightctl.archs.checkpoint:RecognizedModel",
    "Network": "weightctl.archs.network:Network",
    "recognize": "weightctl.archs.recognition:recognize",
}

__getattr__ = loaded_on_use(__name__, _NAMES)


def __dir__() -> list[str]:
    return sorted(__all__)
