"""A block restores its chunk bit for bit, and invalid blocks are refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from each import each
from weightctl.deltas.blocks import (
    WORDS,
    Method,
    PatchBlock,
    _encode_changes,
    decode_block,
    encode_chunk,
    zstd,
)

RANDOM = np.random.default_rng(3)
OLD = RANDOM.integers(0, 256, 4096, np.uint8).tobytes()


def change(share: float, word: int) -> bytes:
    """Return the old chunk, in which a share of words is one larger or smaller."""
    words = np.frombuffer(OLD, f"<u{word}").copy()
    chosen = RANDOM.random(len(words)) < share
    words[chosen] += RANDOM.choice(np.array([1, -1]), chosen.sum()).astype(words.dtype)
    return words.tobytes()


@given(st.sampled_from(WORDS), st.integers(1, 300), st.data())
def test_any_chunk_is_restored_from_any_old_chunk(
    word: int, count: int, data: st.DataObject
) -> None:
    size = word * count
    old = data.draw(st.none() | st.binary(min_size=size, max_size=size))
    new = data.draw(st.binary(min_size=size, max_size=size))
    block = encode_chunk(old, new, word)
    assert len(block.data) <= size
    assert decode_block(block, old, size, word) == new


@each("word", WORDS)
@each("share", [0.0, 0.001, 0.08, 0.5, 1.0])
def test_small_changes_are_restored(word: int, share: float) -> None:
    new = change(share, word)
    block = encode_chunk(OLD, new, word)
    assert decode_block(block, OLD, len(OLD), word) == new


@pytest.mark.parametrize(
    ("share", "method"),
    [(0.0, Method.SAME), (0.05, Method.SPARSE), (1.0, Method.DIFFERENCE)],
)
def test_the_smallest_block_is_chosen(share: float, method: Method) -> None:
    assert encode_chunk(OLD, change(share, 2), 2).method is method


def test_a_short_chunk_is_stored_anew_where_that_is_smaller_than_its_changes() -> None:
    old = np.zeros(32 << 10, "<u2")
    old[::8] = RANDOM.integers(1, 1 << 16, 4 << 10)
    block = encode_chunk(old.tobytes(), bytes(64 << 10), 2)
    assert block.method is Method.NEW
    assert len(block.data) < 100


def test_random_bytes_are_stored_and_repeated_bytes_are_compressed() -> None:
    assert encode_chunk(None, OLD, 2).method is Method.STORED
    assert encode_chunk(None, bytes(4096), 2).method is Method.NEW


def test_the_largest_differences_are_restored() -> None:
    extremes = np.array([0, 1, 0x7FFF, 0x8000, 0xFFFF], "<u2")
    old, new = (each.ravel() for each in np.meshgrid(extremes, extremes))
    found = _encode_changes(old, new)
    assert [each.method for each in found] == [Method.SPARSE, Method.DIFFERENCE]
    for block in found:
        assert decode_block(block, old.tobytes(), old.nbytes, 2) == new.tobytes()


BOMB = zstd.compress(bytes(64 << 20))
OUTSIDE = zstd.compress(np.array([4096], "<u4").tobytes() + b"\1\0")
INVALID = {
    "a bomb": PatchBlock(Method.NEW, BOMB),
    "a bomb of differences": PatchBlock(Method.DIFFERENCE, BOMB),
    "a bomb of words": PatchBlock(Method.SPARSE, BOMB, 3),
    "too little": PatchBlock(Method.NEW, zstd.compress(bytes(4000))),
    "no frame": PatchBlock(Method.NEW, OLD[:100]),
    "half a frame": PatchBlock(Method.DIFFERENCE, zstd.compress(OLD)[:2000]),
    "two frames": PatchBlock(Method.NEW, 2 * zstd.compress(OLD)),
    "nothing": PatchBlock(Method.NEW, b""),
    "a word outside": PatchBlock(Method.SPARSE, OUTSIDE, 1),
}


@pytest.mark.parametrize("block", INVALID.values(), ids=INVALID)
def test_an_invalid_block_is_refused(block: PatchBlock) -> None:
    with pytest.raises(ValueError, match=r"compressed data|outside"):
        decode_block(block, OLD, len(OLD), 2)
