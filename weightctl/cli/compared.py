"""The differences of two checkpoints, tensor by tensor, as their tensors are meant."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from weightctl.cli.contents import kind
from weightctl.weights.info import TensorInfo
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from weightctl.cli.contents import Contents
    from weightctl.schemes.entries import Entry

    Hashed = Callable[[Contents, Sequence[str]], Mapping[str, str]]

__all__ = ["Comparison", "Difference", "Side", "compare"]


class Side(NamedTuple):
    """What a tensor is in one of two checkpoints; `bits` are those of a weight in parts."""

    shape: tuple[int, ...]
    encoding: str
    bits: float | None


class Difference(NamedTuple):
    """A tensor that is not the same in two checkpoints; a side is None where it is missing.

    `of` says in what it differs, where both have it: `shape`, `encoding` or `bytes`.
    """

    first: Side | None
    second: Side | None
    of: tuple[str, ...] = ()


class Comparison(NamedTuple):
    """How many names there are in two checkpoints together, how many in both, what differs."""

    names: int
    shared: int
    differences: dict[str, Difference]


def compare(first: Contents, second: Contents, hashed: Hashed | None = None) -> Comparison:
    """Compare two checkpoints by name: shapes, encodings, and with `hashed` bytes.

    A tied name counts with what it is tied to. Differences are in the order of the first
    checkpoint, then of the second. `hashed` gives the digests of stored tensors.
    """
    ours, theirs = _entries(first), _entries(second)
    names = {**ours, **theirs}
    found: dict[str, Difference] = {}
    for name in names:
        one, other = _side(ours.get(name)), _side(theirs.get(name))
        if one != other:
            found[name] = Difference(one, other, _differs(one, other))
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
                found[name] = Difference(side, side, ("bytes",))
        found = {name: found[name] for name in names if name in found}
    return Comparison(len(names), len(ours.keys() & theirs.keys()), found)


def _entries(contents: Contents) -> dict[str, Entry]:
    tensors = header_of(contents.weights).tensors
    entries = dict(contents.entries)
    for name, target in contents.aliases.items():
        entries[name] = contents.entries.get(target) or tensors[target]
    return entries


def _side(entry: Entry | None) -> Side | None:
    return None if entry is None else Side(entry.shape, *kind(entry))


def _differs(one: Side | None, other: Side | None) -> tuple[str, ...]:
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
