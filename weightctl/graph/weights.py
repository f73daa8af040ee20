"""The documented place of the tree of weights and of their data."""

from __future__ import annotations

from weightctl.weights.data import WeightData
from weightctl.weights.protocol import Weights

__all__ = ["WeightData", "Weights"]
