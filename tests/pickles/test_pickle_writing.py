"""Pickles that weightctl writes: Python reads them, and torch does so without running code."""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import _weights_only_unpickler as careful

from lazy import torch
from weightctl.formats.pickles.records import Global, PickledCall
from weightctl.formats.pickles.writing import LONGEST_INTEGER, Persistent, emit

EXAMPLES = settings(max_examples=50, deadline=None, derandomize=True, database=None)
LONGEST = (1 << 8 * LONGEST_INTEGER - 1) - 1
EDGES = [0, 255, 256, 65535, 65536, -1, (1 << 31) - 1, 1 << 31, -(1 << 31), -(1 << 31) - 1,
         1 << 63, -(1 << 63), (1 << 64) - 1, LONGEST, -LONGEST - 1]  # fmt: skip

scalars = st.one_of(
    st.none(), st.booleans(), st.floats(), st.text(st.characters(exclude_categories=[])),
    st.integers(-LONGEST - 1, LONGEST), st.sampled_from(EDGES),
)  # fmt: skip
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.lists(inner, max_size=5).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=5)
    ),
)


class Reader(pickle.Unpickler):
    def persistent_load(self, pid: Any) -> Any:
        return ("kept", pid)


def read(value: Any) -> Any:
    return Reader(io.BytesIO(emit(value))).load()


def spoken(value: Any) -> str:
    """Return a comparable form of a value: NaN equals NaN, 0.0 is not -0.0, and 1 is not True."""
    return repr(value)


@EXAMPLES
@given(values)
def test_python_and_torch_read_what_is_written(value: Any) -> None:
    raw = emit(value)
    assert spoken(pickle.loads(raw)) == spoken(value)
    assert spoken(careful.load(io.BytesIO(raw), encoding="utf-8")) == spoken(value)


@pytest.mark.parametrize("value", EDGES)
def test_an_integer_takes_the_shortest_opcode_of_protocol_2(value: int) -> None:
    assert pickletools.optimize(emit(value)) == emit(value)
    assert pickle.loads(emit(value)) == value
    assert len(emit(value)) <= len(pickle.dumps(value, 2)) + 1


@pytest.mark.parametrize("value", [LONGEST + 1, -LONGEST - 2, 1 << 5000])
def test_an_integer_that_is_too_long_is_refused(value: int) -> None:
    with pytest.raises(ValueError, match="weightctl cannot write an integer of"):
        emit(value)


@pytest.mark.parametrize("value", [b"raw", {1}, object(), range(3), [bytearray()]])
def test_what_has_no_opcode_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="cannot be written to a pickle"):
        emit(value)


def test_globals_and_texts_are_written_once() -> None:
    named = [Global("collections", "OrderedDict") for _ in range(3)]
    raw = emit([*named, "a text", "a text"])
    assert pickle.loads(raw) == [OrderedDict] * 3 + ["a text"] * 2
    assert raw.count(b"OrderedDict") == raw.count(b"a text") == 1


def test_more_than_256_memo_entries_take_longer_numbers() -> None:
    value = [f"text {number}" for number in range(300)] * 2
    raw = emit(value)
    assert pickle.loads(raw) == value
    assert careful.load(io.BytesIO(raw)) == value
    assert {opcode.name for opcode, _, _ in pickletools.genops(raw)} >= {
        "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET",
    }  # fmt: skip


def test_calls_get_their_arguments_items_and_state() -> None:
    call = PickledCall(Global("collections", "OrderedDict"), ())
    call.pairs = [("b", 1), ("a", 2)]
    call.states = [{"_metadata": {"": {"version": 1}}}]
    for made in (read(call), careful.load(io.BytesIO(emit(call)))):
        assert made == OrderedDict(b=1, a=2)
        assert vars(made) == {"_metadata": {"": {"version": 1}}}
    assert read(PickledCall(Global("__builtin__", "complex"), (1.0, -2.0))) == 1 - 2j
    assert read(PickledCall(Global("torch", "Size"), ((2, 3),))) == torch.Size([2, 3])


def test_elements_of_a_call_are_added() -> None:
    call = PickledCall(Global("collections", "deque"), ())
    call.elements = [1, 2]
    assert list(read(call)) == [1, 2]


def test_a_persistent_id_is_left_to_the_reader() -> None:
    assert read([Persistent(("storage", "0"))]) == [("kept", ("storage", "0"))]


def test_floats_keep_every_bit() -> None:
    for value in (0.1, -0.0, 5e-324, math.inf, -math.inf):
        assert pickle.loads(emit(value)).hex() == value.hex()
