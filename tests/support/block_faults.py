"""Damage inside quantized blocks: single bits of one block's scale in a GGUF file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

import fault_files
from faults import Injected, of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# Where in a block its first scale is, a half-precision number.
SCALE_AT = {"Q8_0": 0, "Q4_0": 0, "Q4_K": 0, "Q6_K": 208}
EXPONENT_BITS = range(10, 15)
MODULE = of("mlp.up.weight")
ROW, BLOCK = 5, 2
NAN = np.float16("nan").view(np.uint16)


def flip(source: Path, out: Path, bit: int) -> Injected:
    """Write a copy of a Q8_0 file in which one bit of one scale is another."""
    return _write(source, out, "Q8_0", lambda scale: scale ^ np.uint16(1 << bit))


def make_nan(source: Path, out: Path, kind: str) -> Injected:
    """Write a copy of a GGUF file in which one block's scale is NaN."""
    return _write(source, out, kind, lambda _: NAN)


def _write(source: Path, out: Path, kind: str, change: Callable[..., np.uint16]) -> Injected:
    files = fault_files.read(source)
    encoding = files.tensors[files.where(MODULE)].info.encoding
    assert encoding.name == kind
    rows = files.numbers(MODULE)
    start = min(BLOCK, rows.shape[1] // encoding.size - 1) * encoding.size + SCALE_AT[kind]
    scale = rows[ROW, start : start + 2].view(np.uint16)
    scale[0] = change(scale[0])
    where = files.put(MODULE, rows)
    return Injected(files.write(out), (where,), "scale")
