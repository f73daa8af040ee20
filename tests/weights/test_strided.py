"""Elements that are not contiguous are gathered as NumPy does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weightctl.storage.byte_range import HeldRange
from weightctl.weights.strided import gather

EXAMPLES = settings(max_examples=150, deadline=None, derandomize=True, database=None)


@st.composite
def views(draw: st.DrawFn) -> np.ndarray:
    """Draw any view of an array: transposed, sliced with steps, expanded."""
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    kind = draw(st.sampled_from(["u1", "u2", "f4", "f8", "c16"]))
    array = np.arange(np.prod(shape)).astype(kind).reshape(shape)
    array = array.transpose(draw(st.permutations(range(array.ndim))))
    array = array[tuple(slice(None, None, draw(st.integers(1, 3))) for _ in array.shape)]
    axis = draw(st.integers(0, array.ndim - 1))
    if draw(st.booleans()):
        array = np.broadcast_to(array[..., None], (*array.shape, draw(st.integers(1, 4))))
    return np.moveaxis(array, axis, 0)


@EXAMPLES
@given(views(), st.data())
def test_any_run_of_elements_is_that_of_the_whole(array: np.ndarray, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, array.size))
    stop = data.draw(st.integers(start, array.size))
    base = array
    while isinstance(base.base, np.ndarray):
        base = base.base
    begin = array.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    memory = memoryview(base).cast("B")[begin:]
    out = bytearray((stop - start) * array.itemsize)
    if out:
        gather(
            HeldRange(memory), array.itemsize, array.shape,
            strides=array.strides, start=start, out=memoryview(out),
        )  # fmt: skip
    assert bytes(out) == array.tobytes()[start * array.itemsize : stop * array.itemsize]


@pytest.mark.parametrize("pieces", [1, 3, 7])
def test_pieces_make_the_whole(pieces: int) -> None:
    array = np.arange(2 * 3 * 5 * 7, dtype="u4").reshape(2, 3, 5, 7).transpose(3, 1, 0, 2)
    memory = memoryview(array.base).cast("B")
    whole = bytearray()
    for places in np.array_split(np.arange(array.size), pieces):
        out = bytearray(len(places) * 4)
        gather(
            HeldRange(memory), 4, array.shape,
            strides=array.strides, start=int(places[0]), out=memoryview(out),
        )  # fmt: skip
        whole += out
    assert bytes(whole) == array.tobytes()


def test_a_scalar_is_one_element() -> None:
    out = bytearray(2)
    gather(HeldRange(memoryview(b"abcd")), 2, (), strides=(), start=0, out=memoryview(out))
    assert bytes(out) == b"ab"
