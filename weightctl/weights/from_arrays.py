"""Trees of weights that no file has: of arrays, and of a `Weights` of another class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from weightctl.errors import ConversionError
from weightctl.weights.data import WeightData
from weightctl.weights.deferred import Absent
from weightctl.weights.protocol import Weights
from weightctl.weights.source import Declared, Held
from weightctl.weights.tree import Checkpoint

if TYPE_CHECKING:
    from weightctl.weights.metadata import Value

__all__ = ["as_checkpoint", "declared_weights"]


def as_checkpoint(
    given: Weights | Mapping[str, Any], metadata: Mapping[str, Value] | None = None
) -> Checkpoint:
    """Return the tree of what is given: a tree, or arrays by name.

    A `Checkpoint` is returned as it is. Of a `Weights` of another class every tensor is described
    now, by `data()`, and its numbers are taken when they are used. Arrays are NumPy arrays, torch
    tensors, `WeightData`, nodes of trees and all else that offers DLPack; none is copied where it
    is contiguous and on the CPU. Raises `ConversionError` for anything else, and names it.
    """
    if isinstance(given, Checkpoint):
        return given
    if isinstance(given, Weights):
        tree = Checkpoint(_Adapted(given))
        return tree[given.name] if given.name else tree
    # A caller's types are not checked.
    unchecked: Any = given
    if not isinstance(unchecked, Mapping):
        raise ConversionError(
            f"a {type(given).__name__} is not weights",
            hint="give a tree from open_weights, or a mapping from names to arrays",
        )
    tensors: dict[str, WeightData] = {}
    for name, value in cast("Mapping[object, Any]", unchecked).items():
        if not isinstance(name, str):
            raise ConversionError(f"the name of a tensor is a string, not {name!r}")
        tensors[name] = _data_of(name, value)
    return Checkpoint(Held(tensors, dict(metadata or {})))


def declared_weights() -> Checkpoint:
    """Return a tree in which nothing is loaded: `allocate` declares weights of any name."""
    return Checkpoint(Declared())


def _data_of(name: str, value: Any) -> WeightData:
    try:
        if isinstance(value, Weights):
            value = value.data()
        return WeightData.from_dlpack(value, name)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        reason = getattr(error, "message", None) or str(error)
        raise ConversionError(f"`{name}` cannot be taken: {reason}") from error


class _Adapted(Held):
    """The tensors of a `Weights` of another class, each asked for when it is used."""

    def __init__(self, weights: Weights) -> None:
        self._nodes = dict(weights.items())
        # Only their descriptions are kept: the tree may read each when it is asked for.
        described = {
            name: WeightData.of(node.data().info._replace(name=name), Absent())
            for name, node in self._nodes.items()
        }
        super().__init__(described, {})

    def data(self, name: str) -> WeightData:
        """Return a tensor's data, as the tree gives it now."""
        return self._nodes[name].data()
