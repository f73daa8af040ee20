"""The record of an operation, and type and shape rules that several operations share.

Errors raised here do not name the op and the types: the code that adds an op to a graph does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex

from weightctl.dtype import DType
from weightctl.errors import GraphError
from weightctl.shape import Dim, Shape

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from weightctl.graph.types import TensorType

# The dtypes that operations compute with; others can only be stored, moved and cast.
FLOATS = frozenset({DType.float16, DType.bfloat16, DType.float32, DType.float64})
INTEGERS = frozenset({DType.int8, DType.int16, DType.int32, DType.int64, DType.uint8})


class Op(NamedTuple):
    """An operation of graphs; nodes refer to it by `name`.

    `infer` takes the types of the inputs, and the attributes by name. It returns the type of the
    result, or a tuple of types, and raises `GraphError` if they do not fit. `lower` takes torch
    tensors, and the attributes with a size for each dimension. It is None for operations that the
    engine handles itself.
    """

    name: str
    infer: Callable[..., TensorType | tuple[TensorType, ...]]
    lower: Callable[..., Any] | None = None
    # Whether inputs may be on different devices; other operations need all inputs on one.
    crosses_devices: bool = False
    # Whether it takes the blocks of a quantized weight; other operations take its values.
    takes_blocks: bool = False
    # Whether it only reads the rows of the first input whose indices the second input has.
    picks_rows: bool = False
    # Whether it has a visible effect, and so runs even if its result is not used.
    is_seen: bool = False


def broadcast(left: Sequence[Dim], right: Sequence[Dim]) -> Shape:
    """Return the shape of an elementwise result, aligned at the last dimension.

    Two dimensions fit if they are equal or one of them is 1. Raises `GraphError` for others, also
    for a name and a size that might be equal at run time.
    """
    if len(left) < len(right):
        left, right = right, left
    missing = len(left) - len(right)
    dims = list(left[:missing])
    for axis, (one, other) in enumerate(zip(left[missing:], right, strict=True)):
        if 1 not in (one, other) and one != other:
            raise GraphError(
                f"dimension {axis - len(right)} is {one} in one operand and {other} in the other",
                hint="dimensions must be equal, or one of them must be 1",
            )
        dims.append(other if one == 1 else one)
    return Shape(dims)


def require_broadcast(what: str, shape: Sequence[Dim], wanted: Sequence[Dim]) -> None:
    """Raise `GraphError` unless a shape broadcasts to exactly the wanted shape."""
    try:
        fits = broadcast(shape, wanted) == wanted
    except GraphError:
        fits = False
    if not fits:
        raise GraphError(
            f"{what} {Shape(shape).text} cannot be broadcast to {Shape(wanted).text}",
            hint="shapes are aligned at their last dimension: there, each dimension must be 1 or "
            "equal to the wanted size",
        )


def require_same_dtype(*types: TensorType) -> DType:
    """Return the common dtype of operands; raises `GraphError` if their dtypes differ."""
    first = types[0].dtype
    for kind in types[1:]:
        if kind.dtype is not first:
            narrow, wide = sorted((first, kind.dtype), key=_precedence)
            raise GraphError(
                f"{first.value} and {kind.dtype.value} cannot be combined",
                hint=f"dtypes are not promoted automatically: use `.cast({wide!r})` on the "
                f"{narrow.value} operand",
            )
    return first


def _precedence(dtype: DType) -> tuple[int, int, bool]:
    """Return a sort key that orders dtypes as NumPy promotes them: by kind, then by width."""
    kind = 3 if dtype.is_complex else 2 if dtype.is_float else 1 if dtype.is_integer else 0
    # Of two dtypes of equal width, suggest float16 or the signed integer: most models compute in
    # these.
    return kind, dtype.encoding.size, dtype.value.startswith(("float", "int"))


def choose_axis(axis: int | None, dim: int | None) -> int | None:
    """Return the axis, given as `axis` or by torch's name `dim`.

    Raises `GraphError` if both are given.
    """
    if axis is not None and dim is not None:
        raise GraphError(
            f"axis={axis} and dim={dim} are both given",
            hint="use one of them; they are two names for the same argument",
        )
    return dim if axis is None else axis


def require_float(*types: TensorType) -> None:
    """Raise `GraphError` unless all have a float dtype that operations compute with."""
    for kind in types:
        if kind.dtype not in FLOATS:
            raise GraphError(
                f"the operation needs a float dtype, not {kind.dtype.value}",
                hint="use `.cast(DType.float32)` first",
            )


def require_states(x: TensorType, given: TensorType | None, shape: Sequence[Dim]) -> TensorType:
    """Return the type of a recurrence's states: of this shape, in at least float32.

    Raises `GraphError` if `given`, the states before the first position, have another type.
    """
    dtype = x.dtype if x.dtype is DType.float64 else DType.float32
    expected = replace(x, dtype=dtype, shape=Shape(shape))
    if given not in (None, expected):
        raise GraphError(
            f"the states must be {expected}, not {given}",
            hint="use those that the operation returned for the positions before",
        )
    return expected


def require_integer(*types: TensorType) -> None:
    """Raise `GraphError` unless all have an integer dtype that operations compute with."""
    for kind in types:
        if kind.dtype not in INTEGERS:
            raise GraphError(
                f"the operation needs an integer dtype, not {kind.dtype.value}",
                hint="use `.cast(DType.int64)` first",
            )


def require_number(*types: TensorType) -> None:
    """Raise `GraphError` unless all have a numeric dtype that operations compute with."""
    for kind in types:
        if kind.dtype not in FLOATS | INTEGERS:
            nearest = DType.float32 if kind.dtype.is_float else DType.int64
            raise GraphError(
                f"the operation does not support {kind.dtype.value}",
                hint=f"use `.cast({nearest!r})` first",
            )


def require_bool(*types: TensorType) -> None:
    """Raise `GraphError` unless all have dtype bool."""
    for kind in types:
        if kind.dtype is not DType.bool:
            raise GraphError(
                f"the operation needs bool, not {kind.dtype.value}",
                hint="use a comparison, such as `x != 0`",
            )


def require_rank(kind: TensorType, at_least: int) -> None:
    """Raise `GraphError` if a tensor has fewer dimensions than `at_least`."""
    if kind.rank < at_least:
        dimensions = "one dimension" if at_least == 1 else f"{at_least} dimensions"
        raise GraphError(f"the operation needs a tensor of at least {dimensions}, not {kind.rank}")


def resolve_axis(rank: int, axis: int) -> int:
    """Return a non-negative axis; raises `GraphError` if a tensor of this rank does not have it."""
    given: Any = axis
    if isinstance(given, bool) or not isinstance(given, int | SupportsIndex):
        raise GraphError(
            f"an axis must be an integer, not {given!r}", hint="for example -1 for the last axis"
        )
    if not -rank <= axis < rank:
        many = f"axes {-rank} to {rank - 1}" if rank else "no axes"
        raise GraphError(f"axis {axis} does not exist: a tensor of rank {rank} has {many}")
    return axis % rank
