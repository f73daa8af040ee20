"""The tree of weights and the types it consists of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.system.registry import load_on_use

if TYPE_CHECKING:
    from weightctl.weights.buffer import Buffer
    from weightctl.weights.data import WeightData
    from weightctl.weights.from_arrays import as_checkpoint
    from weightctl.weights.info import Extent, Header, Leaf, TensorInfo
    from weightctl.weights.protocol import Weights
    from weightctl.weights.tree import Checkpoint

__all__ = [
    "Buffer",
    "Checkpoint",
    "Extent",
    "Header",
    "Leaf",
    "TensorInfo",
    "WeightData",
    "Weights",
    "as_checkpoint",
]

# Loaded on first use, because a listing needs only some of them.
_NAMES = {
    "Buffer": "weightctl.weights.buffer:Buffer",
    "Extent": "weightctl.weights.info:Extent",
    "Header": "weightctl.weights.info:Header",
    "Leaf": "weightctl.weights.info:Leaf",
    "TensorInfo": "weightctl.weights.info:TensorInfo",
    "WeightData": "weightctl.weights.data:WeightData",
    "Checkpoint": "weightctl.weights.tree:Checkpoint",
    "Weights": "weightctl.weights.protocol:Weights",
    "as_checkpoint": "weightctl.weights.from_arrays:as_checkpoint",
}

__getattr__ = load_on_use(__name__, _NAMES)


def __dir__() -> list[str]:
    return sorted(__all__)
