"""Pickles assembled opcode by opcode, in ways that no pickler would, and without weightctl."""

from __future__ import annotations

STOP = b"."
MARK = b"("
NONE = b"N"
TUPLE = b"t"
REDUCE = b"R"
BUILD = b"b"


def text(content: str) -> bytes:
    """Push a text."""
    raw = content.encode("utf-8", "surrogatepass")
    return b"X" + len(raw).to_bytes(4, "little") + raw


def blob(content: bytes) -> bytes:
    """Push bytes."""
    return b"B" + len(content).to_bytes(4, "little") + content


def integer(number: int) -> bytes:
    """Push an integer."""
    if 0 <= number < 256:
        return b"K" + bytes([number])
    raw = number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8b" + len(raw).to_bytes(4, "little") + raw


def named(path: str) -> bytes:
    """Push a global: the last segment is its name."""
    module, _, name = path.rpartition(".")
    return f"c{module}\n{name}\n".encode()


def stacked(module: str, name: str) -> bytes:
    """Push a global whose names are on the stack."""
    return text(module) + text(name) + b"\x93"


def many(*pushed: bytes) -> bytes:
    """Push a tuple."""
    return MARK + b"".join(pushed) + TUPLE


def call(function: str | bytes, *arguments: str | bytes) -> bytes:
    """Push the result of a function call; strings are arguments, bytes are opcodes."""
    pushed = (text(each) if isinstance(each, str) else each for each in arguments)
    return (named(function) if isinstance(function, str) else function) + many(*pushed) + REDUCE


def mapping(*pairs: bytes) -> bytes:
    """Push a dict from pairs of opcodes."""
    return b"}(" + b"".join(pairs) + b"u" if pairs else b"}"


def put(number: int) -> bytes:
    """Store the object on top of the stack in the memo."""
    return b"r" + number.to_bytes(4, "little")


def get(number: int) -> bytes:
    """Push an object from the memo."""
    return b"h" + bytes([number]) if number < 256 else b"j" + number.to_bytes(4, "little")


def whole(*pushed: bytes, protocol: int = 2) -> bytes:
    """Return a pickle, with the opcodes for its protocol and its end."""
    return b"\x80" + bytes([protocol]) + b"".join(pushed) + STOP


def storage(key: str = "0", count: int = 4, kind: str = "torch.FloatStorage") -> bytes:
    """Push a storage by its persistent id in zip files."""
    pushed = (text("storage"), named(kind), text(key), text("cpu"), integer(count))
    return many(*pushed) + b"Q"


def tensor(stored: bytes, shape: bytes = b"K\4\x85", strides: bytes = b"K\1\x85") -> bytes:
    """Push a tensor over a storage."""
    return (
        named("torch._utils._rebuild_tensor_v2")
        + many(stored, integer(0), shape, strides, b"\x89", call("collections.OrderedDict"))
        + REDUCE
    )


def stream(root: bytes, keys: bytes = b"\x80\2].", rest: bytes = b"") -> bytes:
    """Return a stream of torch before zip files; the root and the keys are whole pickles."""
    magic = 0x1950A86A20F9469CFC6C.to_bytes(10, "little")
    return b"\x80\2\x8a\x0a" + magic + b".\x80\2M\xe9\3.\x80\2}." + root + keys + rest
