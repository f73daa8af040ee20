"""The tree of names in a PyTorch pickle: tensors and other leaves."""

from __future__ import annotations

import json
from types import NoneType
from typing import TYPE_CHECKING, Any

from weightctl.formats.base import LEVELS_KEY
from weightctl.formats.pickles.records import Blob, Global, Pairs, PickledCall
from weightctl.formats.pytorch.records import (
    Array,
    Enclosed,
    Encoded,
    Items,
    Size,
    Storage,
    TensorRecord,
)
from weightctl.formats.pytorch.tensors import (
    PlacedTensor,
    Streams,
    UnsoundTensorError,
    flat,
    place_array,
    place_tensor,
)
from weightctl.formats.pytorch.values import PlainValue, plain
from weightctl.text.untyped import is_list, is_tuple
from weightctl.weights.info import Extent, Leaf, TensorInfo
from weightctl.weights.metadata import MetadataValue

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from weightctl.formats.pytorch.tensors import Locate
    from weightctl.storage.base import ByteRange

# Attributes in which nn.Module keeps its tensors and modules; state_dict() omits them from names.
_MODULE = ("_parameters", "_buffers", "_modules")
_HIDDEN = "_non_persistent_buffers_set"
_BELOW = {*_MODULE, _HIDDEN}
_LONGEST_NUMBER = 256
_MAX_DEPTH = 100
# Shared sequences of up to this many elements are not counted as repeated.
_FEW = 8
_SHORT = {bool, float, complex, TensorRecord}
# The number of fields of a quantizer that are read.
_MOST_PARTS = 4
_ATTRIBUTES = "_metadata"
_LONGEST = 64
# The number of names, over all descriptions of a shared object, after which it is only referred to.
_MANY = 1000
# Classes that are transparent: only their entries are listed.
_TRANSPARENT = {"argparse.Namespace", "builtins.set", "builtins.frozenset"}
_TENSORS = {TensorRecord, Storage, Enclosed}


class UnsoundTreeError(ValueError):
    """The content of a pickle is not a valid tree of tensors."""


class _Allowance:
    """Limits on the work for a pickle of this many bytes; all methods raise `UnsoundTreeError`.

    Each object takes at least a byte of the pickle, so visiting each object once is always allowed.
    Visiting objects repeatedly, because several others refer to them, has a limit of its own.
    """

    def __init__(self, nbytes: int) -> None:
        self._visits = 20_000 + 4 * nbytes
        self._repeated = 10_000 + nbytes // 16
        self._letters = 10_000_000 + 64 * nbytes
        self._held = 1_000_000 + 4 * nbytes
        self._entered: set[int] = set()
        self._repeating = 0

    def visit(self, name: str, depth: int = 0) -> None:
        """Count a name, and the visit of its object at `depth` levels."""
        if depth > _MAX_DEPTH:
            raise UnsoundTreeError(f"it is nested more than {_MAX_DEPTH} levels deep")
        self._visits -= 1
        self._letters -= len(name)
        if self._repeating:
            self._repeated -= 1
        self._require_rest()

    def look(self, record: Any) -> None:
        """Count the cost of examining a record once."""
        if record is None or type(record) in _SHORT:
            return
        if type(record) is str:
            self._spend(0, len(record))
        elif type(record) is int:
            # Writing an integer in decimal takes more time than its length suggests.
            self._spend(0, record.bit_length())
        else:
            self._spend(weight(record))
            self._spend(module_weight(record))
            held = record.sizes if type(record) is Size else record
            texts = held if is_list(held) or is_tuple(held) else ()
            self._spend(0, sum(len(each) for each in texts if type(each) is str))

    def hold(self, nbytes: int) -> None:
        self._held -= nbytes
        if self._held < 0:
            raise UnsoundTreeError(
                "too many tensors share the same storage: reading them would need far more memory "
                "than the size of the file"
            )

    def enter(self, record: Any) -> None:
        """Start counting the entries of a record, as repeated if it was entered before."""
        parts = {id(record), *(id(part) for part in list_sequences(record) if len(part) > _FEW)}
        self._repeating += bool(self._repeating or not self._entered.isdisjoint(parts))
        self._entered |= parts

    def leave(self) -> None:
        """Stop counting the entries of the record that was entered last."""
        self._repeating -= bool(self._repeating)

    def _spend(self, visits: int, letters: int = 0) -> None:
        self._visits -= visits
        self._letters -= letters
        self._repeated -= visits if self._repeating else 0
        self._require_rest()

    def _require_rest(self) -> None:
        if self._visits < 0 or self._letters < 0 or self._repeated < 0:
            raise UnsoundTreeError("its objects refer to the same objects too many times")


class Tree:
    """The tensors, leaves and metadata in a pickle, by name; raises `UnsoundTreeError`.

    `root` is the object of the pickle `data`, which begins at `base` in the file, and `locate`
    returns the place of a storage. `unknown` counts the objects of each unsupported class, and
    `unread` are the names of tensors of unsupported types. If two objects have the same name, a
    number is appended to the second name; `renamed` lists these names.
    """

    def __init__(
        self, root: Any, data: ByteRange, base: int, locate: Locate, *, big_endian: bool = False
    ) -> None:
        self.tensors: dict[str, TensorInfo] = {}
        self.extents: dict[str, Extent] = {}
        self.aliases: dict[str, str] = {}
        self.leaves: dict[str, Leaf] = {}
        self.metadata: dict[str, MetadataValue] = {}
        self.unknown: dict[str, int] = {}
        self.unread: list[str] = []
        self.renamed: list[str] = []
        self.divided: list[str] = []
        self._levels: dict[str, str] = {}
        self._data, self._base, self._locate = data, base, locate
        self._big_endian = big_endian
        self._streams = Streams(data, base, big_endian=big_endian)
        # Used names, each with the number that is tried first for the next object of this name.
        self._taken: dict[str, int] = {}
        # The first name of each tensor: by its record, and by the place of its bytes.
        self._first: dict[object, str] = {}
        self._above: set[int] = set()
        # Objects without tensors that were described: other names only refer to them.
        self._references: dict[int, Leaf] = {}
        self._mentions: dict[int, int] = {}
        self._allowance = _Allowance(len(data))
        self._walk("", root, 0, is_within=False)
        if type(root) in {*_TENSORS, Array} and "" in self.tensors:
            self._levels[""] = "tensor"
        if self._levels:
            from weightctl.formats.pytorch.nesting import levels_value  # not for flat checkpoints

            self.metadata[LEVELS_KEY] = levels_value(self._levels)

    def _walk(self, name: str, record: Any, depth: int, *, is_within: bool) -> None:
        """Add a record and all objects below it; `is_within` is true within a module."""
        self._allowance.visit(name, depth)
        if type(record) in _TENSORS:
            self._put_tensor(name, record)
            return
        if type(record) is Array and self._put_array(name, record):
            return
        self._allowance.look(record)
        value = plain(record, self._data)
        if value is not None:
            self._put_plain(name, value, is_within=is_within)
            return
        if id(record) in self._above:
            self.leaves[name] = Leaf("reference", "to an object that contains it")
            return
        if id(record) in self._references:
            self.leaves[name] = self._references[id(record)]
            return
        self._above.add(id(record))
        self._allowance.enter(record)
        tensors, places = len(self.tensors) + len(self.aliases), len(self._taken)
        self._walk_below(name, record, depth, is_within=is_within)
        self._allowance.leave()
        self._above.discard(id(record))
        if len(self.tensors) + len(self.aliases) == tensors:
            self._tell(name, record, len(self._taken) - places)

    def _tell(self, name: str, record: Any, places: int) -> None:
        """Decide whether other names of an object without tensors only refer to this one."""
        count = self._mentions[id(record)] = self._mentions.get(id(record), 0) + 1
        if type(record) is PickledCall:
            self._references[id(record)] = Leaf(record.path, f"same as `{name}`")
        elif count * places > _MANY:
            self._references[id(record)] = Leaf("reference", f"same as `{name}`")

    def _place(self, name: str, key: str) -> str:
        """Return a unique name for a child, and reserve it."""
        wanted = found = f"{name}.{key}" if name else key
        number = self._taken.get(wanted)
        if number is not None:
            while (found := f"{wanted}#{number}") in self._taken:
                number += 1
            self._taken[wanted] = number + 1
            self.renamed.append(found)
        self._taken[found] = 2
        return found

    def _walk_below(self, name: str, record: Any, depth: int, *, is_within: bool) -> None:
        """Add the entries of a container or an object."""
        is_a_module = is_module(record)
        below = [*(of_module(record) if is_a_module else children(record))]
        if type(record) is PickledCall and record.path not in _TRANSPARENT:
            self.unknown[record.path] = self.unknown.get(record.path, 0) + 1
            self.leaves[name] = Leaf(record.path)
            if record.path.startswith(("torch.sparse_", "torch.nested")):
                # The shape of the whole is kept, also of an attribute of a module.
                is_within = is_a_module = False
                self.divided.append(f"{name} ({record.path.removeprefix('torch.')})")
        if not is_within:
            self._put_level(name, record, is_empty=not below)
        attributes = record.attributes if type(record) is Pairs else None
        if type(attributes) is Pairs:
            self._put_attributes(name, attributes)
        for key, value in below:
            self._walk(self._place(name, key), value, depth + 1, is_within=is_within or is_a_module)

    def _put_level(self, name: str, record: Any, *, is_empty: bool) -> None:
        kind = kind_of(record)
        if not is_empty:
            if name or kind != "dict":
                self._levels[name] = kind
        elif name and name not in self.leaves:
            self.leaves[name] = Leaf("dict", "{}")
            self._levels[name] = "{}"
            self.metadata[name] = MetadataValue("string", "{}")

    def _put_tensor(self, name: str, record: TensorRecord | Storage | Enclosed) -> None:
        if not self._is_known(name, record):
            try:
                placed = self._place_record(record)
            except UnsoundTensorError as error:
                raise UnsoundTreeError(f"tensor `{name}` {error}") from error
            if placed is None:
                self.unread.append(name)
                self.leaves[name] = Leaf("torch.Tensor", "of an unsupported type")
                return
            self._put(name, placed, record)
        if type(record) is TensorRecord and is_tuple(record.quantizer) and record.quantizer:
            self._put_quantizer(name, record.quantizer)

    def _place_record(self, record: TensorRecord | Storage | Enclosed) -> PlacedTensor | None:
        if isinstance(record, Enclosed):
            return self._hold(self._streams.place(record))
        if isinstance(record, Storage):
            return place_tensor(flat(record), self._locate)
        if isinstance(record.storage, Enclosed):
            return self._hold(self._streams.place(record.storage, record))
        return place_tensor(record, self._locate)

    def _put_quantizer(self, name: str, quantizer: tuple[Any, ...]) -> None:
        scheme, *parts = quantizer[:_MOST_PARTS]
        is_whole = len(parts) == 2
        labels = ("scale", "zero_point") if is_whole else ("scales", "zero_points", "axis")
        if type(scheme) is Global:
            self.leaves[self._place(name, "qscheme")] = Leaf("torch.qscheme", scheme.path)
        for label, part in zip(labels, parts, strict=False):
            self._walk(self._place(name, label), part, _MAX_DEPTH, is_within=True)

    def _put_array(self, name: str, array: Array) -> bool:
        if self._is_known(name, array):
            return True
        content = array.content
        text = content.text if type(content) is Encoded else content
        self._allowance.hold(len(text) if type(text) is str else 0)
        try:
            placed = place_array(array, self._data, self._base, big_endian=self._big_endian)
        except UnsoundTensorError as error:
            raise UnsoundTreeError(f"array `{name}` {error}") from error
        self._hold(placed)
        if placed is None:
            return False
        self._put(name, placed, array)
        return True

    def _hold(self, placed: PlacedTensor | None) -> PlacedTensor | None:
        """Count the bytes that are copied into memory for a tensor."""
        self._allowance.hold(len(placed.extent.held or b"") if placed is not None else 0)
        return placed

    def _is_known(self, name: str, record: TensorRecord | Storage | Enclosed | Array) -> bool:
        """Whether a tensor already has a name; if so, record `name` as a further name."""
        first = self._first.get(id(record))
        if first is not None:
            self.aliases[name] = first
        return first is not None

    def _put(
        self, name: str, placed: PlacedTensor, record: TensorRecord | Storage | Enclosed | Array
    ) -> None:
        first = name
        if placed.extent.nbytes and placed.extent.held is None:
            place = (placed.shape, placed.encoding.name, placed.extent)
            first = self._first.setdefault(place, name)
        self._first[id(record)] = first
        if first != name:
            self.aliases[name] = first
            return
        self.tensors[name] = TensorInfo(name, placed.shape, placed.encoding)
        self.extents[name] = placed.extent

    def _put_plain(self, name: str, value: PlainValue, *, is_within: bool) -> None:
        # The None values of a module's attributes are omitted, because they are many.
        if is_within and value.leaf.kind == "None":
            return
        self.leaves[name] = value.leaf
        if is_within or not value.kind or not name:
            return
        self._levels[name] = value.kind
        if value.value is not None:
            self.metadata[name] = value.value

    def _put_attributes(self, name: str, attributes: Pairs) -> None:
        """Store the `_metadata` of a state dict, which has the versions of its modules."""
        for key, value in attributes.pairs:
            content = self._as_json(value, 8) if key == _ATTRIBUTES else None
            if content is not None:
                place = self._place(name, _ATTRIBUTES)
                self.metadata[place] = MetadataValue("string", json.dumps(content))
                self._levels[place] = _ATTRIBUTES

    def _as_json(self, record: Any, depth: int) -> Any:
        """Return nested mappings of plain values in a form that JSON supports; else None."""
        if type(record) in {str, int, float, bool}:
            self._allowance.look(record)
            # Longer integers are not meant to be read.
            return None if type(record) is int and record.bit_length() > _LONGEST else record
        if type(record) not in {Pairs, Items} or not depth:
            return None
        self._allowance.look(record)
        made: dict[str, Any] = {}
        for key, value in children(record):
            self._allowance.visit(key)
            made[key] = self._as_json(value, depth - 1)
        return {key: value for key, value in made.items() if value is not None}


# The named children of a pickle's records: entries of containers and of objects.


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
