"""What an encoding costs is measured on the very numbers, and usual where nothing encodes it."""

from __future__ import annotations

import numpy as np
import pytest

from weightctl.codecs import can_encode
from weightctl.dtype import ENCODINGS
from weightctl.verify.compare.cost import PairSide, typical_error

NUMBERS = np.random.default_rng(8).normal(0, 0.02, 1 << 14).astype(np.float32)
KINDS = [
    encoding
    for encoding in ENCODINGS.values()
    if can_encode(encoding) and (encoding.quantization or encoding.name in {"F16", "BF16"})
]


def side(name: str) -> PairSide:
    encoding = ENCODINGS[name]
    return PairSide(encoding, encoding.size * 8 / encoding.block)


@pytest.mark.parametrize("encoding", KINDS, ids=str)
def test_what_is_usual_is_what_random_weights_cost(encoding: object) -> None:
    found = side(str(encoding))
    through = found.through(NUMBERS)
    assert through is not None
    error = np.linalg.norm(through - NUMBERS) / np.linalg.norm(NUMBERS)
    assert found.typical / 2.5 < error < found.typical * 2.5


def test_float32_costs_nothing() -> None:
    assert side("F32").keeps_all
    assert side("F32").through(NUMBERS) is NUMBERS


def test_what_cannot_be_encoded_is_not_measured() -> None:
    assert side("IQ2_XXS").through(NUMBERS) is None


def test_numbers_that_blocks_cannot_hold_are_not_measured() -> None:
    assert side("Q8_0").through(np.full(32, 3e38, np.float32)) is None


def test_a_weight_in_parts_costs_what_its_bits_do() -> None:
    apart = PairSide(ENCODINGS["F32"], 4.25)
    assert apart.is_apart
    assert apart.through(NUMBERS) is None
    assert 0.05 < apart.typical < 0.2
    assert typical_error(ENCODINGS["F32"], 1.0) <= 1
