"""Parts of tensors, compared with NumPy's selection of the same values and blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weightctl.dtype import ENCODINGS
from weightctl.errors import ConversionError
from weightctl.split import Cut, Part, part_shape
from weightctl.weights.derived import DerivedTensor
from weightctl.weights.info import Origin, TensorInfo
from weightctl.weights.steps.sliced import Sliced, read_part, runs, unfit

if TYPE_CHECKING:
    from weightctl.dtype import Encoding

    Array = np.ndarray[Any, Any]

# The elements of the arrays are blocks of bytes.
KINDS: dict[str, Any] = {"F32": np.float32, "BF16": ml_dtypes.bfloat16, "Q8_0": np.dtype("V34")}
PAGE = 4096


class InMemory:
    """A tensor whose blocks are the entries of an array; `read` has the ranges that were read."""

    def __init__(self, blocks: Array, encoding: Encoding) -> None:
        *rows, last = blocks.shape
        self.info = TensorInfo("w", (*rows, last * encoding.block), encoding)
        self.origin = Origin((self.info,), ())
        self.raw = blocks.tobytes()
        self.read: list[tuple[int, int]] = []

    def read_into(self, start: int, buffer: memoryview, /) -> None:
        self.read.append((start, start + buffer.nbytes))
        buffer[:] = self.raw[start : start + buffer.nbytes]

    def file_range(self) -> None:
        return None


def random_blocks(shape: tuple[int, ...], kind: str) -> Array:
    dtype = np.dtype(KINDS[kind])
    raw = np.random.default_rng(5).bytes(int(np.prod(shape)) * dtype.itemsize)
    return np.frombuffer(raw, dtype).reshape(shape)


def picked(blocks: Array, part: Part, block: int) -> Array:
    for cut in part:
        unit = block if cut.axis == blocks.ndim - 1 else 1
        indices = [np.arange(start // unit, stop // unit) for start, stop in cut.ranges]
        blocks = blocks.take(np.concatenate(indices), cut.axis)
    return blocks


@st.composite
def cut_tensors(draw: st.DrawFn) -> tuple[InMemory, Part, bytes]:
    """Draw a tensor, a part of it, and the bytes of the part."""
    kind = draw(st.sampled_from([*KINDS]))
    encoding = ENCODINGS[kind]
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    cuts: list[Cut] = []
    for axis, size in enumerate(shape):
        ends = sorted(draw(st.sets(st.integers(0, size), max_size=4)))
        unit = encoding.block if axis == len(shape) - 1 else 1
        ranges = [(start * unit, stop * unit)
                  for start, stop in zip(ends[::2], ends[1::2], strict=False)]  # fmt: skip
        is_cut: bool = draw(st.booleans())
        if ranges and is_cut:
            cuts.append(Cut(axis, tuple(ranges)))
    part = tuple(draw(st.permutations(cuts)))
    blocks = random_blocks(shape, kind)
    return InMemory(blocks, encoding), part, picked(blocks, part, encoding.block).tobytes()


def read(tensor: Any, start: int, stop: int) -> bytes:
    buffer = bytearray(stop - start)
    tensor.read_into(start, memoryview(buffer))
    return bytes(buffer)


@given(cut_tensors())
def test_a_part_has_the_bytes_that_numpy_picks(drawn: tuple[InMemory, Part, bytes]) -> None:
    tensor, part, expected = drawn
    made = DerivedTensor("part", Sliced(part), [tensor])
    assert made.info.encoding == tensor.info.encoding
    assert made.info.nbytes == len(expected)
    assert read(made, 0, len(expected)) == expected


@given(cut_tensors(), st.data())
def test_any_run_of_a_part_is_that_run_of_its_bytes(
    drawn: tuple[InMemory, Part, bytes], data: Any
) -> None:
    tensor, part, expected = drawn
    start = data.draw(st.integers(0, len(expected)))
    stop = data.draw(st.integers(start, len(expected)))
    assert read(DerivedTensor("part", Sliced(part), [tensor]), start, stop) == expected[start:stop]


@given(cut_tensors(), st.data())
def test_the_runs_of_a_part_are_its_bytes_in_order_and_none_is_twice(
    drawn: tuple[InMemory, Part, bytes], data: Any
) -> None:
    tensor, part, expected = drawn
    start = data.draw(st.integers(0, len(expected)))
    found = [*runs(tensor.info, part, start)]
    assert b"".join(tensor.raw[at : at + size] for at, size in found) == expected[start:]
    assert all(size > 0 for _, size in found) or not part


def test_rows_are_one_run_and_are_read_at_once() -> None:
    tensor = InMemory(random_blocks((64, 8), "F32"), ENCODINGS["F32"])
    part = (Cut(0, ((16, 48),)),)
    assert [*runs(tensor.info, part)] == [(16 * 32, 32 * 32)]
    read(DerivedTensor("part", Sliced(part), [tensor]), 0, 32 * 32)
    assert tensor.read == [(16 * 32, 48 * 32)]


def test_experts_that_stand_apart_are_read_apart_and_nothing_between_them() -> None:
    tensor = InMemory(random_blocks((6, 2048), "F32"), ENCODINGS["F32"])
    part = (Cut(0, ((0, 1), (4, 6))),)
    read(DerivedTensor("part", Sliced(part), [tensor]), 0, 3 * 8192)
    assert tensor.read == [(0, 8192), (4 * 8192, 6 * 8192)]


def test_pieces_on_neighboring_pages_are_read_together() -> None:
    tensor = InMemory(random_blocks((64, 512), "F32"), ENCODINGS["F32"])
    part = (Cut(1, ((0, 256),)),)
    expected = picked(np.frombuffer(tensor.raw, np.float32).reshape(64, 512), part, 1).tobytes()
    assert read(DerivedTensor("part", Sliced(part), [tensor]), 0, len(expected)) == expected
    assert tensor.read == [(0, 64 * 2048 - 1024)]


def test_pieces_with_a_page_or_more_between_them_are_read_apart() -> None:
    tensor = InMemory(random_blocks((4, 2048), "F32"), ENCODINGS["F32"])
    read(DerivedTensor("part", Sliced((Cut(1, ((0, 1024),)),)), [tensor]), 0, 4 * PAGE)
    assert tensor.read == [(row * 2 * PAGE, row * 2 * PAGE + PAGE) for row in range(4)]


def test_not_much_is_held_for_pieces_that_are_read_together() -> None:
    tensor = InMemory(random_blocks((4096, 256), "F32"), ENCODINGS["F32"])
    part = (Cut(1, ((0, 128),)),)
    read(DerivedTensor("part", Sliced(part), [tensor]), 0, 4096 * 512)
    assert len(tensor.read) > 1
    assert max(stop - start for start, stop in tensor.read) <= 1 << 20


def test_only_the_run_that_is_asked_for_is_read() -> None:
    tensor = InMemory(random_blocks((64, 512), "F32"), ENCODINGS["F32"])
    made = DerivedTensor("part", Sliced((Cut(1, ((256, 512),)),)), [tensor])
    read(made, 3 * 1024 + 4, 3 * 1024 + 12)
    assert tensor.read == [(3 * 2048 + 1024 + 4, 3 * 2048 + 1024 + 12)]


def test_a_part_without_cuts_is_the_whole() -> None:
    info = TensorInfo("w", (), ENCODINGS["F32"])
    assert [*runs(info, ())] == [(0, 4)]
    got = bytearray(2)
    read_part(info, (), lambda at, out: out.__setitem__(slice(None), b"wxyz"[at : at + len(out)]),
              1, memoryview(got))  # fmt: skip
    assert bytes(got) == b"xy"


def test_a_part_of_no_columns_at_all_has_no_bytes() -> None:
    info = TensorInfo("w", (4, 0), ENCODINGS["F32"])
    assert [*runs(info, (Cut(0, ((1, 3),)),))] == []


def test_parts_of_parts_are_parts() -> None:
    blocks = random_blocks((8, 6), "BF16")
    tensor = InMemory(blocks, ENCODINGS["BF16"])
    rows = DerivedTensor("rows", Sliced((Cut(0, ((1, 3), (4, 8))),)), [tensor])
    made = DerivedTensor("both", Sliced((Cut(0, ((1, 4),)), Cut(1, ((2, 5),)))), [rows])
    expected = blocks[[2, 4, 5]][:, 2:5].tobytes()
    assert read(made, 0, len(expected)) == expected
    assert made.origin.steps == (
        "1 to 3, 4 to 8 of axis 0",
        "1 to 4 of axis 0 and 2 to 5 of axis 1",
    )


REFUSED = [
    ("F32", (4, 6), Cut(2, ((0, 1),)), "it has no axis 2"),
    ("F32", (4, 6), Cut(0, ((2, 5),)), "axis 0 has 4 elements, which do not include 2 to 5"),
    (
        "F32",
        (4, 6),
        Cut(0, ((0, 1), (3, 3))),
        ("axis 0 has 4 elements, which do not include 0 to 1 and 3 to 3"),
    ),
    ("F32", (), Cut(0, ((0, 1),)), "it has no axis 0"),
    ("Q8_0", (4, 64), Cut(1, ((0, 40),)), "0 to 40 of axis 1 would split blocks of 32 elements"),
    ("Q8_0", (3, 48, 1), Cut(0, ((0, 1),)), "its rows are not whole blocks of 32 elements"),
]


@pytest.mark.parametrize(("kind", "shape", "cut", "says"), REFUSED)
def test_what_is_not_a_part_of_a_tensor_says_why(
    kind: str, shape: tuple[int, ...], cut: Cut, says: str
) -> None:
    tensor = InMemory(random_blocks((1,), kind), ENCODINGS[kind])
    tensor.info = TensorInfo("w", shape, ENCODINGS[kind])
    assert unfit(tensor.info, (cut,)) == says
    with pytest.raises(ConversionError) as refusal:
        DerivedTensor("part", Sliced((cut,)), [tensor])
    assert refusal.value.message == (
        f"`w`, stored as {kind} of shape {list(shape)}, cannot be split: {says}"
    )


@given(cut_tensors())
def test_what_is_a_part_is_found_to_be_one(drawn: tuple[InMemory, Part, bytes]) -> None:
    tensor, part, _ = drawn
    assert unfit(tensor.info, part) == ""
    assert Sliced(part).infer([tensor.info])[0] == part_shape(tensor.info.shape, part)
