"""The tree of weights and what it is made of."""

from weightctl.weights.buffer import Buffer
from weightctl.weights.data import WeightData
from weightctl.weights.info import Extent, Header, TensorInfo
from weightctl.weights.tree import Weights

__all__ = ["Buffer", "Extent", "Header", "TensorInfo", "WeightData", "Weights"]
