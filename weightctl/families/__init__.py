"""Model families as data: tensor names, config keys, shapes, and how ranks divide the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.system.registry import load_on_use

if TYPE_CHECKING:
    from weightctl.families.added import add_family
    from weightctl.families.checkpoint import RecognizedModel
    from weightctl.families.index import FAMILIES, FamilyLine
    from weightctl.families.recognition import recognize

__all__ = ["FAMILIES", "FamilyLine", "RecognizedModel", "add_family", "recognize"]

_NAMES = {
    "add_family": "weightctl.families.added:add_family",
    "FAMILIES": "weightctl.families.index:FAMILIES",
    "FamilyLine": "weightctl.families.index:FamilyLine",
    "RecognizedModel": "weightctl.families.checkpoint:RecognizedModel",
    "recognize": "weightctl.families.recognition:recognize",
}

__getattr__ = load_on_use(__name__, _NAMES)


def __dir__() -> list[str]:
    return sorted(__all__)
