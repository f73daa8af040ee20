"""Translation of models between the naming conventions of GGUF and Hugging Face."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.system.registry import load_on_use

if TYPE_CHECKING:
    from weightctl.plan.choices import Names
    from weightctl.translate.models import Translation, translate
    from weightctl.translate.plans import plan_of

__all__ = ["Names", "Translation", "plan_of", "translate"]

_NAMES = {
    "Names": "weightctl.plan.choices:Names",
    "Translation": "weightctl.translate.models:Translation",
    "plan_of": "weightctl.translate.plans:plan_of",
    "translate": "weightctl.translate.models:translate",
}

__getattr__ = load_on_use(__name__, _NAMES)


def __dir__() -> list[str]:
    return sorted(__all__)
