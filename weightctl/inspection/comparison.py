"""Compares two checkpoints tensor by tensor, paired by equal names."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from weightctl.inspection.contents import kind
from weightctl.weights.info import TensorInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from weightctl.inspection.contents import Contents
    from weightctl.schemes.matching import Entry
    from weightctl.verify.compare.distance import Measured

    Hashed = Callable[[Contents, Sequence[str]], Mapping[str, str]]


class Side(NamedTuple):
    """How a checkpoint stores a tensor.

    `bits_per_weight` is None unless a scheme stores the weight in several tensors.
    """

    shape: tuple[int, ...]
    encoding: str
    bits_per_weight: float | None


class ValueChange(NamedTuple):
    """A change of values: the RMSE relative to the first checkpoint, and the largest difference.

    `nonfinite` counts the values that are NaN or infinite in only one checkpoint, or that are
    different NaN or infinite values in both. They are left out of the largest difference, and the
    relative RMSE is infinite if there are any.
    """

    relative_rmse: float
    max_difference: float
    nonfinite: int

    @classmethod
    def of(cls, measured: Measured) -> ValueChange:
        """Return the change of one tensor, or of several tensors that were measured together."""
        return cls(measured.relative_rmse, measured.max_error, measured.nonfinite)


class Difference(NamedTuple):
    """A tensor that differs between two checkpoints.

    `first` and `second` are None if the tensor is missing on that side. If both have it, `of` lists
    what differs: `shape`, `encoding`, `bytes` or `values`. `second_name` is the name in the second
    checkpoint, None if the tensor is missing there.
    """

    name: str
    second_name: str | None
    of: tuple[str, ...]
    first: Side | None
    second: Side | None
    change: ValueChange | None = None


class LayerChange(NamedTuple):
    """The change of all tensors of a layer together; `layer` is None for tensors outside layers."""

    layer: int | None
    tensors: int
    changed: int
    change: ValueChange


class Comparison(NamedTuple):
    """The differences of two checkpoints, and the numbers of tensors that were compared.

    `names` is the number of tensors in either checkpoint, and `shared` the number in both. `how`
    describes how tensors are paired; it is empty for equal names. `layers` has the changes of
    values by layer, None if values were not compared. `recoded` is the number of tensors that have
    another encoding in the second checkpoint.
    """

    names: int
    shared: int
    differences: dict[str, Difference]
    how: str = ""
    layers: Sequence[LayerChange] | None = None
    recoded: int = 0


def compare(first: Contents, second: Contents, hashed: Hashed | None = None) -> Comparison:
    """Compare the tensors of two checkpoints with equal names: shapes and encodings.

    `hashed` is a function that returns the digests of stored tensors; if it is given, bytes are
    compared too. A tied name is compared as the tensor that it is tied to. Differences are in the
    order of the first checkpoint, followed by names that only the second has.
    """
    ours, theirs = _entries(first), _entries(second)
    names = {**ours, **theirs}
    found: dict[str, Difference] = {}
    for name in names:
        one, other = _side(ours.get(name)), _side(theirs.get(name))
        if one != other:
            second_name = None if other is None else name
            found[name] = Difference(name, second_name, list_differences(one, other), one, other)
    if hashed is not None:
        alike = [name for name in names if name not in found]
        before = hashed(first, [part for name in alike for part in _list_stored_names(ours[name])])
        after = hashed(
            second, [part for name in alike for part in _list_stored_names(theirs[name])]
        )
        for name in alike:
            if [before[part] for part in _list_stored_names(ours[name])] != [
                after[part] for part in _list_stored_names(theirs[name])
            ]:
                side = _side(ours[name])
                found[name] = Difference(name, name, ("bytes",), side, side)
        found = {name: found[name] for name in names if name in found}
    return Comparison(len(names), len(ours.keys() & theirs.keys()), found)


def _entries(contents: Contents) -> dict[str, Entry]:
    entries = dict(contents.entries)
    for name in contents.aliases:
        entry = contents.find_entry(name)
        if entry is not None:
            entries[name] = entry
    return entries


def _side(entry: Entry | None) -> Side | None:
    return None if entry is None else Side(entry.shape, *kind(entry))


def list_differences(one: Side | None, other: Side | None) -> tuple[str, ...]:
    """Return what differs in how a tensor is stored; nothing if one checkpoint lacks it."""
    if one is None or other is None:
        return ()
    return tuple(
        what
        for what, is_same in (
            ("shape", one.shape == other.shape),
            ("encoding", one[1:] == other[1:]),
        )
        if not is_same
    )


def _list_stored_names(entry: Entry) -> tuple[str, ...]:
    return (entry.name,) if isinstance(entry, TensorInfo) else entry.tensors
