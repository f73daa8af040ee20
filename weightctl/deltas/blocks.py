"""Blocks of a patch: each is what changed in one chunk of a file.

A chunk is a sequence of words, such as the elements of a bfloat16 tensor. Differences are computed
between words as integers, so that a small change of a value is a small number. Zigzag numbers make
negative differences small too: 0, -1, 1, -2 become 0, 1, 2, 3. Before compression, words are split
into byte planes: first the lowest byte of each word, then the next one.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.storage.base import Bytes

    Words = NDArray[np.unsignedinteger[Any]]

# The sizes of words in bytes.
WORDS = (1, 2, 4, 8)
# On differences of weights, higher levels are slower and not smaller (tests/bench/deltas.py).
_LEVEL = 1
# Gaps between changed words are stored in 4 bytes.
_GAP = 4
# With fewer changed words, a list of them is smaller; with more, the differences of all words are.
_FEW, _MANY = 0.3, 0.9
# If what changed takes a larger part of a chunk than this, the new chunk may be smaller.
_LARGE = 0.5
_SHORT = 64 << 10
# The largest window of a frame, as a power of 2, which limits the memory of the decompression.
_WINDOW = 24


class Method(StrEnum):
    """How a chunk is restored.

    `SAME` has no block. `SPARSE` has the gaps between changed words, and their differences.
    `DIFFERENCE` has the differences of all words. `NEW` has the words of the new chunk, and
    `STORED` has them without compression.
    """

    SAME = "same"
    SPARSE = "sparse"
    DIFFERENCE = "difference"
    NEW = "new"
    STORED = "stored"

    @property
    def needs_source(self) -> bool:
        """Whether the chunk is restored from the old one."""
        return self in {Method.SAME, Method.SPARSE, Method.DIFFERENCE}


class PatchBlock(NamedTuple):
    """The block of a chunk. `changed` is the number of listed words, for `SPARSE` only."""

    method: Method
    data: Bytes = b""
    changed: int = 0


def encode_chunk(old: Bytes | None, new: Bytes, word: int) -> PatchBlock:
    """Return the smallest block that restores the chunk `new`.

    `old` is the chunk of the same size that it is restored from, or None. `word` is the size of a
    word in bytes; chunks have whole words.
    """
    words = np.frombuffer(new, f"<u{word}")
    found: list[PatchBlock] = []
    if old is not None:
        before = np.frombuffer(old, f"<u{word}")
        if np.array_equal(before, words):
            return PatchBlock(Method.SAME)
        found += _encode_changes(before, words)
    best = min(map(_size, found), default=len(new))
    if best > _LARGE * len(new) or len(new) <= _SHORT:
        found.append(PatchBlock(Method.NEW, zstd.compress(_split_planes(words), _LEVEL)))
        found.append(PatchBlock(Method.STORED, new))
    return min(found, key=_size)


def _size(block: PatchBlock) -> int:
    return len(block.data)


def _encode_changes(old: Words, new: Words) -> list[PatchBlock]:
    places = np.flatnonzero(old != new)
    share = len(places) / len(new)
    found: list[PatchBlock] = []
    if share < _MANY:
        gaps = (np.diff(places, prepend=-1) - 1).astype("<u4")
        numbers = _to_zigzag(new[places] - old[places])
        planes = _split_planes(gaps) + _split_planes(numbers)
        found.append(PatchBlock(Method.SPARSE, zstd.compress(planes, _LEVEL), len(places)))
    if share > _FEW:
        planes = _split_planes(_to_zigzag(new - old))
        found.append(PatchBlock(Method.DIFFERENCE, zstd.compress(planes, _LEVEL)))
    return found


def decode_block(block: PatchBlock, old: Bytes | None, nbytes: int, word: int) -> Bytes:
    """Return the new chunk of `nbytes` bytes.

    Raises `ValueError` if the data of the block are invalid. No more memory is used than the chunk
    and the number of listed words need, whatever the compressed data contain.
    """
    if block.method is Method.STORED:
        return block.data
    if block.method is Method.NEW:
        return _join_planes(_decompress(block.data, nbytes), word).tobytes()
    if old is None:
        raise ValueError("the old chunk is missing")
    if block.method is Method.SAME:
        return old
    words = np.frombuffer(old, f"<u{word}")
    if block.method is Method.DIFFERENCE:
        numbers = _join_planes(_decompress(block.data, nbytes), word)
        return (words + _from_zigzag(numbers)).tobytes()
    planes = _decompress(block.data, block.changed * (_GAP + word))
    gaps = _join_planes(planes[: block.changed * _GAP], _GAP)
    numbers = _join_planes(planes[block.changed * _GAP :], word)
    places = np.cumsum(gaps.astype(np.int64) + 1) - 1
    if len(places) and places[-1] >= len(words):
        raise ValueError("a changed word is outside the chunk")
    made = words.copy()
    made[places] += _from_zigzag(numbers)
    return made.tobytes()


def _decompress(data: Bytes, nbytes: int) -> bytes:
    """Return exactly `nbytes` bytes of one frame; raises `ValueError` for any other content."""
    frame = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _WINDOW})
    try:
        # One more byte is requested, to detect a frame that is too long.
        made = frame.decompress(data, nbytes + 1)
    except zstd.ZstdError as error:
        raise ValueError(f"the compressed data are invalid: {error}") from error
    if len(made) != nbytes or not frame.eof or frame.unused_data:
        raise ValueError("the compressed data do not have the stated size")
    return made


def _split_planes(words: Words) -> bytes:
    return words.view(np.uint8).reshape(-1, words.itemsize).T.tobytes()


def _join_planes(planes: bytes, word: int) -> Words:
    joined = np.frombuffer(planes, np.uint8).reshape(word, -1).T
    return np.ascontiguousarray(joined).reshape(-1).view(f"<u{word}")


def _to_zigzag(difference: Words) -> Words:
    signed = difference.view(f"<i{difference.itemsize}")
    return ((signed << 1) ^ (signed >> (8 * difference.itemsize - 1))).view(difference.dtype)


def _from_zigzag(numbers: Words) -> Words:
    one = numbers.dtype.type(1)
    return (numbers >> one) ^ (~(numbers & one) + one)
