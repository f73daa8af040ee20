"""Writing of records and plain values as a pickle of protocol 2.

Only opcodes that `torch.load(weights_only=True)` supports are written.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any

from weightctl.formats.pickles.records import Global, PickledCall

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# The longest integer in bytes: its length is stored in one byte.
LONGEST_INTEGER = 255
_BYTE, _USHORT, _INT, _UINT, _DOUBLE = map(Struct, ("<cB", "<cH", "<ci", "<cI", ">cd"))
_NEW_OBJECT = "copyreg.__newobj__"
_SHORT_TUPLES = (b")", b"\x85", b"\x86", b"\x87")


class Persistent:
    """An object that the reader of the pickle provides; only its persistent id is written."""

    __slots__ = ("identity",)

    def __init__(self, identity: Any) -> None:
        self.identity = identity


def emit(value: Any) -> bytes:
    """Return the pickle of a value.

    The value consists of dicts, lists, tuples, strings, numbers, booleans, None, `Global`,
    `PickledCall` and `Persistent`. Raises `TypeError` for other types, `ValueError` for an integer
    of more than `LONGEST_INTEGER` bytes, and `RecursionError` for hundreds of levels.
    """
    emitter = _Emitter()
    emitter.put(value)
    return b"\x80\x02" + b"".join(emitter.pieces) + b"."


class _Emitter:
    """A pickle that is being written: its pieces so far, and the memo that its reader will have."""

    __slots__ = ("memo", "pieces")

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.memo: dict[str | tuple[str, str], int] = {}

    def put(self, value: Any) -> None:
        """Write opcodes that push a value."""
        write = _WRITERS.get(value.__class__)
        if write is None:
            raise TypeError(f"a {type(value).__name__} cannot be written to a pickle")
        write(self, value)

    def put_all(self, values: Iterable[Any], closing: bytes) -> None:
        """Write a mark, the values, and the opcode that consumes them."""
        self.pieces.append(b"(")
        for value in values:
            self.put(value)
        self.pieces.append(closing)

    def recalls(self, key: str | tuple[str, str]) -> bool:
        """Write an opcode that gets a value from the memo; return whether the memo has it."""
        number = self.memo.get(key)
        if number is None:
            return False
        self.pieces.append(_BYTE.pack(b"h", number) if number < 256 else _UINT.pack(b"j", number))
        return True

    def put_once(self, key: str | tuple[str, str], written: bytes) -> None:
        """Write a value, and store it in the memo."""
        number = self.memo[key] = len(self.memo)
        self.pieces.append(written)
        self.pieces.append(_BYTE.pack(b"q", number) if number < 256 else _UINT.pack(b"r", number))


def _none(emitter: _Emitter, _: None) -> None:
    emitter.pieces.append(b"N")


def _bool(emitter: _Emitter, value: bool) -> None:
    emitter.pieces.append(b"\x88" if value else b"\x89")


def _int(emitter: _Emitter, value: int) -> None:
    if 0 <= value < 1 << 8:
        emitter.pieces.append(_BYTE.pack(b"K", value))
    elif 0 <= value < 1 << 16:
        emitter.pieces.append(_USHORT.pack(b"M", value))
    elif -1 << 31 <= value < 1 << 31:
        emitter.pieces.append(_INT.pack(b"J", value))
    else:
        length = (value if value >= 0 else ~value).bit_length() // 8 + 1
        if length > LONGEST_INTEGER:
            raise ValueError(
                f"weightctl cannot write an integer of {length} bytes to a pickle: the limit is "
                f"{LONGEST_INTEGER} bytes"
            )
        emitter.pieces.append(_BYTE.pack(b"\x8a", length))
        emitter.pieces.append(value.to_bytes(length, "little", signed=True))


def _float(emitter: _Emitter, value: float) -> None:
    emitter.pieces.append(_DOUBLE.pack(b"G", value))


def _text(emitter: _Emitter, value: str) -> None:
    if not emitter.recalls(value):
        raw = value.encode("utf-8", "surrogatepass")
        emitter.put_once(value, _UINT.pack(b"X", len(raw)) + raw)


def _global(emitter: _Emitter, value: Global) -> None:
    if not emitter.recalls((value.module, value.name)):
        written = f"c{value.module}\n{value.name}\n".encode()
        emitter.put_once((value.module, value.name), written)


def _tuple(emitter: _Emitter, value: tuple[Any, ...]) -> None:
    if len(value) >= len(_SHORT_TUPLES):
        emitter.put_all(value, b"t")
        return
    for element in value:
        emitter.put(element)
    emitter.pieces.append(_SHORT_TUPLES[len(value)])


def _list(emitter: _Emitter, value: list[Any]) -> None:
    emitter.pieces.append(b"]")
    if value:
        emitter.put_all(value, b"e")


def _dict(emitter: _Emitter, value: dict[Any, Any]) -> None:
    emitter.pieces.append(b"}")
    _pairs(emitter, value.items())


def _pairs(emitter: _Emitter, pairs: Iterable[tuple[Any, Any]]) -> None:
    flat = [part for pair in pairs for part in pair]
    if flat:
        emitter.put_all(flat, b"u")


def _call(emitter: _Emitter, value: PickledCall) -> None:
    if value.path == _NEW_OBJECT and value.arguments:
        # An object that is created without its constructor has an opcode of its own.
        emitter.put(value.arguments[0])
        emitter.put(value.arguments[1:])
        emitter.pieces.append(b"\x81")
    else:
        emitter.put(value.function)
        emitter.put(value.arguments)
        emitter.pieces.append(b"R")
    if value.elements:
        emitter.put_all(value.elements, b"e")
    _pairs(emitter, value.pairs)
    for state in value.states:
        emitter.put(state)
        emitter.pieces.append(b"b")


def _persistent(emitter: _Emitter, value: Persistent) -> None:
    emitter.put(value.identity)
    emitter.pieces.append(b"Q")


_WRITERS: dict[type, Callable[[_Emitter, Any], None]] = {
    type(None): _none, bool: _bool, int: _int, float: _float, str: _text, tuple: _tuple,
    list: _list, dict: _dict, Global: _global, PickledCall: _call, Persistent: _persistent,
}  # fmt: skip
