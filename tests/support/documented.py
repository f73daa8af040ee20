"""The names, signatures and import lines in the five specification documents.

They are copied from the documents themselves, so that a mistake in our page is found. Annotations
are omitted, and a signature is None if the document does not state it.
"""

from __future__ import annotations

__all__ = ["IMPORTS", "PATHS", "SIGNATURES"]

_DEVICE = "device=cpu:0"
_LOAD = "state_dict, *, override_quantization_encoding=False"

# Headings of the documents, in which `Weight` and `Weights` are classes of `*args, **kwargs`.
SIGNATURES: dict[str, str | None] = {
    # 000
    "Weight(value)": None,
    "Weight.align": None,
    "Weight.device": None,
    "Weight.dtype": None,
    "Weight.original_dtype_and_shape": None,
    "Weight.quantization_encoding": None,
    "Weight.shape": None,
    "Weight.shard": "devices",
    "Weight.shard_idx": None,
    "Weight.sharding_strategy": None,
    # 001
    "Weights.allocate": f"dtype=None, shape=None, quantization_encoding=None, {_DEVICE}",
    "Weights.allocated_weights": None,
    "Weights.data": "",
    "Weights.exists": "",
    "Weights.items": "",
    "Weights.name": None,
    # 002
    "WeightData": "data, name, dtype, shape, quantization_encoding=None",
    "WeightData.astype": "dtype",
    "WeightData.data": None,
    "WeightData.dtype": None,
    "WeightData.from_numpy": "arr, name",
    "WeightData.name": None,
    "WeightData.quantization_encoding": None,
    "WeightData.shape": None,
    "WeightData.to_buffer": "",
    # 003
    "Module.build_subgraph": "name, input_types, weight_prefix=''",
    "Module.layer_weights": None,
    "Module.load_state_dict": f"{_LOAD}, weight_alignment=None, strict=True",
    "Module.raw_state_dict": "",
    "Module.set_shared_weight": "name, weight",
    "Module.state_dict": "auto_initialize=True",
    "Module.sublayers": None,
    # 004
    "LayerList": "layers",
    "LayerList.append": "layer",
    "LayerList.extend": "layer",
    "LayerList.insert": "i, layer",
    "LayerList.sublayers": None,
    "LayerV2.layer_weights": None,
    "LayerV2.load_state_dict": _LOAD,
    "LayerV2.raw_state_dict": "",
    "LayerV2.set_shared_weight": "name, weight",
    "LayerV2.state_dict": "auto_initialize=True",
    "LayerV2.sublayers": None,
    "LayerV2.to": "*devices, sharding_strategy=None",
    "add_layer_hook": "fn",
    "clear_hooks": "",
    "recursive_named_layers": "parent, prefix=''",
    # Names in examples and sentences that have no heading.
    "Graph(name)": "name",
    "Graph.weights": "",
    "Graph.add_weight": "weight",
    "Graph.output": None,
    "TensorValue(value)": "value",
    "TensorValue.T": None,
    "TensorValue.device": None,
    "TensorValue.dtype": None,
    "TensorValue.print": None,
    "TensorValue.shape": None,
    "TensorValue.tensor": None,
    "TensorValue.type": None,
    "ops.call": None,
    "ops.constant": None,
    "ops.silu": None,
    "DeviceRef.CPU": None,
    "DeviceRef.GPU": None,
    "weights.layers": None,
    "weights[0]": None,
}

# Paths in headings, in annotations and in imports of examples, without the package.
PATHS = (
    "graph.Weight",
    "graph.weights.Weights",
    "graph.weights.WeightData",
    "nn.Module",
    "pipelines.nn.layer.Layer",
    "pipelines.nn.layer.LayerList",
    "pipelines.nn.layer.LayerV2",
    "graph.weight.Weight",
    "driver.Tensor",
    "driver.tensor.DLPackArray",
    "dtype.DType",
    "graph.Graph",
    "graph.ops",
    "graph.DeviceRef",
    # Types of parameters and results that have no path in the documents.
    "graph.TensorValue",
    "graph.Type",
    "graph.Dim",
    "graph.Shape",
    "graph.ShardingStrategy",
    "graph.quantization.QuantizationEncoding",
    "driver.Buffer",
)

# As in the documents, except for the name of the package.
IMPORTS = (
    "from weightctl.dtype import DType\nfrom weightctl.graph import Graph, ops",
    "from weightctl.graph import Graph\nfrom weightctl.dtype import DType",
    """from weightctl import nn
from weightctl.dtype import DType
from weightctl.graph import Weight, ops, DeviceRef""",
)
