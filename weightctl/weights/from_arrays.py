"""Trees of weights from arrays, and from other implementations of `Weights`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from weightctl.errors import ConversionError
from weightctl.weights.derived import Derived, tensor_of
from weightctl.weights.protocol import Weights
from weightctl.weights.source import Declared, Held
from weightctl.weights.tree import Checkpoint, header_of, source_of

if TYPE_CHECKING:
    from weightctl.weights.data import WeightData
    from weightctl.weights.metadata import MetadataValue

# The members of `Weights`, without those that every class has.
_MEMBERS = (
    "name", "allocated_weights", "exists", "data", "items", "allocate", "__getattr__",
    "__getitem__",
)  # fmt: skip


def as_checkpoint(
    given: Weights | Mapping[str, Any], metadata: Mapping[str, MetadataValue] | None = None
) -> Checkpoint:
    """Return weights, or a mapping from names to arrays, as a `Checkpoint`.

    A `Checkpoint` is returned as it is. For other implementations of `Weights`, `data()` is called
    for the description of every tensor now, and its values are read when they are used. Arrays are
    NumPy arrays, torch tensors, `WeightData`, nodes of trees and other objects that support DLPack;
    contiguous arrays on the CPU are not copied. Raises `ConversionError` for other values, with
    their names.
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
            f"{type(given).__name__} is not a tree of weights", hint=_hint_for(unchecked)
        )
    tensors: dict[str, WeightData] = {}
    for name, value in cast("Mapping[object, Any]", unchecked).items():
        if not isinstance(name, str):
            raise ConversionError(f"{name!r} is not a tensor name; use a string")
        tensors[name] = _data_of(name, value)
    return Checkpoint(Held(tensors, dict(metadata or {})))


def loaded_checkpoint(given: Weights | Mapping[str, Any]) -> Checkpoint:
    """Return weights, or a mapping from names to arrays, as a `Checkpoint` that can be stored.

    Raises `ConversionError` as `as_checkpoint` does, and for weights that are only declared.
    """
    weights = as_checkpoint(given)
    if header_of(weights).format == "declared":
        raise ConversionError(
            "the weights of this tree were declared without data, so there are no values to store",
            hint="use the tree of a checkpoint, the `state_dict()` of a module, or a mapping from "
            "names to arrays",
        )
    return weights


def select_node(weights: Checkpoint) -> Checkpoint:
    """Return a tree of only the tensors below a node; a whole tree is returned as it is."""
    if not weights.name:
        return weights
    source, header = source_of(weights), header_of(weights)
    names = {name for name, _ in weights.items()}
    tensors = {name: tensor_of(source, name) for name in header.tensors if name in names}
    aliases = {
        name: target
        for name, target in header.aliases.items()
        if name in names and target in tensors
    }
    return Checkpoint(Derived(source, tensors, header.metadata, aliases, leaves={}))


def declare_weights() -> Checkpoint:
    """Return a tree without data, in which `allocate` declares weights of any name."""
    return Checkpoint(Declared())


def _hint_for(given: object) -> str:
    """Return a hint on what to pass instead of a value that is not weights."""
    if callable(getattr(given, "state_dict", None)):
        return "use `.state_dict()` to get its values"
    lacking = [member for member in _MEMBERS if not hasattr(type(given), member)]
    if len(lacking) <= len(_MEMBERS) // 2:
        return f"a weights class also needs {' and '.join(f'`{each}`' for each in lacking)}"
    return "use a tree from open_weights, or a mapping from names to arrays"


def _data_of(name: str, value: Any) -> WeightData:
    from weightctl.weights.data import WeightData

    try:
        # A node has a method `data`; the attribute `data` of an array is its memory.
        kind: Any = type(value)  # pyright: ignore[reportUnknownVariableType]  # anything
        if not isinstance(value, WeightData) and callable(getattr(kind, "data", None)):
            value = value.data()
        return WeightData.from_dlpack(value, name)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        reason = getattr(error, "message", None) or str(error)
        hint = getattr(error, "hint", "")
        if isinstance(value, Mapping):
            hint = "use dotted names instead of nested mappings: `{'a.weight': array}`"
        elif isinstance(value, int | float | list | tuple):
            hint = "convert the value with `np.asarray`; leave out values that are not tensors"
        raise ConversionError(f"`{name}` cannot be used: {reason}", hint=hint) from error


class _Adapted(Held):
    """The tensors of another implementation of `Weights`; each is requested when it is used.

    `data()` of its nodes returns `WeightData` or an array; `items()` yields nodes, `WeightData` or
    arrays.
    """

    def __init__(self, weights: Weights) -> None:
        from weightctl.weights.data import Absent, WeightData

        # A caller's types are not checked.
        self._nodes = dict[str, Any](weights.items())
        # Only descriptions are kept: the tree can read each tensor on demand.
        described = {name: WeightData.of(self.data(name).info, Absent()) for name in self._nodes}
        super().__init__(described, {})

    def data(self, name: str) -> WeightData:
        """Return a tensor's data, as the tree has it now."""
        return _data_of(name, self._nodes[name])
