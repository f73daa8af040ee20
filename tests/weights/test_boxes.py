"""Parts of tensors in bytes, compared with NumPy's selection of the same elements."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from weightctl.dtype import ENCODINGS
from weightctl.split import Cut, Part, part_shape
from weightctl.weights.boxes import boxes, byte_part, byte_shape, collect, find_overlaps, scatter
from weightctl.weights.info import TensorInfo

if TYPE_CHECKING:
    from numpy.typing import NDArray


@st.composite
def cut_shapes(draw: st.DrawFn) -> tuple[tuple[int, ...], Part]:
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=4)))
    cuts: list[Cut] = []
    for axis, size in enumerate(shape):
        ends = sorted(draw(st.sets(st.integers(0, size), max_size=4)))
        ranges = tuple(zip(ends[::2], ends[1::2], strict=False))
        is_cut: bool = draw(st.booleans())
        if ranges and is_cut:
            cuts.append(Cut(axis, ranges))
    return shape, tuple(cuts)


def picked(array: NDArray[Any], part: Part) -> NDArray[Any]:
    indices = [np.arange(size) for size in array.shape]
    for cut in part:
        indices[cut.axis] = np.concatenate([np.arange(*range_) for range_ in cut.ranges])
    return array[np.ix_(*indices)]


def is_picked(array: NDArray[Any], part: Part) -> NDArray[np.bool_]:
    numbers = np.arange(array.size).reshape(array.shape)
    return np.isin(numbers, picked(numbers, part))


@given(cut_shapes(), st.integers(1, 60))
def test_boxes_are_all_bytes_in_order(cut: tuple[tuple[int, ...], Part], limit: int) -> None:
    shape, _ = cut
    numbers = np.arange(prod(shape)).reshape(shape)
    seen = [numbers[box.place][box.start : box.stop].reshape(-1) for box in boxes(shape, limit)]
    assert np.concatenate(seen).tolist() == list(range(numbers.size))
    assert all(each.size <= limit for each in seen)


@given(cut_shapes(), st.integers(1, 60))
def test_a_part_is_scattered_as_numpy_picks_it_and_collected_back(
    cut: tuple[tuple[int, ...], Part], limit: int
) -> None:
    shape, part = cut
    whole = np.random.default_rng(1).integers(1, 256, shape, np.uint8)
    own, back = bytearray(prod(part_shape(shape, part))), np.zeros_like(whole)
    expected = 0
    for box in boxes(shape, limit):
        held = memoryview(bytearray(whole[box.place][box.start : box.stop].tobytes()))
        into = memoryview(bytearray(len(held)))
        for overlap in find_overlaps(shape, part, box):
            out = memoryview(own)[overlap.offset : overlap.offset + overlap.nbytes]
            scatter(shape, box, held, overlap, out)
            collect(shape, box, into, overlap, out)
            assert overlap.offset == expected
            expected += overlap.nbytes
            if overlap.is_contiguous:
                assert held[overlap.start : overlap.start + overlap.nbytes] == out
        piece = back[box.place][box.start : box.stop]
        piece[...] = np.frombuffer(into, np.uint8).reshape(piece.shape)
    assert bytes(own) == picked(whole, part).tobytes()
    assert (back == np.where(is_picked(whole, part), whole, 0)).all()


def test_the_columns_of_blocks_are_cut_as_the_bytes_of_whole_blocks() -> None:
    info = TensorInfo("w", (3, 96), ENCODINGS["Q8_0"])
    assert byte_shape(info) == (3, 3 * 34)
    part = byte_part(info, (Cut(0, ((1, 2),)), Cut(1, ((32, 96),))))
    assert part == (Cut(0, ((1, 2),)), Cut(1, ((34, 102),)))


def test_a_scalar_is_a_run_of_its_bytes() -> None:
    info = TensorInfo("w", (), ENCODINGS["F32"])
    assert byte_shape(info) == (4,)
    assert [(box.start, box.stop) for box in boxes((4,), 100)] == [(0, 4)]
    assert list(boxes((0, 4), 100)) == []
