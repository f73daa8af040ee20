"""The named children of a pickle's records: entries of containers and of objects."""

from __future__ import annotations

from types import NoneType
from typing import TYPE_CHECKING, Any

from weightctl.formats.pickles.records import Blob, Global, Pairs, PickledCall
from weightctl.formats.pytorch.records import Array, Encoded, Items, Size, Storage, TensorRecord
from weightctl.text.untyped import is_list, is_tuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

# Attributes in which nn.Module keeps its tensors and modules; state_dict() omits them from names.
_MODULE = ("_parameters", "_buffers", "_modules")
_HIDDEN = "_non_persistent_buffers_set"
_BELOW = {*_MODULE, _HIDDEN}
_LONGEST_NUMBER = 256


def children(record: Any) -> Iterator[tuple[str, Any]]:
    """Yield the entries of a record with their keys or numbers as names; names can repeat."""
    if is_list(record) or is_tuple(record):
        yield from _number_elements(record)
    elif type(record) is Pairs:
        yield from _by_key(record.pairs)
    elif type(record) is Items:
        yield from _by_key(_pairs_of(record))
    elif type(record) is Size:
        yield from _number_elements(record.sizes if is_tuple(record.sizes) else ())
    elif type(record) is Array:
        yield from _number_elements(record.content if is_list(record.content) else ())
    elif type(record) is PickledCall:
        yield from _of_object(record)


def _number_elements(elements: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    return ((str(number), element) for number, element in enumerate(elements))


def _pairs_of(items: Items) -> Iterator[tuple[Any, Any]]:
    pairs = items.pairs.pairs if type(items.pairs) is Pairs else items.pairs
    for pair in pairs if is_list(pairs) or is_tuple(pairs) else ():
        if (is_list(pair) or is_tuple(pair)) and len(pair) == 2:
            yield pair[0], pair[1]


def _by_key(pairs: Iterable[tuple[Any, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield the values of a mapping; as in Python, the last value of a repeated key."""
    pairs = [*pairs]
    if all(type(key) is str for key, _ in pairs):
        yield from dict(pairs).items()
        return
    made: dict[object, tuple[str, Any]] = {}
    for number, (key, value) in enumerate(pairs):
        label = _label(key)
        # Objects are equal keys only if they are the same object, and pickles do not repeat such a
        # key.
        identity: object = number if label.startswith("<") else (_types(key), label)
        made[identity] = (label, value)
    yield from made.values()


def _types(key: Any) -> tuple[str, ...]:
    """Return the types of a key and of its elements: 1 and "1" are different keys."""
    return tuple(type(each).__name__ for each in (key, *(key if is_tuple(key) else ())))


def _of_object(record: PickledCall) -> Iterator[tuple[str, Any]]:
    arguments = (each for each in record.arguments if not _is_bare(each))
    yield from _number_elements((*record.elements, *arguments))
    yield from _by_key(_attributes(record))
    for state in record.states:
        if not _is_bare(state) and not any(type(part) is Pairs for part in _parts(state)):
            yield "state", state
    yield from _by_key(record.pairs)


def _parts(state: Any) -> tuple[Any, ...]:
    """Return the mappings of a state; the state of a class with slots is a pair of mappings."""
    return state if is_tuple(state) and len(state) == 2 else (state,)


def _attributes(record: PickledCall) -> Iterator[tuple[Any, Any]]:
    """Yield the attributes that were set on an object."""
    for state in record.states:
        for part in _parts(state):
            if type(part) is Pairs:
                yield from part.pairs


def _is_bare(argument: Any) -> bool:
    """Whether a value tells users nothing: None, a global, raw bytes, or an empty tuple."""
    return type(argument) in {NoneType, Global, Blob, Encoded} or argument == ()


def _label(key: Any) -> str:
    if type(key) is str:
        return key
    if type(key) is Global:
        return key.path
    if type(key) in {int, bool, float, NoneType} and not _is_beyond(key):
        return str(key)
    if is_tuple(key) and len(key) < 9 and all(map(_is_short, key)):
        return "(" + ", ".join(map(_label, key)) + ")"
    return f"<{type(key).__name__.lower()}>"


def _is_short(value: Any) -> bool:
    # Many keys can share one long part, and each label would repeat it.
    return (type(value) is str and len(value) < 100) or (
        type(value) is int and not _is_beyond(value)
    )


def _is_beyond(key: Any) -> bool:
    """Whether a number is too long to be written in decimal."""
    return type(key) is int and key.bit_length() > _LONGEST_NUMBER


def kind_of(record: Any) -> str:
    """Return the kind of a container, as `LEVELS_KEY` records it."""
    if is_list(record) or is_tuple(record):
        return type(record).__name__
    keys = [key for key, _ in record.pairs] if type(record) is Pairs else []
    return "dict[int]" if keys and all(type(key) is int for key in keys) else "dict"


def weight(record: Any) -> int:
    """Return the cost of visiting a record once."""
    return sum(map(len, list_sequences(record)))


def list_sequences(record: Any) -> Iterator[Sequence[Any]]:
    """Yield the sequences that a record consists of; records can share a sequence."""
    if type(record) is PickledCall:
        yield from (record.arguments, record.pairs, record.elements, record.states)
        for state in record.states:
            yield from map(_sequence, _parts(state))
    elif type(record) in {Items, Size}:
        yield _sequence(record[0])
    else:
        yield _sequence(record.content if type(record) is Array else record)


def _sequence(record: Any) -> Sequence[Any]:
    if is_list(record) or is_tuple(record):
        return record
    return record.pairs if type(record) is Pairs else ()


def module_weight(record: Any) -> int:
    """Return the additional cost of a module, whose tensors and modules are one level below."""
    pairs = _attributes(record) if type(record) is PickledCall else ()
    held = [value for key, value in pairs if type(key) is str and key in _BELOW]
    return sum(
        len(each.elements if type(each) is PickledCall else _sequence(each)) for each in held
    )


# Modules.


def is_script(record: Any) -> bool:
    """Whether an object has a class that is defined in a TorchScript archive."""
    return type(record) is PickledCall and record.path.startswith("__torch__.")


def is_module(record: Any) -> bool:
    """Whether an object is a pickled nn.Module or a TorchScript module."""
    if type(record) is not PickledCall:
        return False
    keys = {key for key, _ in _attributes(record) if type(key) is str}
    return is_script(record) or {"_parameters", "_modules"} <= keys


def of_module(record: PickledCall) -> Iterator[tuple[str, Any]]:
    """Yield the tensors and modules in a module, with their names in state_dict()."""
    if is_script(record):
        for key, value in _attributes(record):
            if type(key) is str and type(value) in {
                TensorRecord,
                Storage,
                PickledCall,
                list,
                tuple,
                Pairs,
            }:
                yield key, value
        return
    attributes = dict(_by_key(_attributes(record)))
    hidden = attributes.get(_HIDDEN)
    names = hidden.elements if type(hidden) is PickledCall else ()
    left_out = {name for name in names if type(name) is str}
    for held in _MODULE:
        below = attributes.get(held)
        for key, value in _by_key(below.pairs) if type(below) is Pairs else ():
            if value is not None and not (held == "_buffers" and key in left_out):
                yield key, value
