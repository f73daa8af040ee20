"""Conversion of plain values from metadata to objects for a pickle."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.dtype import encoding_by_id
from weightctl.formats.pickles.records import Global, PickledCall
from weightctl.formats.pickles.writing import LONGEST_INTEGER
from weightctl.text.untyped import is_list, is_object, is_sequence
from weightctl.weights.metadata import INTEGERS, TEXT, MetadataValue, element_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# Longer integers would not fit into a pickle.
_DECIMAL = re.compile(r"0|-?[1-9][0-9]{0,599}")
# The depth is limited, because other readers of pickles can be recursive.
_DEEPEST = 16


class Stated(NamedTuple):
    """A value from the metadata: its kind, and the object for the pickle."""

    kind: str
    made: Any


def make_ordered_dict(
    pairs: Iterable[tuple[Any, Any]] = (), state: dict[str, Any] | None = None
) -> PickledCall:
    """Return the record of an `OrderedDict`; `state` has its attributes."""
    made = PickledCall(Global("collections", "OrderedDict"), ())
    made.pairs = list(pairs)
    made.states = [] if state is None else [state]
    return made


def integer(written: str) -> int | None:
    """Return the integer of a decimal text; None if the text is not an integer."""
    return int(written) if _DECIMAL.fullmatch(written) else None


def attributes(content: Any) -> PickledCall:
    """Return the `_metadata` of a state dict from its JSON; raises `ValueError` if invalid."""
    try:
        document = json.loads(_exactly(str)(content))
    except RecursionError as error:
        raise ValueError("the value is nested too deeply") from error
    if not is_object(document):
        raise ValueError("the value is not a JSON object")
    return make_ordered_dict((name, _from_json(each, _DEEPEST)) for name, each in document.items())


def _from_json(content: Any, depth: int) -> Any:
    if not depth:
        raise ValueError("the value is nested too deeply")
    if is_object(content):
        return {key: _from_json(each, depth - 1) for key, each in content.items()}
    if is_list(content):
        return [_from_json(each, depth - 1) for each in content]
    return _fitting(content) if type(content) is int else content


def _fitting(content: int) -> int:
    if content.bit_length() >= 8 * LONGEST_INTEGER:
        raise ValueError("an integer is too long")
    return content


def _exactly(kind: type) -> Callable[[Any], Any]:
    def check_type(content: Any) -> Any:
        if type(content) is not kind:
            raise ValueError(
                f"a value of type {kind.__name__} is expected, not {type(content).__name__}"
            )
        return content

    return check_type


def _integer(content: Any) -> int:
    made = integer(content) if isinstance(content, str) else content
    if type(made) is not int:
        raise ValueError("the value is not an integer")
    return _fitting(made)


def _complex(content: Any) -> PickledCall:
    parts = _list(content)
    if list(map(type, parts)) != [float, float]:
        raise ValueError("the value is not a complex number")
    return PickledCall(Global("__builtin__", "complex"), tuple(parts))


def _list(content: Any, depth: int = _DEEPEST) -> list[Any]:
    if not is_sequence(content) or not depth:
        raise ValueError("the value is not an array, or is nested too deeply")
    return [
        _list(element, depth - 1) if is_sequence(element) else _element(element)
        for element in content
    ]


def _element(content: Any) -> Any:
    if type(content) not in {int, float, bool, str}:
        raise ValueError("an array element is not a number, a bool or a string")
    return _fitting(content) if type(content) is int else content


def _size(content: Any) -> PickledCall:
    sizes = tuple(_list(content))
    if not all(type(size) is int for size in sizes):
        raise ValueError("a dimension of a `torch.Size` is not an integer")
    return PickledCall(Global("torch", "Size"), (sizes,))


def _dtype(content: Any) -> Global:
    module, _, name = str(content).partition(".")
    if module != "torch" or encoding_by_id("pytorch", name) is None:
        raise ValueError("the value is not a torch dtype")
    return Global(module, name)


# For each kind, the function that creates the object from the content of a metadata value. It
# raises `ValueError` if the content is invalid.
PLAIN: dict[str, Callable[[Any], Any]] = {
    "None": lambda _: None,
    "int": _integer, "float": _exactly(float), "bool": _exactly(bool), "str": _exactly(str),
    "complex": _complex, "torch.dtype": _dtype, "torch.Size": _size,
    "list": _list, "tuple": lambda content: tuple(_list(content)),
}  # fmt: skip
# Kinds of empty containers. Containers of other kinds are omitted if they have no entries.
EMPTY: dict[str, Any] = {"{}": {}, "[]": [], "()": ()}
# Kinds whose metadata value is the name of the kind. If an entry has other content, it was changed.
_WORDS = {"None", *EMPTY}
_KINDS = {
    **dict.fromkeys(INTEGERS, "int"), "f32": "float", "f64": "float", "bool": "bool",
    "string": "str", TEXT: "str",
}  # fmt: skip


def parse_value(kind: str, value: MetadataValue) -> Stated:
    """Return a metadata value as an object of the stated kind.

    If the value was changed to another type, the result has the kind of that type. Raises
    `ValueError` if it cannot be stored as either.
    """
    if kind not in _WORDS or value.content == kind:
        if kind in EMPTY:
            return Stated(kind, EMPTY[kind])
        with suppress(ValueError):
            return Stated(kind, PLAIN[kind](value.content))
    own = "list" if element_type(value.type) is not None else _KINDS.get(value.type, "")
    if own not in PLAIN:
        raise ValueError("a value of this type cannot be stored")
    return Stated(own, PLAIN[own](value.content))
