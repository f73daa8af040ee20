"""A packing is one description: what is packed as it states is unpacked as it states."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from each import each
from weightctl.schemes.arrays import packing
from weightctl.schemes.layout import Packing

if TYPE_CHECKING:
    import pytest

# GPTQ, AWQ, compressed-tensors, MLX, pairs of floats, bitsandbytes.
PACKINGS = [
    *(Packing(bits, word, axis) for bits in (4, 8) for word in (8, 32) for axis in (0, 1)),
    *(Packing(4, 32, axis, order=(0, 2, 4, 6, 1, 3, 5, 7)) for axis in (0, 1)),
    *(Packing(4, 8, axis, order=(1, 0)) for axis in (0, 1)),
]


@each("compiled", [True, False])
@each("transposed", [True, False])
@each("shape", [(16, 40), (8, 8), (13, 21), (1, 9)])
def test_what_is_packed_is_unpacked(
    shape: tuple[int, int], transposed: bool, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(packing, "pair_packer", lambda: None)
    for way in PACKINGS:
        codes = np.random.default_rng(0).integers(0, 1 << way.bits, shape, np.uint8)
        wanted = codes.T if transposed else codes
        rows, columns = wanted.shape
        raw = packing.pack_table(codes, way, transposed=transposed)
        words = np.ascontiguousarray(raw).view(f"u{way.word // 8}")
        assert words.shape == way.shape_of((rows, columns)), way
        found = packing.unpack_table(words, way)
        np.testing.assert_array_equal(found[:rows, :columns], wanted)


@each("bits", [2, 3, 4, 5, 6, 8])
def test_the_words_of_a_table_are_counted(bits: int) -> None:
    for count in range(70):
        stream = Packing(bits, 32)
        assert stream.words_of(count) == len(range(0, count * bits, 32))
        whole = Packing(bits, 32, whole=True)
        assert whole.words_of(count) == len(range(0, count, 32 // bits))
