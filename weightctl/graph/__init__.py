"""Graphs of operations on tensors, whose shapes are checked as they are built.

An engine runs them; here nothing is computed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.registry import loaded_on_use

if TYPE_CHECKING:
    from weightctl.device import DeviceRef
    from weightctl.graph import ops
    from weightctl.graph.graph import Graph, Node
    from weightctl.graph.sharding import ShardingStrategy
    from weightctl.graph.types import TensorType
    from weightctl.graph.value import TensorValue, Value
    from weightctl.graph.weight import Weight
    from weightctl.shape import Dim, Shape

__all__ = [
    "DeviceRef",
    "Dim",
    "Graph",
    "Node",
    "Shape",
    "ShardingStrategy",
    "TensorType",
    "TensorValue",
    "Value",
    "Weight",
    "ops",
]

_NAMES = {
    "DeviceRef": "weightctl.device:DeviceRef",
    "Dim": "weightctl.dim:Dim",
    "Graph": "weightctl.graph.graph:Graph",
    "Node": "weightctl.graph.graph:Node",
    "Shape": "weightctl.shape:Shape",
    "ShardingStrategy": "weightctl.graph.sharding:ShardingStrategy",
    "TensorType": "weightctl.graph.types:TensorType",
    "TensorValue": "weightctl.graph.value:TensorValue",
    "Value": "weightctl.graph.value:Value",
    "Weight": "weightctl.graph.weight:Weight",
    "ops": "weightctl.graph.ops",
}

__getattr__ = loaded_on_use(__name__, _NAMES)


def __dir__() -> list[str]:
    return sorted(__all__)
