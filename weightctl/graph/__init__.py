"""Graphs of operations on tensors, whose shapes are checked as they are built.

This package computes nothing; `weightctl.engine` runs graphs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.system.registry import load_on_use

if TYPE_CHECKING:
    from weightctl.device import DeviceRef
    from weightctl.dtype import DType, QuantizationEncoding
    from weightctl.graph import ops
    from weightctl.graph.graph import Graph, GraphNode, TensorValue, Value, Weight
    from weightctl.graph.sharding import ShardingStrategy
    from weightctl.graph.types import TensorType, Type
    from weightctl.shape import Dim, Shape
    from weightctl.weights.data import WeightData
    from weightctl.weights.protocol import Weights

__all__ = [
    "DType",
    "DeviceRef",
    "Dim",
    "Graph",
    "GraphNode",
    "QuantizationEncoding",
    "Shape",
    "ShardingStrategy",
    "TensorType",
    "TensorValue",
    "Type",
    "Value",
    "Weight",
    "WeightData",
    "Weights",
    "ops",
]

_NAMES = {
    "DType": "weightctl.dtype:DType",
    "DeviceRef": "weightctl.device:DeviceRef",
    "Dim": "weightctl.dim:Dim",
    "Graph": "weightctl.graph.graph:Graph",
    "GraphNode": "weightctl.graph.graph:GraphNode",
    "QuantizationEncoding": "weightctl.dtype:QuantizationEncoding",
    "Shape": "weightctl.shape:Shape",
    "ShardingStrategy": "weightctl.graph.sharding:ShardingStrategy",
    "TensorType": "weightctl.graph.types:TensorType",
    "TensorValue": "weightctl.graph.graph:TensorValue",
    "Type": "weightctl.graph.types:Type",
    "Value": "weightctl.graph.graph:Value",
    "Weight": "weightctl.graph.graph:Weight",
    "WeightData": "weightctl.weights.data:WeightData",
    "Weights": "weightctl.weights.protocol:Weights",
    "ops": "weightctl.graph.ops",
}

__getattr__ = load_on_use(__name__, _NAMES)


def __dir__() -> list[str]:
    return sorted(__all__)
