"""The record of an operation: how its types are inferred, and how torch computes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightctl.graph.types import TensorType

__all__ = ["Op"]


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
