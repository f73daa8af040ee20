"""What graphs are made of: one module for each op, or for a family of them.

An op's module has the functions that add it to a graph, which are all here too, `infer`, the types
that come out of the types that go in, and `lower`, which computes it with torch tensors; the engine
does subgraphs and the numbers of quantized weights itself.

A new op takes a module beside those here; an import, a name in `__all__` and a line in `OPS`, all
below; and examples of values, types and refusals in `tests/graph/op_examples.py`, which a test asks
of every op. One that differs from others in a single function of torch's joins their family:
`unary`, `arithmetic`, `comparison` or `reduce`.
"""

# ruff: noqa: A004  # named as arrays have them

from __future__ import annotations

from weightctl.graph.ops.allgather import allgather
from weightctl.graph.ops.allreduce import allreduce
from weightctl.graph.ops.argmax import argmax
from weightctl.graph.ops.arithmetic import (
    add,
    div,
    floordiv,
    maximum,
    minimum,
    mod,
    mul,
    pow,
    sub,
)
from weightctl.graph.ops.attention import attention
from weightctl.graph.ops.broadcast_to import broadcast_to
from weightctl.graph.ops.call import call
from weightctl.graph.ops.cast import cast
from weightctl.graph.ops.clamp import clamp
from weightctl.graph.ops.comparison import (
    equal,
    greater,
    greater_equal,
    less,
    less_equal,
    logical_and,
    logical_or,
    logical_xor,
    not_equal,
)
from weightctl.graph.ops.concat import concat, stack
from weightctl.graph.ops.constant import constant
from weightctl.graph.ops.conv1d import conv1d
from weightctl.graph.ops.dequantize import dequantize
from weightctl.graph.ops.dims import dims
from weightctl.graph.ops.einsum import einsum
from weightctl.graph.ops.embedding import embedding
from weightctl.graph.ops.gather import gather
from weightctl.graph.ops.gelu import gelu
from weightctl.graph.ops.layer_norm import layer_norm
from weightctl.graph.ops.matmul import matmul
from weightctl.graph.ops.permute import permute
from weightctl.graph.ops.print_value import print_value
from weightctl.graph.ops.range import arange, range
from weightctl.graph.ops.reduce import max, mean, min, sum
from weightctl.graph.ops.reduce_scatter import reduce_scatter
from weightctl.graph.ops.reshape import reshape
from weightctl.graph.ops.rms_norm import rms_norm
from weightctl.graph.ops.rope import rope
from weightctl.graph.ops.slice_tensor import slice_tensor
from weightctl.graph.ops.softmax import softmax
from weightctl.graph.ops.split import chunk, split
from weightctl.graph.ops.squeeze import squeeze
from weightctl.graph.ops.top_k import top_k
from weightctl.graph.ops.transfer_to import transfer_to
from weightctl.graph.ops.transpose import transpose
from weightctl.graph.ops.triangular_mask import triangular_mask
from weightctl.graph.ops.unary import (
    abs,
    cos,
    exp,
    log,
    logical_not,
    neg,
    relu,
    rsqrt,
    sigmoid,
    silu,
    sin,
    sqrt,
    tanh,
)
from weightctl.graph.ops.unsqueeze import unsqueeze
from weightctl.graph.ops.where import where

__all__ = [
    "OPS",
    "abs",
    "add",
    "allgather",
    "allreduce",
    "arange",
    "argmax",
    "attention",
    "broadcast_to",
    "call",
    "cast",
    "chunk",
    "clamp",
    "concat",
    "constant",
    "conv1d",
    "cos",
    "dequantize",
    "dims",
    "div",
    "einsum",
    "embedding",
    "equal",
    "exp",
    "floordiv",
    "gather",
    "gelu",
    "greater",
    "greater_equal",
    "layer_norm",
    "less",
    "less_equal",
    "log",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "matmul",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "mod",
    "mul",
    "neg",
    "not_equal",
    "permute",
    "pow",
    "print_value",
    "range",
    "reduce_scatter",
    "relu",
    "reshape",
    "rms_norm",
    "rope",
    "rsqrt",
    "sigmoid",
    "silu",
    "sin",
    "slice_tensor",
    "softmax",
    "split",
    "sqrt",
    "squeeze",
    "stack",
    "sub",
    "sum",
    "tanh",
    "top_k",
    "transfer_to",
    "transpose",
    "triangular_mask",
    "unsqueeze",
    "where",
]

# The ops of graphs, but for inputs and weights, which are given. `weightctl.system.registry.load`
# finds a module, also where a function of the same name hides it here.
OPS: dict[str, str] = {
    "allgather": "weightctl.graph.ops.allgather",
    "allreduce": "weightctl.graph.ops.allreduce",
    "argmax": "weightctl.graph.ops.argmax",
    "arithmetic": "weightctl.graph.ops.arithmetic",
    "attention": "weightctl.graph.ops.attention",
    "broadcast_to": "weightctl.graph.ops.broadcast_to",
    "call": "weightctl.graph.ops.call",
    "cast": "weightctl.graph.ops.cast",
    "comparison": "weightctl.graph.ops.comparison",
    "concat": "weightctl.graph.ops.concat",
    "constant": "weightctl.graph.ops.constant",
    "conv1d": "weightctl.graph.ops.conv1d",
    "dequantize": "weightctl.graph.ops.dequantize",
    "dims": "weightctl.graph.ops.dims",
    "einsum": "weightctl.graph.ops.einsum",
    "embedding": "weightctl.graph.ops.embedding",
    "gather": "weightctl.graph.ops.gather",
    "gelu": "weightctl.graph.ops.gelu",
    "layer_norm": "weightctl.graph.ops.layer_norm",
    "matmul": "weightctl.graph.ops.matmul",
    "permute": "weightctl.graph.ops.permute",
    "print": "weightctl.graph.ops.print_value",
    "range": "weightctl.graph.ops.range",
    "reduce": "weightctl.graph.ops.reduce",
    "reduce_scatter": "weightctl.graph.ops.reduce_scatter",
    "reshape": "weightctl.graph.ops.reshape",
    "rms_norm": "weightctl.graph.ops.rms_norm",
    "rope": "weightctl.graph.ops.rope",
    "slice": "weightctl.graph.ops.slice_tensor",
    "softmax": "weightctl.graph.ops.softmax",
    "split": "weightctl.graph.ops.split",
    "squeeze": "weightctl.graph.ops.squeeze",
    "top_k": "weightctl.graph.ops.top_k",
    "transfer_to": "weightctl.graph.ops.transfer_to",
    "transpose": "weightctl.graph.ops.transpose",
    "triangular_mask": "weightctl.graph.ops.triangular_mask",
    "unary": "weightctl.graph.ops.unary",
    "unsqueeze": "weightctl.graph.ops.unsqueeze",
    "where": "weightctl.graph.ops.where",
}


def __dir__() -> list[str]:
    return sorted(__all__)
