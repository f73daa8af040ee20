"""Encoded bytes, pinned where ggml is not at hand to compare with.

The digests are of what `ggml_quantize_chunk` of xllamacpp 2026.10.11549 (x86-64) makes of `ROWS`
and `IMPORTANCE`, which are integer arithmetic, so that they are the same everywhere.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np
import pytest

from weightctl.codecs import q4_k, q5_0, q8_0

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.codecs.base import F32, Codec


def integers(count: int, state: int) -> NDArray[np.int64]:
    """Return 16-bit integers from -2**15: a linear congruential generator's upper halves."""
    drawn: list[int] = []
    for _ in range(count):
        state = (1664525 * state + 1013904223) % 2**32
        drawn.append((state >> 16) - 2**15)
    return np.array(drawn, np.int64)


def rows() -> F32:
    """Sums of four draws, each 32 of them scaled by another power of two; some zeros; (8, 1024)."""
    bell = integers(4 * 8 * 1024, 1).reshape(4, 8, 32, 32).sum(axis=0)
    powers = integers(8 * 32, 2).reshape(8, 32, 1) % 9 - 24
    numbers: F32 = np.ldexp(bell.astype(np.float32), powers).reshape(8, 1024)
    numbers[3, 256:320] = 0
    return numbers


def importance() -> F32:
    """One weight per column, above 0 and at most 1; (1024,)."""
    return ((integers(1024, 3) + 2**15 + 1) / np.float64(2**16)).astype(np.float32)


CODECS: dict[str, tuple[Codec, int, int]] = {
    "Q8_0": (q8_0, 32, 34),
    "Q5_0": (q5_0, 32, 22),
    "Q4_K": (q4_k, 256, 144),
}
DIGESTS = {
    ("Q8_0", False): "0c6a78b78469597b78ccff194882591052414c30f5c43fb397087bcd28f2b954",
    ("Q8_0", True): "0c6a78b78469597b78ccff194882591052414c30f5c43fb397087bcd28f2b954",
    ("Q5_0", False): "5528b4b35c005ab86900e5b1879288de3e444178cbc1a20144c7e075a31f8d02",
    ("Q5_0", True): "7da99b583aaa4f33b47abc39aa7b35c621c0624cfbc2bf2cb3b89cbb557d1c58",
    ("Q4_K", False): "2be7a711612665cc78b4ac9dd75bdd22fab48ceffae6c4b0e03a0e5727c37618",
    ("Q4_K", True): "0c5a7469caca1dce1db455f0018a80f83464dd7d081a73db1072b338fa115e15",
}


@pytest.mark.parametrize(("encoding", "weighted"), DIGESTS)
def test_encoding_gives_the_bytes_ggml_gave(encoding: str, weighted: bool) -> None:
    codec, block, size = CODECS[encoding]
    out = np.zeros((8, 1024 // block * size), np.uint8)
    codec.encode(rows(), importance() if weighted else None, out)
    assert sha256(out.tobytes()).hexdigest() == DIGESTS[encoding, weighted]
