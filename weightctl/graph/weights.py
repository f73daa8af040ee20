"""The documented import path of `Weights` and `WeightData`."""

from __future__ import annotations

from weightctl.weights.data import WeightData
from weightctl.weights.protocol import Weights

__all__ = ["WeightData", "Weights"]
