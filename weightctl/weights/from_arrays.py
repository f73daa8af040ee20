"""Trees of weights that no file has: of arrays, and of a `Weights` of another class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from weightctl.errors import ConversionError
from weightctl.weights.data import WeightData
from weightctl.weights.deferred import Absent
from weightctl.weights.protocol import Weights
from weightctl.weights.source import Declared, Held
from weightctl.weights.tree import Checkpoint, header_of

if TYPE_CHECKING:
    from weightctl.weights.metadata import MetadataValue

__all__ = ["as_checkpoint", "declare_weights", "loaded_checkpoint"]

# What `Weights` documents, but for what every class has.
_MEMBERS = (
    "name", "allocated_weights", "exists", "data", "items", "allocate", "__getattr__",
    "__getitem__",
)  # fmt: skip


def as_checkpoint(
    given: Weights | Mapping[str, Any], metadata: Mapping[str, MetadataValue] | None = None
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
        raise ConversionError(f"a {type(given).__name__} is not weights", hint=_hint_for(unchecked))
    tensors: dict[str, WeightData] = {}
    for name, value in cast("Mapping[object, Any]", unchecked).items():
        if not isinstance(name, str):
            raise ConversionError(f"the name of a tensor is a string, not {name!r}")
        tensors[name] = _data_of(name, value)
    return Checkpoint(Held(tensors, dict(metadata or {})))


def loaded_checkpoint(given: Weights | Mapping[str, Any]) -> Checkpoint:
    """Return the tree of what is given, as `as_checkpoint` does, to be stored.

    Raises `ConversionError` for a tree of weights that are only declared, too.
    """
    weights = as_checkpoint(given)
    if header_of(weights).format == "declared":
        raise ConversionError(
            "the weights of this tree are only declared: nothing is loaded that could be stored",
            hint="store the values: a checkpoint's tree, a module's `state_dict()`, arrays by name",
        )
    return weights


def declare_weights() -> Checkpoint:
    """Return a tree in which nothing is loaded: `allocate` declares weights of any name."""
    return Checkpoint(Declared())


def _hint_for(given: object) -> str:
    """Return what to give instead of what is not weights."""
    if callable(getattr(given, "state_dict", None)):
        return "give its values: `.state_dict()`"
    lacking = [member for member in _MEMBERS if not hasattr(type(given), member)]
    if len(lacking) <= len(_MEMBERS) // 2:
        return f"a class of weights has {' and '.join(f'`{each}`' for each in lacking)} too"
    return "give a tree from open_weights, or a mapping from names to arrays"


def _data_of(name: str, value: Any) -> WeightData:
    try:
        # A node has a method of that name; the `data` of an array is its memory.
        kind: Any = type(value)  # pyright: ignore[reportUnknownVariableType]  # anything
        if not isinstance(value, WeightData) and callable(getattr(kind, "data", None)):
            value = value.data()
        return WeightData.from_dlpack(value, name)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        reason = getattr(error, "message", None) or str(error)
        hint = getattr(error, "hint", "")
        if isinstance(value, Mapping):
            hint = "names have dots instead of nested mappings: `{'a.weight': array}`"
        elif isinstance(value, int | float | list | tuple):
            hint = "`np.asarray` makes an array of it; what is not a tensor is left out"
        raise ConversionError(f"`{name}` cannot be taken: {reason}", hint=hint) from error


class _Adapted(Held):
    """The tensors of a `Weights` of another class, each asked for when it is used.

    Its `data()` gives `WeightData` or an array, and `items()` nodes or these.
    """

    def __init__(self, weights: Weights) -> None:
        # A caller's types are not checked.
        self._nodes = dict[str, Any](weights.items())
        # Only their descriptions are kept: the tree may read each when it is asked for.
        described = {name: WeightData.of(self.data(name).info, Absent()) for name in self._nodes}
        super().__init__(described, {})

    def data(self, name: str) -> WeightData:
        """Return a tensor's data, as the tree gives it now."""
        return _data_of(name, self._nodes[name])
