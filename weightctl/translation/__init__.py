"""A model in the other dialect: llama.cpp's GGUF, or Hugging Face's directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.registry import loaded_on_use

if TYPE_CHECKING:
    from weightctl.translation.models import Translation, translate
    from weightctl.translation.plans import Names, plan_of

__all__ = ["Names", "Translation", "plan_of", "translate"]

_NAMES = {
    "Names": "weightctl.translation.plans:Names",
    "Translation": "weightctl.translation.models:Translation",
    "plan_of": "weightctl.translation.plans:plan_of",
    "translate": "weightctl.translation.models:translate",
}

__getattr__ = loaded_on_use(__name__, _NAMES)


def __dir__() -> list[str]:
    return sorted(__all__)
