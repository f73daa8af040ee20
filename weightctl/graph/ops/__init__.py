"""Operations of graphs: modules by kind, whose functions add them, and the table of operations.

A function `NAME` adds an operation to the current graph, `infer_NAME` returns the types of its
results for the types of its inputs, and `lower_NAME` computes it with torch. The engine itself runs
subgraphs and decodes quantized weights.

To add an operation, write the three functions and an `Op` of the last two in the module of its
kind, import the first below, and add the record to `_RECORDS`. A test requires examples of values,
types and errors for every operation in `tests/graph/op_examples.py`. A function that differs from
others only in torch's function is part of `unary`, `arithmetic`, `comparison` or `reduce`.
"""

# ruff: noqa: A004  # NumPy's names

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.graph.ops.attention import ATTENTION, ROPE, attention, rope
from weightctl.graph.ops.binary import (
    ARITHMETIC,
    COMPARISON,
    WHERE,
    add,
    clamp,
    div,
    equal,
    floordiv,
    greater,
    greater_equal,
    less,
    less_equal,
    logical_and,
    logical_or,
    logical_xor,
    maximum,
    minimum,
    mod,
    mul,
    not_equal,
    pow,
    sub,
    where,
)
from weightctl.graph.ops.call import CALL, call
from weightctl.graph.ops.chosen_rows import (
    CHOSEN_ROWS,
    SUM_ROWS,
    SUM_WEIGHTED_ROWS,
    chosen_rows,
    sum_rows,
    sum_weighted_rows,
)
from weightctl.graph.ops.collectives import (
    ALLGATHER,
    ALLREDUCE,
    REDUCE_SCATTER,
    TRANSFER_TO,
    allgather,
    allreduce,
    reduce_scatter,
    transfer_to,
)
from weightctl.graph.ops.create import CONSTANT, DIMS, RANGE, arange, constant, dims, range
from weightctl.graph.ops.norm import LAYER_NORM, RMS_NORM, layer_norm, rms_norm
from weightctl.graph.ops.product import EINSUM, MATMUL, einsum, matmul
from weightctl.graph.ops.quantized import (
    DEQUANTIZE,
    EMBEDDING,
    dequantize,
    embedding,
)
from weightctl.graph.ops.reduce import (
    MASK_TOP_K,
    REDUCE,
    SOFTMAX,
    TOP_K,
    mask_top_k,
    max,
    mean,
    min,
    softmax,
    sum,
    top_k,
)
from weightctl.graph.ops.sequences import (
    CAUSAL_CONVOLUTION,
    GATED_DELTA_RULE,
    GENERAL_DELTA_RULE,
    SELECTIVE_SCAN,
    causal_convolution,
    gated_delta_rule,
    general_delta_rule,
    selective_scan,
)
from weightctl.graph.ops.shape import (
    BROADCAST_TO,
    PERMUTE,
    RESHAPE,
    TRANSPOSE,
    UNSQUEEZE,
    broadcast_to,
    permute,
    reshape,
    transpose,
    unsqueeze,
)
from weightctl.graph.ops.slicing import (
    CONCAT,
    SLICE,
    SPLIT,
    chunk,
    concat,
    slice_tensor,
    split,
    stack,
)
from weightctl.graph.ops.unary import (
    CAST,
    GELU,
    PRINT,
    UNARY,
    abs,
    cast,
    cos,
    exp,
    gelu,
    log,
    logical_not,
    neg,
    print_value,
    relu,
    rsqrt,
    sigmoid,
    silu,
    sin,
    softplus,
    sqrt,
    tanh,
)

if TYPE_CHECKING:
    from weightctl.graph.ops.rules import Op

__all__ = [
    "OPS",
    "abs",
    "add",
    "allgather",
    "allreduce",
    "arange",
    "attention",
    "broadcast_to",
    "call",
    "cast",
    "causal_convolution",
    "chosen_rows",
    "chunk",
    "clamp",
    "concat",
    "constant",
    "cos",
    "dequantize",
    "dims",
    "div",
    "einsum",
    "embedding",
    "equal",
    "exp",
    "floordiv",
    "gated_delta_rule",
    "gelu",
    "general_delta_rule",
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
    "mask_top_k",
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
    "selective_scan",
    "sigmoid",
    "silu",
    "sin",
    "slice_tensor",
    "softmax",
    "softplus",
    "split",
    "sqrt",
    "stack",
    "sub",
    "sum",
    "sum_rows",
    "sum_weighted_rows",
    "tanh",
    "top_k",
    "transfer_to",
    "transpose",
    "unsqueeze",
    "where",
]

# All operations except inputs and weights, which are not computed.
_RECORDS = (
    ATTENTION,
    ROPE,
    ARITHMETIC,
    COMPARISON,
    WHERE,
    CALL,
    CHOSEN_ROWS,
    SUM_ROWS,
    SUM_WEIGHTED_ROWS,
    ALLGATHER,
    ALLREDUCE,
    REDUCE_SCATTER,
    TRANSFER_TO,
    CAUSAL_CONVOLUTION,
    CONSTANT,
    DIMS,
    RANGE,
    GATED_DELTA_RULE,
    GENERAL_DELTA_RULE,
    LAYER_NORM,
    RMS_NORM,
    EINSUM,
    MATMUL,
    DEQUANTIZE,
    EMBEDDING,
    REDUCE,
    SOFTMAX,
    TOP_K,
    MASK_TOP_K,
    BROADCAST_TO,
    PERMUTE,
    RESHAPE,
    TRANSPOSE,
    UNSQUEEZE,
    CONCAT,
    SLICE,
    SPLIT,
    SELECTIVE_SCAN,
    CAST,
    GELU,
    PRINT,
    UNARY,
)

# By the names that nodes use.
OPS: dict[str, Op] = {op.name: op for op in _RECORDS}


def __dir__() -> list[str]:
    return sorted(__all__)
