"""The state of a scan of a pickle: objects on its stack and in its memo, and the findings.

Known objects are names, small numbers, and tuples of these; all others are `UNKNOWN`. Values are
nested only as deeply as the code that reads them needs, so their memory is bounded.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from weightctl.formats.pickles.literals import MODULES
from weightctl.text.untyped import is_object, is_tuple

_LONGEST_TUPLE = 64
_LARGEST_DICT = 16
_LARGEST = 1 << 62
_DTYPE = "numpy.dtype"
_WRAPPER = "NumpyArrayWrapper"
# A dtype whose elements have a fixed size, in NumPy's notation.
_SIZED = re.compile(r"[<>=|]?([biufcmMSaUV])(\d{1,9})(?:\[\w+\])?")
_NAMED_SIZES = {"bool": 1, "?": 1}
_OBJECTS = ("O8", "O4", "O", "|O")
_MOST_KEPT = 1 << 20
LARGEST_STACK = 1 << 24
LONGEST_NAME = 512


class LimitError(Exception):
    """A limit on the opcodes, memory or bytes of a scan was exceeded; the message names it."""


class _Unknown:
    """The type of the placeholder for an object that is not stored."""

    __slots__ = ()


UNKNOWN = _Unknown()


class Reference(NamedTuple):
    """A global on the stack or in the memo."""

    path: str


class SizedObject:
    """An object of NumPy or joblib whose state has the size of an array."""

    __slots__ = ("arguments", "path", "state")

    def __init__(self, path: str, arguments: Any) -> None:
        self.path = path
        self.arguments = arguments
        self.state: Any = None

    @property
    def is_array(self) -> bool:
        """Whether joblib writes the bytes of an array after the object."""
        return self.path.endswith(_WRAPPER)


_SCALARS = frozenset({str, int, type(None), Reference, _Unknown})


def evaluate_call(function: Any, arguments: Any) -> Any:
    """Return the result of a call: a `SizedObject` for a dtype or a joblib array, else unknown."""
    if isinstance(function, Reference) and (
        function.path == _DTYPE or function.path.endswith(_WRAPPER)
    ):
        return SizedObject(function.path, arguments if _is_flat(arguments) else UNKNOWN)
    return UNKNOWN


def _is_flat(value: Any) -> bool:
    return is_tuple(value) and _SCALARS.issuperset(map(type, value))


def tuple_of(elements: list[Any]) -> Any:
    """Return a tuple of scalars and of flat tuples; other elements become `UNKNOWN`."""
    if len(elements) > _LONGEST_TUPLE:
        return UNKNOWN
    if _SCALARS.issuperset(map(type, elements)):
        return tuple(elements)
    return tuple(each if type(each) in _SCALARS or _is_flat(each) else UNKNOWN for each in elements)


def dictionary_put(target: Any, flat: list[Any]) -> None:
    """Add keys and values to a dict; values for other objects are not stored."""
    if not is_object(target):
        return
    for key, value in zip(flat[::2], flat[1::2], strict=False):
        if isinstance(key, str) and (key in target or len(target) < _LARGEST_DICT):
            is_kept = type(value) in _SCALARS or _is_flat(value)
            is_dtype = isinstance(value, SizedObject) and not is_object(value.state)
            target[key] = value if is_kept or is_dtype else UNKNOWN


def build(target: Any, state: Any) -> None:
    """Set the state of an object."""
    if isinstance(target, SizedObject):
        target.state = state if is_object(state) or _is_flat(state) else UNKNOWN


def array_nbytes(wrapper: SizedObject) -> int | None:
    """Return how many bytes joblib writes after a wrapper; -1 for a pickle, None if unknown.

    Source: `NumpyArrayWrapper.read_array` in `joblib/numpy_pickle.py`. The padding is not included.
    """
    state = wrapper.state if is_object(wrapper.state) else {}
    shape, dtype = state.get("shape"), state.get("dtype")
    if not isinstance(dtype, SizedObject) or not is_tuple(dtype.arguments) or not dtype.arguments:
        return None
    code = dtype.arguments[0]
    if code in _OBJECTS:
        return -1
    # A dtype with fields can contain objects.
    if not is_tuple(dtype.state) or dtype.state[2:4] != (None, None):
        return None
    return times(itemsize(code), shape if is_tuple(shape) else None)


def times(size: int | None, shape: Any) -> int | None:
    """Return the size in bytes of an array, from the size of an element; None if it is unknown."""
    for each in shape if is_tuple(shape) else (shape,):
        if size is None or type(each) is not int or not 0 <= each < _LARGEST:
            return None
        size *= each
    return size


def is_padded(wrapper: SizedObject) -> bool | None:
    """Whether a byte with the length of the padding precedes the array; None if unknown."""
    state = wrapper.state
    if not is_object(state):
        return None
    alignment = state.get("numpy_array_alignment_bytes")
    return None if alignment is UNKNOWN else alignment is not None


def itemsize(code: Any) -> int | None:
    """Return the bytes of an element of a dtype that has a fixed size; None for other dtypes."""
    if not isinstance(code, str):
        return None
    if code in _NAMED_SIZES:
        return _NAMED_SIZES[code]
    found = _SIZED.fullmatch(code)
    if found is None:
        return None
    count = int(found[2])
    return 4 * count if found[1] == "U" else count


class _Memo:
    """The memo: known objects by index, and which indices are in use.

    `count` is the number of indices in use; MEMOIZE uses it as the next index. Consecutive indices,
    as writers use them, are stored as a range; other indices one by one.
    """

    __slots__ = ("_apart", "_first", "_kept", "_next")

    def __init__(self) -> None:
        self._kept: dict[int, Any] = {}
        self._first = self._next = 0
        self._apart: set[int] = set()

    @property
    def count(self) -> int:
        """The number of indices in use."""
        return self._next - self._first + len(self._apart)

    def put(self, index: int, value: Any) -> None:
        """Store an object; raises `ValueError` for a negative index."""
        if index < 0:
            raise ValueError("a memo index is negative")
        if value is not UNKNOWN and (len(self._kept) < _MOST_KEPT or index in self._kept):
            self._kept[index] = value
        else:
            self._kept.pop(index, None)
        if not self.count:
            self._first = self._next = index
        if index == self._next:
            self._next += 1
            while self._next in self._apart:
                self._apart.remove(self._next)
                self._next += 1
        elif not self._first <= index < self._next:
            if len(self._apart) >= _MOST_KEPT:
                raise LimitError(f"it uses more than {_MOST_KEPT} memo indices out of order")
            self._apart.add(index)

    def memoize(self, value: Any) -> None:
        """Store an object at the next index, as MEMOIZE does."""
        if self._first or self._apart or value is not UNKNOWN:
            self.put(self.count, value)
        else:
            self._next += 1

    def get(self, index: int) -> Any:
        """Return the object at an index, or `UNKNOWN`."""
        return self._kept.get(index, UNKNOWN)


class State:
    """The stack, the marks and the memo of a pickle, and what was found so far.

    `array` is set if joblib writes the bytes of an array after the current opcode.
    """

    __slots__ = (
        "acts",
        "array",
        "found",
        "identities",
        "marks",
        "memo",
        "problem",
        "result",
        "stack",
    )

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo = _Memo()
        self.found: dict[str, int] = {}
        self.identities: dict[Any, None] = {}
        self.problem = ""
        self.acts = False
        self.result: Any = UNKNOWN
        self.array: SizedObject | None = None

    def push(self, value: Any) -> None:
        if len(self.stack) >= LARGEST_STACK:
            raise LimitError(f"it has more than {LARGEST_STACK} objects on its stack")
        self.stack.append(value)

    def require(self, count: int) -> None:
        """Raise `ValueError` if there are fewer objects above the last mark."""
        if len(self.stack) - (self.marks[-1] if self.marks else 0) < count:
            raise ValueError("an opcode needs an object, but the stack is empty")

    def pop(self) -> Any:
        self.require(1)
        return self.stack.pop()

    def take(self, count: int) -> list[Any]:
        """Pop the last `count` objects."""
        self.require(count)
        taken = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return taken

    def since_mark(self) -> list[Any]:
        """Pop the objects above the last mark, and the mark."""
        if not self.marks:
            raise ValueError("an opcode needs a mark, but the stack has none")
        start = self.marks.pop()
        taken = self.stack[start:]
        del self.stack[start:]
        return taken

    def name(self, module: str, name: str, start: int) -> None:
        """Push a global, and record its name and the offset of its opcode."""
        module = MODULES.get(module, module)
        # A pickle can combine one long text with many others.
        path = f"{module[:LONGEST_NAME]}.{name[:LONGEST_NAME]}"
        self.found.setdefault(path, start)
        self.push(Reference(path))
