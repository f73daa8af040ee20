"""Ranges of files are read on demand, and no more than requested."""

from __future__ import annotations

import os
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from weightctl.errors import FormatError
from weightctl.formats.pickles.machine import load
from weightctl.storage.byte_range import HeldRange
from weightctl.storage.files import open_reader
from weightctl.weights.strided import gather

if TYPE_CHECKING:
    from pathlib import Path

    from weightctl.storage.base import Reader

LETTERS = bytes(range(97, 123))


class Counted(HeldRange):
    """Bytes in memory that record each read."""

    def __init__(self, memory: memoryview) -> None:
        super().__init__(memory)
        self.reads: list[int] = []

    def read(self, start: int, nbytes: int) -> bytes:
        found = super().read(start, nbytes)
        self.reads.append(len(found))
        return found


@pytest.fixture
def file(tmp_path: Path) -> Reader:
    (tmp_path / "letters").write_bytes(LETTERS)
    return open_reader(str(tmp_path / "letters"))


@pytest.mark.parametrize(
    ("start", "nbytes", "expected"),
    [(0, 3, b"abc"), (24, 9, b"yz"), (26, 1, b""), (99, 1, b""), (3, 0, b""), (3, -1, b"")],
)
def test_a_read_ends_where_the_file_does(
    start: int, nbytes: int, expected: bytes, file: Reader
) -> None:
    assert file.read(start, nbytes) == expected
    assert file.range().read(start, nbytes) == expected
    assert HeldRange(memoryview(LETTERS)).read(start, nbytes) == expected


def test_the_end_of_a_file_is_all_of_a_small_one(file: Reader) -> None:
    assert (file.read_end(2), file.read_end(99)) == (b"yz", LETTERS)


@pytest.mark.parametrize(("start", "stop"), [(2, 5), (2, 99), (30, 40), (5, 2)])
def test_a_part_of_a_range_ends_where_the_range_does(start: int, stop: int, file: Reader) -> None:
    for whole in (file.range(1), HeldRange(memoryview(LETTERS)[1:])):
        part = whole.part(start, stop)
        expected = LETTERS[1:][start:stop]
        assert (len(part), part.read(0, 99)) == (len(expected), expected)
        assert part.read(1, 1) == expected[1:2]


@pytest.mark.parametrize("size", [0, 5])
def test_a_read_behind_a_new_end_is_an_error(size: int, file: Reader) -> None:
    os.truncate(file.path, size)
    message = f"byte {max(size, 2)}: the file ends here: it became shorter while it was read"
    with pytest.raises(FormatError, match=message) as caught:
        file.read(2, 8)
    assert "try again" in caught.value.hint


def nothing(identity: Any) -> Any:
    raise ValueError(identity)


def test_long_bytes_in_a_pickle_are_not_read() -> None:
    arrays = [bytes(5_000_000), "a text", bytes(5_000_000)]
    raw = pickle.dumps(arrays, 4)
    data = Counted(memoryview(raw))
    (first, text, last), end = load(data, 0, {}, nothing)
    assert (text, end) == ("a text", len(raw))
    assert raw[first.start : first.stop] == raw[last.start : last.stop] == bytes(5_000_000)
    assert sum(data.reads) < 100_000


@pytest.mark.parametrize("step", [64, 1 << 14, 3 << 18])
def test_elements_far_apart_are_read_in_small_pieces(step: int) -> None:
    memory = np.arange(24 * step, dtype="u1")
    memory[::step] = range(24)
    data, out = Counted(memory.data), bytearray(24)
    gather(data, 1, (4, 6), strides=(step, 4 * step), start=0, out=memoryview(out))
    assert bytes(out) == memory[::step].reshape(6, 4).T.tobytes()
    assert max(data.reads) <= 1 << 20
    assert sum(data.reads) <= len(memory)
