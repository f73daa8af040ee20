"""Metadata that records how the names of a PyTorch checkpoint were nested.

In the tree, `model.layer.0.weight` is one name. In a pickle, it can be the entry `layer.0.weight`
of a dict that is itself the entry `model` of another dict. The metadata value `pytorch.levels` is a
JSON object with the kind of each container and plain value, by its full name. In this module, such
a name is called a place.
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
from weightctl.storage.base import HeldRange
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

# The kind of the root if the checkpoint is a single tensor.
_BARE = "tensor"
# The attribute of a state dict that has the versions of its modules.
_ATTRIBUTES = "_metadata"
# Kinds that exist only with a metadata value. `list` and `tuple` are not among them, because they
# are also the kinds of containers.
_STATED = (PLAIN.keys() - {"list", "tuple"}) | EMPTY.keys()
_VALUES = PLAIN.keys() | EMPTY.keys()
_MAPPINGS = {"dict", "dict[int]", "{}"}
_CONTAINERS = {"list", "tuple", *_MAPPINGS, *EMPTY}
# Other readers of pickles can be recursive, and checkpoints are not nested as deeply.
_DEEPEST = 100
_NOTHING = HeldRange(memoryview(b""))


class _Nested(NamedTuple):
    """The root object for a pickle, and the metadata keys that it already represents."""

    root: Any
    used: frozenset[str]


def levels_value(levels: Mapping[str, str]) -> MetadataValue:
    """Return the metadata value for these kinds by place."""
    return MetadataValue(TEXT, json.dumps(dict(levels), separators=(",", ":")))


def parse_levels(metadata: Mapping[str, MetadataValue]) -> dict[str, str]:
    """Return the kind of each place; empty if the metadata value is missing or invalid."""
    value = metadata.get(LEVELS_KEY)
    try:
        levels = None if value is None else json.loads(value.content)
    except (TypeError, ValueError, RecursionError):
        return {}  # another program's value
    return levels if is_text_map(levels) else {}


def restrict_levels(
    metadata: Mapping[str, MetadataValue], names: Collection[str]
) -> dict[str, MetadataValue]:
    """Return metadata whose levels describe only the places of these names.

    `names` are the names of tensors and values. Their containers and the attributes of these
    containers are kept; the attributes of other containers are removed.
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
    """Yield the prefixes of a name that end before a dot."""
    end = name.find(".")
    while end >= 0:
        yield name[:end]
        end = name.find(".", end + 1)


def is_value(kind: str | None) -> bool:
    """Whether the metadata has the value of a place of this kind."""
    return kind in PLAIN or kind == _ATTRIBUTES


def nest_leaves(leaves: Mapping[str, Any], metadata: Mapping[str, MetadataValue]) -> _Nested:
    """Return the nested containers of `leaves`, by full name, and of the values in the metadata.

    Invalid entries of the metadata are ignored.
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
    # A value that was removed from the metadata is not written.
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
    """Yield the values and empty containers that the metadata has, with their places."""
    for place, kind in levels.items():
        if place and kind in _VALUES and place in metadata and place != LEVELS_KEY:
            with suppress(ValueError):
                yield place, parse_value(kind, metadata[place])


def _containers(levels: Mapping[str, str]) -> dict[str, str]:
    """Return the kinds of the containers by place, outer containers first."""
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
    """Return the `_metadata` attributes of containers, by the places of the attributes."""
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
    """Return the outermost container with all its entries.

    `places` are in the order of the entries. `values`, the kinds of `containers` and their
    `attached` attributes are by place.
    """
    entries: dict[str, dict[str, Any]] = {name: {} for name in containers}
    places = [*places]
    parents = _innermost([*places, *containers], containers)
    for place in places:
        parent = parents[place]
        # The entry of a container only reserves its key, which keeps the order.
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
    """Return a container; a sequence with a key that is not an integer becomes a dict."""
    numbers = {key: integer(key) for key in entries} if kind not in {"dict", "{}"} else {}
    if kind not in _MAPPINGS and all(n is not None and n >= 0 for n in numbers.values()):
        elements = [entries[key] for _, key in sorted((n, key) for key, n in numbers.items())]
        return elements if kind in {"list", "[]"} else tuple(elements)
    made: dict[Any, Any] = {}
    for key, entry in entries.items():
        number = numbers.get(key) if kind == "dict[int]" else None
        made[key if number is None else number] = entry
    return made if state is None else make_ordered_dict(made.items(), {_ATTRIBUTES: state})


# Dots sort before all other characters, so that no place is between a place and those below it.
_KEYS = str.maketrans({".": "\0", "\0": "\1\0", "\1": "\1\1"})


def _in_order(places: Iterable[str]) -> list[str]:
    """Return places sorted so that each is directly followed by the places below it."""
    return sorted(places, key=lambda place: place.translate(_KEYS))


def _leave(above: list[str], place: str) -> None:
    """Remove places from the end of `above` until `place` is below the last one."""
    while above and not place.startswith(f"{above[-1]}."):
        above.pop()


def _innermost(places: Iterable[str], containers: Collection[str]) -> dict[str, str]:
    """Return the innermost container of each place; the outermost container has an empty name."""
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

    The leaves are the values of the metadata that the levels name; there are none if the levels are
    invalid.
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
