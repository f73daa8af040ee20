"""Importance matrices: what each column of each matrix is multiplied with when a model runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.system.registry import load_on_use

if TYPE_CHECKING:
    from weightctl.calibrate.measuring import MeasuredImportance, make_imatrix

__all__ = ["MeasuredImportance", "make_imatrix"]

_NAMES = {
    "MeasuredImportance": "weightctl.calibrate.measuring:MeasuredImportance",
    "make_imatrix": "weightctl.calibrate.measuring:make_imatrix",
}

__getattr__ = load_on_use(__name__, _NAMES)


def __dir__() -> list[str]:
    return sorted(__all__)
