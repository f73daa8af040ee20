"""The tree of names in a PyTorch pickle: tensors and other leaves."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from weightctl.formats.base import LEVELS_KEY
from weightctl.formats.pickles.records import Global, Pairs, PickledCall
from weightctl.formats.pytorch.children import (
    children,
    is_module,
    kind_of,
    list_sequences,
    module_weight,
    of_module,
    weight,
)
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
    from weightctl.formats.pytorch.tensors import Locate
    from weightctl.storage.byte_range import ByteRange

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
        """Count bytes that are copied."""
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
            from weightctl.formats.pytorch.levels import levels_value  # not for flat checkpoints

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
