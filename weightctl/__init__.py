"""Open, list, compare, convert, shard and verify model checkpoints as one tree of weights.

The names that docs/api.md lists are public. All others are private, also without an underscore.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.system import __version__ as __version__
from weightctl.system.registry import load_on_use

if TYPE_CHECKING:
    from weightctl import engine, graph, nn
    from weightctl.calibrate.measuring import make_imatrix as imatrix
    from weightctl.check import check
    from weightctl.device import DeviceRef
    from weightctl.dtype import DType, QuantizationEncoding
    from weightctl.editing.edit import edit
    from weightctl.engine.session import InferenceSession
    from weightctl.errors import WeightctlError
    from weightctl.families.recognition import recognize
    from weightctl.formats.open.opening import open_weights
    from weightctl.graph import ops
    from weightctl.graph.graph import Graph, Weight
    from weightctl.graph.types import TensorType
    from weightctl.inspection.diff import diff
    from weightctl.inspection.scan import scan
    from weightctl.inspection.statistics import stat
    from weightctl.nn.module import Module
    from weightctl.plan.plan import Plan
    from weightctl.shape import Shape
    from weightctl.verify import verify
    from weightctl.weights.buffer import Buffer
    from weightctl.weights.data import WeightData
    from weightctl.weights.protocol import Weights
    from weightctl.weights.tree import Checkpoint
    from weightctl.write.convert import convert, merge
    from weightctl.write.extract import extract
    from weightctl.write.gathering import gather
    from weightctl.write.in_memory import to_directory, to_gguf
    from weightctl.write.save import save
    from weightctl.write.shard import shard

__all__ = [
    "Buffer",
    "Checkpoint",
    "DType",
    "DeviceRef",
    "Graph",
    "InferenceSession",
    "Module",
    "Plan",
    "QuantizationEncoding",
    "Shape",
    "TensorType",
    "Weight",
    "WeightData",
    "WeightctlError",
    "Weights",
    "check",
    "convert",
    "diff",
    "edit",
    "engine",
    "extract",
    "gather",
    "graph",
    "imatrix",
    "merge",
    "nn",
    "open_weights",
    "ops",
    "recognize",
    "save",
    "scan",
    "shard",
    "stat",
    "to_directory",
    "to_gguf",
    "verify",
]

# Loaded on first use, so that the command line starts quickly.
_NAMES = {
    "Buffer": "weightctl.weights.buffer:Buffer",
    "DType": "weightctl.dtype:DType",
    "DeviceRef": "weightctl.device:DeviceRef",
    "Graph": "weightctl.graph.graph:Graph",
    "InferenceSession": "weightctl.engine.session:InferenceSession",
    "Module": "weightctl.nn.module:Module",
    "Plan": "weightctl.plan.plan:Plan",
    "QuantizationEncoding": "weightctl.dtype:QuantizationEncoding",
    "Shape": "weightctl.shape:Shape",
    "TensorType": "weightctl.graph.types:TensorType",
    "Weight": "weightctl.graph.graph:Weight",
    "WeightData": "weightctl.weights.data:WeightData",
    "WeightctlError": "weightctl.errors:WeightctlError",
    "Checkpoint": "weightctl.weights.tree:Checkpoint",
    "Weights": "weightctl.weights.protocol:Weights",
    "check": "weightctl.check",
    "convert": "weightctl.write.convert:convert",
    "diff": "weightctl.inspection.diff:diff",
    "driver": "weightctl.driver",
    "edit": "weightctl.editing.edit:edit",
    "engine": "weightctl.engine",
    "extract": "weightctl.write.extract:extract",
    "gather": "weightctl.write.gathering:gather",
    "graph": "weightctl.graph",
    "imatrix": "weightctl.calibrate.measuring:make_imatrix",
    "merge": "weightctl.write.convert:merge",
    "nn": "weightctl.nn",
    "open_weights": "weightctl.formats.open.opening:open_weights",
    "ops": "weightctl.graph.ops",
    "recognize": "weightctl.families.recognition:recognize",
    "save": "weightctl.write.save:save",
    "scan": "weightctl.inspection.scan:scan",
    "shard": "weightctl.write.shard:shard",
    "stat": "weightctl.inspection.statistics:stat",
    "to_directory": "weightctl.write.in_memory:to_directory",
    "to_gguf": "weightctl.write.in_memory:to_gguf",
    "verify": "weightctl.verify",
}

__getattr__ = load_on_use(__name__, _NAMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
