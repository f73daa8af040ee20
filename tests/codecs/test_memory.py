"""Conversions keep to the memory that the executor reckons with."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from weightctl.codecs import transcode
from weightctl.dtype import ENCODINGS, Encoding
from weightctl.write.tasks import _WORKING

FLOATS = [e for e in ENCODINGS.values() if e.dtype is not None and e.dtype.is_float]
BLOCKS = [e for e in ENCODINGS.values() if e.codec]
SOURCES = [*FLOATS, *BLOCKS, ENCODINGS["I64"], ENCODINGS["U8"]]
F64 = ENCODINGS["F64"]


# In their blocks the scale is the greatest number, or the greatest number has its limit.
SMALL = {"Q2_0", "TQ1_0", "TQ2_0", "NVFP4"}


def is_impossible(source: Encoding, target: Encoding) -> bool:
    # Blocks have zeros, and an exponent alone is none.
    return source.dtype is None and target.name == "F8_E8M0"


@pytest.mark.parametrize(
    ("source", "target"),
    [(s, t) for s in SOURCES for t in FLOATS if s != t and not is_impossible(s, t)]
    + [(ENCODINGS[s], t) for s in ("F64", "BF16", "Q4_K") for t in BLOCKS if s != t.name],
    ids=str,
)
def test_a_piece_is_converted_and_measured_within_its_memory(
    source: Encoding, target: Encoding
) -> None:
    # As many numbers as the executor takes at a time; fewer where it is slow.
    numbers = np.random.default_rng(4).uniform(1, 6, (1, 1 << (17 if target.codec else 18)))
    made = [of(source, numbers)]
    if source.name in {"F64", "F32", "BF16", "I64"}:
        # What the fast ways leave to the slow ones, and what could overflow the scale of a block.
        numbers[0, ::1000] = 1e5 if target.name not in SMALL else 1e3
        made.append(of(source, numbers))
    importance = np.ones(numbers.size, np.float32) if target.codec else None
    # The tables of a type, which are made once in a process, do not count.
    first = made[0][:, : 1024 // source.block * source.size]
    transcode(first, source, target, None if importance is None else importance[:1024])
    for raw in made:
        tracemalloc.start()
        transcode(raw, source, target, importance, measure=True)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak + raw.nbytes <= _WORKING * numbers.size


def of(encoding: Encoding, numbers: np.ndarray) -> np.ndarray:
    if encoding.dtype is not None and encoding.dtype.is_integer:
        return numbers.astype(encoding.dtype.value).view(np.uint8)
    importance = np.ones(numbers.size, np.float32) if encoding.needs_importance else None
    return transcode(numbers.view(np.uint8), F64, encoding, importance).raw
