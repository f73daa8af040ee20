"""The opcodes are those of Python, and plain pickles are read as Python reads them."""

from __future__ import annotations

import io
import pickle
import pickletools
import struct
from collections import defaultdict
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from each import each
from weightctl.formats.pickles.machine import OPCODES, STOP, Machine, UnsoundPickleError, load
from weightctl.formats.pickles.records import Blob, Pairs, PickledCall
from weightctl.formats.pickles.scan import names
from weightctl.storage.base import HeldRange

EXAMPLES = settings(max_examples=40, deadline=None, derandomize=True, database=None)
INFOS = {ord(info.code): info for info in pickletools.opcodes}
# Example arguments of an opcode, for each kind of argument.
ARGUMENTS: dict[str, list[bytes]] = {
    "uint1": [b"\0", b"\xff"],
    "uint2": [b"\1\2"],
    "uint4": [b"\1\2\3\4"],
    "int4": [b"\1\2\3\4", b"\xff\xff\xff\xff"],
    "uint8": [bytes(8), b"\xff" * 8],
    "float8": [struct.pack(">d", 0.5)],
    "floatnl": [b"-1.5e3\n", b"nan\n"],
    "decimalnl_short": [b"12\n", b"-3\n", b"00\n", b"01\n"],
    "decimalnl_long": [b"12L\n", b"-123456789012345678901234567890L\n", b"7\n"],
    "stringnl": [b"'a'\n", b'"\\x41\\n\\\\"\n', b"''\n"],
    "stringnl_noescape": [b"some id\n"],
    "stringnl_noescape_pair": [b"os\nsystem\n", b"a b\nc.d\n"],
    "unicodestringnl": [b"caf\\u00e9\n", b"\n"],
    "unicodestring1": [b"\3abc", b"\0", b"\2\xc3\xa9"],
    "unicodestring4": [b"\3\0\0\0abc"],
    "unicodestring8": [b"\3\0\0\0\0\0\0\0abc"],
    "string1": [b"\3abc", b"\0", b"\2\xff\xfe"],
    "string4": [b"\3\0\0\0abc", b"\0\1\0\0" + b"a" * 256, b"\1\1\0\0" + b"a" * 257],
    "bytes1": [b"\3abc"],
    "bytes4": [b"\3\0\0\0abc"],
    "bytes8": [b"\3\0\0\0\0\0\0\0abc"],
    "bytearray8": [b"\3\0\0\0\0\0\0\0abc"],
    "long1": [b"\0", b"\1\x80", b"\3abc"],
    "long4": [b"\0\0\0\0", b"\3\0\0\0abc"],
}
FRAME = 0x95
# NaN is not equal to itself.
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(1 << 300), 1 << 300), st.floats(allow_nan=False),
    st.text(), st.text(alphabet="'\"\\\n\r\t\0é\u1234\U0001f600", max_size=9), st.binary(),
    st.binary(min_size=256, max_size=300),
)  # fmt: skip
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.lists(inner, max_size=5).map(tuple)
        | st.dictionaries(st.text(max_size=5) | st.integers() | st.none(), inner, max_size=5)
        | inner.map(lambda value: [value, value])
    ),
    max_leaves=20,
)


def nothing(identity: Any) -> Any:
    raise ValueError(f"no {identity}")


def restored(record: Any, data: bytes) -> Any:
    if isinstance(record, Blob):
        return data[record.start : record.stop]
    if isinstance(record, Pairs):
        return {restored(key, data): restored(value, data) for key, value in record.pairs}
    if isinstance(record, PickledCall):
        # Protocols below 3 have no bytes type, and call a function instead.
        assert record.path in {"_codecs.encode", "builtins.bytes"}
        return restored(record.arguments[0], data).encode("latin-1") if record.arguments else b""
    if isinstance(record, list):
        return [restored(each, data) for each in record]
    return tuple(restored(each, data) for each in record) if type(record) is tuple else record


def test_every_opcode_of_python_is_known_and_no_other() -> None:
    assert {*OPCODES, STOP} == set(INFOS)


def test_every_kind_of_argument_is_tried() -> None:
    kinds = {info.arg.name for info in pickletools.opcodes if info.arg is not None}
    assert kinds == set(ARGUMENTS)


@each("name", sorted(info.name for info in pickletools.opcodes))
def test_an_opcode_takes_the_bytes_of_its_argument(name: str) -> None:
    info = next(info for info in pickletools.opcodes if info.name == name)
    if ord(info.code) == STOP:
        return
    for argument in ARGUMENTS[info.arg.name] if info.arg is not None else [b""]:
        raw = b"xx" + argument + b"rest\n" * 60
        stream = io.BytesIO(raw[2:])
        if info.arg is not None:
            info.arg.reader(stream)
        machine = Machine(memoryview(raw), 2, {}, lambda identity: identity)
        machine.stack = [("a",), [], Pairs(), (), [], Pairs(), "os", "system"]
        machine.marks = [3]
        machine.memo = defaultdict(str)
        machine.advance()
        # Some opcodes fail with this stack, but they have read their argument by then.
        with suppress(LookupError, TypeError, ValueError):
            OPCODES[ord(info.code)](machine)
        assert machine.base + machine.at == 2 + stream.tell(), argument


@pytest.mark.parametrize("protocol", range(6))
def test_plain_values_are_what_python_reads(protocol: int) -> None:
    @EXAMPLES
    @given(values)
    def holds(value: Any) -> None:
        raw = pickle.dumps(value, protocol)
        record, end = load(memoryview(b"before" + raw + b"behind"), 6, {}, nothing)
        assert end == 6 + len(raw)
        assert repr(restored(record, b"before" + raw)) == repr(value)

    holds()


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_is_read_in_several_pieces_is_what_python_reads(protocol: int) -> None:
    value = {f"key {n}": [n, n * 0.5, "é" * (n % 700), bytes(n % 300), None] for n in range(3000)}
    raw = pickle.dumps(value, protocol)
    assert len(raw) > 1_000_000
    record, end = load(memoryview(raw), 0, {}, nothing)
    assert end == len(raw)
    assert repr(restored(record, raw)) == repr(value)


@pytest.mark.parametrize("protocol", range(6))
def test_bytes_are_read_in_order_as_pickletools_does(protocol: int) -> None:
    @EXAMPLES
    @given(values)
    def holds(value: Any) -> None:
        raw = pickle.dumps(value, protocol)
        places = [place for _, _, place in pickletools.genops(raw) if place is not None]
        machine = Machine(memoryview(raw), 0, {}, nothing)
        for place in places[:-1]:
            machine.begun = machine.at
            machine.at = machine.advance()
            assert machine.base + machine.at == place
            machine.at += 1
            OPCODES[raw[place]](machine)
        assert machine.base + machine.at == places[-1]

    holds()


# Opcodes of plain values; random sequences of them are seldom a valid pickle.
_PIECES = [
    b"(", b"0", b"1", b"2", b"N", b"\x88", b"\x89", b"I7\n", b"I01\n", b"K\1", b"M\1\1",
    b"J\1\0\0\0",
    b"L5L\n", b"F1.5\n", b"\x8a\1\x80", b"Va\n", b"X\1\0\0\0b", b"\x8c\1c", b")", b"t", b"\x85",
    b"\x86", b"\x87", b"]", b"l", b"a", b"e", b"}", b"d", b"s", b"u", b"p1\n", b"q\1", b"r\1\0\0\0",
    b"\x94", b"g1\n", b"h\1", b"h\0", b"j\1\0\0\0", b"\x80\2", b"\x95" + bytes(8),
]  # fmt: skip


def test_what_python_reads_is_read_the_same_way_or_refused() -> None:
    read = 0

    @settings(EXAMPLES, max_examples=1000)
    @given(st.lists(st.sampled_from(_PIECES), min_size=1, max_size=14))
    def holds(pieces: list[bytes]) -> None:
        nonlocal read
        raw = b"".join(pieces) + b"."
        try:
            # Python's own implementation, because C's can allocate memory for any memo index.
            value = pickle._Unpickler(io.BytesIO(raw)).load()  # type: ignore[attr-defined]
        except Exception:  # noqa: BLE001  # whatever keeps Python from reading it
            return
        text = repr(value)
        if "..." in text:
            return  # it contains itself
        try:
            record, _ = load(memoryview(raw), 0, {}, nothing)
        except UnsoundPickleError:
            return  # for example, items are set on an object that has none
        assert repr(restored(record, raw)) == text
        read += 1

    holds()
    assert read > 50


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"'\\q'", "a string has an invalid escape sequence"),
        (b"'\\x1'", "a string has an invalid escape sequence"),
        (b"'\\777'", "a string has an invalid escape sequence"),
        (b"'\\'", "a string has an invalid escape sequence"),
        (b"'a", "no quotes"),
        (b"'", "no quotes"),
    ],
)
def test_a_string_that_python_warns_of_is_refused(line: bytes, reason: str) -> None:
    with pytest.raises(UnsoundPickleError, match=reason):
        load(memoryview(b"S" + line + b"\n."), 0, {}, nothing)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"I" + b"9" * 5000 + b"\n.", "an integer has 5000 digits"),
        (b"\x80\x06N.", "pickle protocol 6 is not supported; the newest is 5"),
        (b"\x97.", "it refers to buffers that are stored outside of the pickle"),
        (
            b"c" + b"a" * 600 + b"\nb\n.",
            "name of a global has more than 512 characters",
        ),
        (b"N", "the pickle is incomplete"),
        (b"cos", "the pickle is incomplete"),
        (b"\x8d" + b"\xff" * 8 + b".", "the pickle is incomplete"),
        (b"\x8b\xff\xff\xff\xff.", "a length is negative"),
        (b"\xff.", "an opcode that is invalid, or whose operands are missing"),
        (b"h\0.", "an opcode that is invalid, or whose operands are missing"),
        (b"N0.", "an opcode that is invalid, or whose operands are missing"),
        (b"NNR.", "the arguments of a call are not a tuple"),
    ],
)
def test_a_fault_is_named(raw: bytes, reason: str) -> None:
    with pytest.raises(UnsoundPickleError, match=reason):
        load(memoryview(raw), 0, {}, nothing)


def test_a_long_string_of_python_2_does_not_end_a_scan() -> None:
    raw = b"(S'" + b"a" * 100_000 + b"'\ncos\nsystem\nl."
    assert [each.path for each in names(HeldRange(memoryview(raw))).named] == ["os.system"]
    assert not names(HeldRange(memoryview(raw))).problem
