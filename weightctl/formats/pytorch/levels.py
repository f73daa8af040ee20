"""The levels of a checkpoint as metadata: what stands at the places that names with dots lead to.

In the tree `model.layer.0.weight` is one name; in a pickle it may be the entry `layer.0.weight` of
a dict that is itself the entry `model` of another. The metadata value `pytorch.levels` says so: a
JSON object from the name of each place that is not a tensor to what it is.
"""

from __future__ import annotations

import json
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.formats.base import LEVELS_KEY
from weightctl.formats.pickles.records import PickledCall
from weightctl.formats.pytorch.plain import (
    EMPTY,
    PLAIN,
    Stated,
    attributes,
    integer,
    make_ordered_dict,
    parse_value,
)
from weightctl.formats.pytorch.records import Size
from weightctl.formats.pytorch.values import plain
from weightctl.storage.byte_range import HeldRange
from weightctl.text.untyped import is_text_map
from weightctl.weights.info import Leaf
from weightctl.weights.metadata import TEXT, MetadataValue

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from weightctl.weights.info import Header

__all__ = [
    "LEVELS_KEY",
    "is_value",
    "levels_value",
    "nest_leaves",
    "parse_levels",
    "restrict_levels",
    "with_leaves",
]

# What the levels say of a checkpoint that is one tensor by itself.
_BARE = "tensor"
# The attribute of a state dict that says of which version its modules are.
_ATTRIBUTES = "_metadata"
# Leaves that are there only where the metadata has them; an array's kind is a container's too.
_STATED = (PLAIN.keys() - {"list", "tuple"}) | EMPTY.keys()
_VALUES = PLAIN.keys() | EMPTY.keys()
_MAPPINGS = {"dict", "dict[int]", "{}"}
_CONTAINERS = {"list", "tuple", *_MAPPINGS, *EMPTY}
# Whoever reads a pickle may do so by recursion, and nobody nests as deep.
_DEEPEST = 100
_NOTHING = HeldRange(memoryview(b""))


class _Nested(NamedTuple):
    """What goes into a pickle, and the keys of the metadata that it says by itself."""

    root: Any
    used: frozenset[str]


def levels_value(levels: Mapping[str, str]) -> MetadataValue:
    """Return the metadata value that says what stands at each place."""
    return MetadataValue(TEXT, json.dumps(dict(levels), separators=(",", ":")))


def parse_levels(metadata: Mapping[str, MetadataValue]) -> dict[str, str]:
    """Return what stands at each place; empty if the metadata does not say it soundly."""
    value = metadata.get(LEVELS_KEY)
    try:
        levels = None if value is None else json.loads(value.content)
    except (TypeError, ValueError, RecursionError):
        return {}  # another program's key of that name
    return levels if is_text_map(levels) else {}


def restrict_levels(
    metadata: Mapping[str, MetadataValue], names: Collection[str]
) -> dict[str, MetadataValue]:
    """Return metadata whose levels describe nothing but the places of these names.

    `names` are those of tensors and values. The levels keep the containers of the names and the
    attributes of these containers; the metadata loses the attributes of all others.
    """
    levels = parse_levels(metadata)
    if not levels:
        return dict(metadata)
    containers = {"", *chain.from_iterable(map(_list_prefixes, names))}
    kept = {
        place: kind
        for place, kind in levels.items()
        if place in containers
        or place in names
        or (kind == _ATTRIBUTES and place.removesuffix(_ATTRIBUTES).rstrip(".") in containers)
    }
    gone = {place for place in levels if levels[place] == _ATTRIBUTES and place not in kept}
    made = {key: metadata[key] for key in metadata if key not in gone and key != LEVELS_KEY}
    return {**made, LEVELS_KEY: levels_value(kept)} if kept else made


def _list_prefixes(name: str) -> Iterator[str]:
    """Yield all that a name begins with up to one of its dots."""
    end = name.find(".")
    while end >= 0:
        yield name[:end]
        end = name.find(".", end + 1)


def is_value(kind: str | None) -> bool:
    """Whether what stands at a place is a value that the metadata of its name has."""
    return kind in PLAIN or kind == _ATTRIBUTES


def nest_leaves(leaves: Mapping[str, Any], metadata: Mapping[str, MetadataValue]) -> _Nested:
    """Return `leaves`, by their full names, at their places among the values of the metadata.

    What the metadata says of a place and cannot be does not count.
    """
    levels = parse_levels(metadata)
    if not levels:
        return _Nested(dict(leaves), frozenset())
    if levels.get("") == _BARE and list(leaves) == [""]:
        return _Nested(leaves[""], frozenset({LEVELS_KEY}))
    free = {place: kind for place, kind in levels.items() if place not in leaves}
    values = {
        place: value.made
        for place, value in _read_stated_values(free, metadata)
        if value.kind not in EMPTY
    }
    # Whoever has taken a value out of the metadata wants it no more.
    gone = {
        place for place, kind in free.items() if place and place not in metadata and kind in _STATED
    }
    free = {place: kind for place, kind in free.items() if place not in gone}
    empty = {place for place, kind in free.items() if place and kind in EMPTY}
    containers = _containers({place: free[place] for place in free if place not in values})
    attached = _read_attributes(free, containers, metadata)
    places = [place for place in free if place in values or (place and place in containers)]
    root = _assemble([*places, *leaves], {**values, **leaves}, containers, attached)
    return _Nested(root, frozenset({LEVELS_KEY, *values, *attached, *empty}))


def _read_stated_values(
    levels: Mapping[str, str], metadata: Mapping[str, MetadataValue]
) -> Iterator[tuple[str, Stated]]:
    """Yield the places of values and of empty containers, and what the metadata says they are."""
    for place, kind in levels.items():
        if place and kind in _VALUES and place in metadata and place != LEVELS_KEY:
            with suppress(ValueError):
                yield place, parse_value(kind, metadata[place])


def _containers(levels: Mapping[str, str]) -> dict[str, str]:
    """Return the kinds of containers by their names, outer ones before inner ones."""
    kind = levels.get("", "")
    containers = {"": kind if kind in _CONTAINERS else "dict"}
    above: list[str] = []
    for place in _in_order(filter(None, levels)):
        _leave(above, place)
        if levels[place] in _CONTAINERS and len(above) < _DEEPEST:
            containers[place] = levels[place]
            above.append(place)
    return containers


def _read_attributes(
    levels: Mapping[str, str], containers: Mapping[str, str], metadata: Mapping[str, MetadataValue]
) -> dict[str, PickledCall]:
    """Return the attributes of containers, by the attributes' own names."""
    attached: dict[str, PickledCall] = {}
    for container, kind in containers.items():
        place = _attributes_of(container)
        if kind in _MAPPINGS and levels.get(place) == _ATTRIBUTES and place in metadata:
            with suppress(ValueError):
                attached[place] = attributes(metadata[place].content)
    return attached


def _assemble(
    places: Iterable[str],
    values: Mapping[str, Any],
    containers: Mapping[str, str],
    attached: Mapping[str, PickledCall],
) -> Any:
    """Return the outermost container with all that belongs into it."""
    entries: dict[str, dict[str, Any]] = {name: {} for name in containers}
    places = [*places]
    parents = _innermost([*places, *containers], containers)
    for place in places:
        parent = parents[place]
        # That of a container is only taken, so that the order stays.
        entries[parent][_key(place, parent)] = values.get(place)
    *inner, _ = sorted(containers, key=len, reverse=True)
    for name in inner:
        parent, kind = parents[name], containers[name]
        if entries[name] or kind in EMPTY:
            made = _make_container(kind, entries[name], attached.get(_attributes_of(name)))
            entries[parent][_key(name, parent)] = made
        else:
            del entries[parent][_key(name, parent)]
    return _make_container(containers[""], entries[""], attached.get(_ATTRIBUTES))


def _attributes_of(container: str) -> str:
    return f"{container}.{_ATTRIBUTES}" if container else _ATTRIBUTES


def _key(place: str, parent: str) -> str:
    return place[len(parent) + 1 :] if parent else place


def _make_container(kind: str, entries: Mapping[str, Any], state: PickledCall | None) -> Any:
    """Return a container; a sequence with a key that is not a number becomes a dict."""
    numbers = {key: integer(key) for key in entries} if kind not in {"dict", "{}"} else {}
    if kind not in _MAPPINGS and all(n is not None and n >= 0 for n in numbers.values()):
        elements = [entries[key] for _, key in sorted((n, key) for key, n in numbers.items())]
        return elements if kind in {"list", "[]"} else tuple(elements)
    made: dict[Any, Any] = {}
    for key, entry in entries.items():
        number = numbers.get(key) if kind == "dict[int]" else None
        made[key if number is None else number] = entry
    return made if state is None else make_ordered_dict(made.items(), {_ATTRIBUTES: state})


# No letter of a name comes before a dot, so that nothing is between a place and what is in it.
_KEYS = str.maketrans({".": "\0", "\0": "\1\0", "\1": "\1\1"})


def _in_order(places: Iterable[str]) -> list[str]:
    """Return places sorted, so that right behind each is all that is in it."""
    return sorted(places, key=lambda place: place.translate(_KEYS))


def _leave(above: list[str], place: str) -> None:
    """Take from the end of `above`, where each is in the one before, what a place is not in."""
    while above and not place.startswith(f"{above[-1]}."):
        above.pop()


def _innermost(places: Iterable[str], containers: Collection[str]) -> dict[str, str]:
    """Return the innermost container that each place is in; the outermost of all is nameless."""
    found: dict[str, str] = {}
    above: list[str] = []
    for place in _in_order(set(places)):
        _leave(above, place)
        found[place] = above[-1] if above else ""
        if place and place in containers:
            above.append(place)
    return found


def with_leaves(header: Header) -> Header:
    """Return a header with the leaves that a PyTorch file of the same content would have.

    They are the values of its metadata that the levels name; none if these are invalid.
    """
    leaves = {
        place: _leaf(value.kind, value.made)
        for place, value in _read_stated_values(parse_levels(header.metadata), header.metadata)
        if place not in header.tensors and place not in header.aliases
    }
    return header._replace(leaves=leaves) if leaves else header


def _leaf(kind: str, made: Any) -> Leaf:
    if kind in {"{}", "[]", "()"}:
        return Leaf("dict" if kind == "{}" else "list" if kind == "[]" else "tuple", kind)
    if type(made) is PickledCall:
        made = complex(*made.arguments) if kind == "complex" else Size(*made.arguments)
    value = plain(made, _NOTHING)
    return Leaf(kind) if value is None else value.leaf
