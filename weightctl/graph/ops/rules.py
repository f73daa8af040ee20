"""The record of an operation, and rules that several have for types and shapes.

The errors say neither the op's name nor the types; whoever adds the op to a graph does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex

from weightctl.dtype import DType
from weightctl.errors import GraphError
from weightctl.shape import Dim, Shape

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from weightctl.graph.types import TensorType

__all__ = [
    "FLOATS",
    "INTEGERS",
    "Op",
    "broadcast",
    "choose_axis",
    "require_bool",
    "require_broadcast",
    "require_float",
    "require_integer",
    "require_number",
    "require_rank",
    "require_same_dtype",
    "resolve_axis",
]

# What is computed with; numbers of all other types are stored, moved and cast only.
FLOATS = frozenset({DType.float16, DType.bfloat16, DType.float32, DType.float64})
INTEGERS = frozenset({DType.int8, DType.int16, DType.int32, DType.int64, DType.uint8})


class Op(NamedTuple):
    """An operation of graphs, by the `name` that nodes have.

    `infer` takes the types of the inputs, and the attributes by name; it returns the type of the
    result, or a tuple of types, and raises `GraphError` if they do not fit. `lower` takes torch's
    tensors, and the attributes with a number for each dimension. It is None for what the engine
    does by itself.
    """

    name: str
    infer: Callable[..., TensorType | tuple[TensorType, ...]]
    lower: Callable[..., Any] | None = None
    # Whether inputs are on several devices; those of all other operations are on one.
    crosses_devices: bool = False
    # Whether the blocks of a quantized weight are an input; others take its numbers.
    takes_blocks: bool = False
    # Whether only the rows of the first input are read whose numbers the second input gives.
    picks_rows: bool = False
    # Whether people see it run, so that it runs even where nothing uses its result.
    is_seen: bool = False


def broadcast(left: Sequence[Dim], right: Sequence[Dim]) -> Shape:
    """Return the shape of an elementwise result, aligned at the last dimension.

    Two dimensions go together when they are equal or one of them is 1. Raises `GraphError` for
    others, also for a name and a size that might turn out to be equal.
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
    """Raise `GraphError` unless a shape becomes just the one wanted by broadcasting."""
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
    """Return the one dtype of several operands; raises `GraphError` if they differ."""
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
    """Order dtypes as NumPy's promotion does: by kind, then by width."""
    kind = 3 if dtype.is_complex else 2 if dtype.is_float else 1 if dtype.is_integer else 0
    # Of equal width float16 and the signed type are named, which most models compute with.
    return kind, dtype.encoding.size, dtype.value.startswith(("float", "int"))


def choose_axis(axis: int | None, dim: int | None) -> int | None:
    """Return the axis that is given, as `axis` or as torch calls it, `dim`.

    Raises `GraphError` if both are given.
    """
    if axis is not None and dim is not None:
        raise GraphError(
            f"axis={axis} and dim={dim} are both given",
            hint="use one of them; they are two names for the same argument",
        )
    return dim if axis is None else axis


def require_float(*types: TensorType) -> None:
    """Raise `GraphError` unless all are floating-point numbers that are computed with."""
    for kind in types:
        if kind.dtype not in FLOATS:
            raise GraphError(
                f"the operation needs a float dtype, not {kind.dtype.value}",
                hint="use `.cast(DType.float32)` first",
            )


def require_integer(*types: TensorType) -> None:
    """Raise `GraphError` unless all are integers that are computed with."""
    for kind in types:
        if kind.dtype not in INTEGERS:
            raise GraphError(
                f"the operation needs an integer dtype, not {kind.dtype.value}",
                hint="use `.cast(DType.int64)` first",
            )


def require_number(*types: TensorType) -> None:
    """Raise `GraphError` unless all are real numbers that are computed with."""
    for kind in types:
        if kind.dtype not in FLOATS | INTEGERS:
            nearest = DType.float32 if kind.dtype.is_float else DType.int64
            raise GraphError(
                f"the operation does not support {kind.dtype.value}",
                hint=f"use `.cast({nearest!r})` first",
            )


def require_bool(*types: TensorType) -> None:
    """Raise `GraphError` unless all are truth values."""
    for kind in types:
        if kind.dtype is not DType.bool:
            raise GraphError(
                f"the operation needs bool, not {kind.dtype.value}",
                hint="use a comparison, such as `x != 0`",
            )


def require_rank(kind: TensorType, at_least: int) -> None:
    """Raise `GraphError` for a tensor of fewer dimensions."""
    if kind.rank < at_least:
        dimensions = "one dimension" if at_least == 1 else f"{at_least} dimensions"
        raise GraphError(f"the operation needs a tensor of at least {dimensions}, not {kind.rank}")


def resolve_axis(rank: int, axis: int) -> int:
    """Return the axis counted from the first; raises `GraphError` for one that `rank` lacks."""
    given: Any = axis
    if isinstance(given, bool) or not isinstance(given, SupportsIndex):
        raise GraphError(
            f"an axis must be an integer, not {given!r}", hint="for example -1 for the last axis"
        )
    if not -rank <= axis < rank:
        many = f"axes {-rank} to {rank - 1}" if rank else "no axes"
        raise GraphError(f"axis {axis} does not exist: a tensor of rank {rank} has {many}")
    return axis % rank
