"""Rows to encode and blocks of them, with every codec that can run here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weightctl.codecs import codec, definition
from weightctl.codecs.compiled import CompiledCodec
from weightctl.dtype import ENCODINGS, DType
from weightctl.kernels import active, kernel, levels
from weightctl.kernels.grids import DISTANCES
from weightctl.weights import WeightData

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.random import Generator

    from weightctl.codecs.base import F32, U8, Codec
    from weightctl.dtype import QuantizationEncoding


# Numbers to encode, ordinary and adversarial, and how much each column of them matters.

BLOCKS = [name for name, encoding in ENCODINGS.items() if encoding.codec]
# The types with grids, whose search takes NumPy a second for a hundred thousand numbers.
GRIDS = [*DISTANCES]
SHAPE = (8, 768)
COLUMNS = SHAPE[1]


def normal(rng: Generator, size: float = 1.0) -> F32:
    with np.errstate(all="ignore"):
        numbers = (rng.standard_normal(SHAPE) * size).astype(np.float32)
    greatest = np.finfo(np.float32).max
    return np.clip(numbers, -greatest, greatest)


def bfloat16(rng: Generator) -> F32:
    return (normal(rng).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def outlier(rng: Generator) -> F32:
    rows = normal(rng)
    rows[:, 3::256] *= 1000
    return rows


def alone(rng: Generator) -> F32:
    rows = np.zeros(SHAPE, np.float32)
    rows[:, 7::256] = normal(rng)[:, 7::256]
    return rows


def sizes(rng: Generator, each: int, most: int) -> F32:
    """Normal numbers, every `each` of them of another order of magnitude, up to 10**`most`."""
    exponents = rng.uniform(-44, most, (SHAPE[0], COLUMNS // each)).repeat(each, axis=1)
    return (rng.standard_normal(SHAPE) * 10**exponents).astype(np.float32)


def halves(rng: Generator) -> F32:
    """Numbers between two levels of Q8_0, and their neighbors on either side."""
    rows = (rng.integers(-127, 127, SHAPE) + 0.5).astype(np.float32)
    rows = np.nextafter(rows, rows + rng.integers(-1, 2, SHAPE).astype(np.float32))
    rows[:, ::32] = 127
    return rows


def of_size(size: float) -> Callable[[Generator], F32]:
    return lambda rng: normal(rng, size)


def constant(value: float) -> Callable[[Generator], F32]:
    return lambda _: np.full(SHAPE, value, np.float32)


ROWS: dict[str, Callable[[Generator], F32]] = {
    "normal": normal,
    "bfloat16": bfloat16,
    "laplace": lambda rng: rng.laplace(size=SHAPE).astype(np.float32),
    "uniform": lambda rng: rng.uniform(-1, 1, SHAPE).astype(np.float32),
    "whole": lambda rng: np.round(normal(rng, 3)),
    "ternary": lambda rng: rng.integers(-1, 2, SHAPE).astype(np.float32),
    "sparse": lambda rng: normal(rng) * (rng.random(SHAPE) < 0.02),
    "zeros": constant(0.0),
    "negative-zeros": constant(-0.0),
    "both-zeros": lambda rng: np.copysign(np.float32(0), normal(rng)),
    "constant": constant(0.37),
    "negative-constant": constant(-0.37),
    "constant-blocks": lambda rng: normal(rng)[:, ::32].repeat(32, axis=1),
    "positive": lambda rng: np.abs(normal(rng)),
    "negative": lambda rng: -np.abs(normal(rng)),
    "near-one": lambda rng: 1 + normal(rng, 1e-6),
    "near-minus-one": lambda rng: -1 + normal(rng, 1e-6),
    "outlier": outlier,
    "alone": alone,
    "halves": halves,
    "sizes": lambda rng: sizes(rng, 1, 4),
    "block-sizes": lambda rng: sizes(rng, 32, 4),
    "huge-block-sizes": lambda rng: sizes(rng, 32, 37),
    **{
        f"1e{exponent}": of_size(10.0**exponent)
        for exponent in (-44, -40, -38, -36, -30, -20, -15, -8, 4, 6, 10, 18, 19, 30, 38)
    },
}
IMPORTANCE: dict[str, Callable[[Generator], F32 | None]] = {
    "none": lambda _: None,
    "ones": lambda _: np.ones(COLUMNS, np.float32),
    "gamma": lambda rng: rng.gamma(0.5, 1, COLUMNS).astype(np.float32),
    "some-zero": lambda rng: (rng.random(COLUMNS) * (rng.random(COLUMNS) < 0.5)).astype(np.float32),
    "all-zero": lambda _: np.zeros(COLUMNS, np.float32),
    "sizes": lambda rng: (10 ** rng.uniform(-12, 12, COLUMNS)).astype(np.float32),
}


def example(rows: str, importance: str) -> tuple[F32, F32 | None]:
    """Return rows and their importance by their names; always the same."""
    rng = np.random.default_rng(20)
    return ROWS[rows](rng), IMPORTANCE[importance](rng)


def required(encoding: str, rows: F32, importance: F32 | None) -> F32 | None:
    """Return importance, or equal importance of all columns where a type needs some."""
    if importance is None and ENCODINGS[encoding].needs_importance:
        return np.ones(rows.shape[1], np.float32)
    return importance


def encoded(codec: Codec, encoding: str, rows: F32, importance: F32 | None = None) -> U8:
    """Return the blocks of rows; see `required`."""
    importance = required(encoding, rows, importance)
    kind = ENCODINGS[encoding]
    # Filled with a pattern, so that a byte left unwritten shows.
    out = np.full((len(rows), rows.shape[1] // kind.block * kind.size), 0xA5, np.uint8)
    codec.encode(rows, importance, out)
    return out


def decoded(codec: Codec, encoding: str, blocks: U8) -> F32:
    kind = ENCODINGS[encoding]
    out = np.full((len(blocks), blocks.shape[1] // kind.size * kind.block), np.nan, np.float32)
    codec.decode(blocks, out)
    return out


# Numbers in quantized blocks.

Array = np.ndarray[Any, Any]


def in_blocks(
    numbers: Array, encoding: QuantizationEncoding, name: str = "weight"
) -> tuple[WeightData, Array]:
    """Return rows of numbers as blocks, and the numbers that these hold."""
    kind = encoding.encoding
    raw = np.empty((len(numbers), kind.row_bytes(numbers.shape[1])), np.uint8)
    codec(kind).encode(numbers, None, raw)
    held = np.empty(numbers.shape, np.float32)
    codec(kind).decode(raw, held)
    return WeightData(raw, name, DType.uint8, raw.shape, encoding), held


# An encoding's codecs: its definition in NumPy, and the kernel of each instruction set.


def twins(encoding: str) -> list[tuple[str, Codec]]:
    """Return every codec of an encoding that can run here, with its name; NumPy's is first."""
    plain = definition(ENCODINGS[encoding])
    found: list[tuple[str, Codec]] = [("NumPy", plain)]
    if active() is None:
        return found
    for level, name in enumerate(levels()):
        compiled = kernel(encoding, level)
        if compiled is not None:
            found.append((name, CompiledCodec(plain, compiled)))
    return found
