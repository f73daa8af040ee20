"""Errors between tensors: of the whole tensor, and of each range of values."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weightctl.dtype import ENCODINGS
from weightctl.verify.compare.distance import MOST_KEPT, Measured, is_within
from weightctl.verify.compare.measure import measure_pair, measure_sample
from weightctl.verify.compare.pairing import Pair
from weightctl.weights import as_checkpoint
from weightctl.weights.data import WeightData
from weightctl.weights.derived import ReadableTensor, tensor_of

RANDOM = np.random.default_rng(8)
NUMBERS = RANDOM.normal(0, 0.02, (64, 256)).astype(np.float32)


def held(numbers: Any, encoding: str = "F32") -> ReadableTensor:
    data = WeightData.from_numpy(numbers, "w")
    if encoding != "F32":
        from weightctl.codecs import transcode

        raw = transcode(
            np.ascontiguousarray(numbers, np.float32).view(np.uint8),
            ENCODINGS["F32"],
            ENCODINGS[encoding],
        ).raw
        info = data.info._replace(encoding=ENCODINGS[encoding])
        data = WeightData.stored(info, memoryview(raw.tobytes()))
    return tensor_of(as_checkpoint({"w": data}).source, "w")


def pair_of(tensor: ReadableTensor, reference: ReadableTensor) -> Pair:
    bits = [each.info.encoding.size * 8 / each.info.encoding.block for each in (tensor, reference)]
    return Pair("w", "w", None, "w", "w", tensor, reference, None, *bits)


def found(tensor: ReadableTensor, reference: ReadableTensor) -> tuple[Measured, bool]:
    pair = pair_of(tensor, reference)
    measure = measure_pair(pair)
    return measure, is_within(pair, measure)


def test_equal_tensors_are_not_apart() -> None:
    measure, is_fine = found(held(NUMBERS), held(NUMBERS))
    assert is_fine
    assert (measure.relative_rmse, measure.max_error, measure.cosine) == (0.0, 0.0, 1.0)


@given(st.integers(1, 300), st.integers(0, 1 << 30))
def test_the_figures_are_those_of_numpy(size: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    one, other = random.normal(0, 1, (2, size)).astype(np.float32)
    measure, _ = found(held(one), held(other))
    wide, reference = one.astype(np.float64), other.astype(np.float64)
    lengths = np.linalg.norm(wide) * np.linalg.norm(reference)
    assert measure.count == size
    assert measure.relative_rmse == pytest.approx(
        np.linalg.norm(wide - reference) / np.linalg.norm(reference), rel=1e-5
    )
    assert measure.max_error == pytest.approx(np.abs(one - other).max())
    assert measure.cosine == pytest.approx(wide @ reference / lengths, abs=1e-5)


def test_what_was_measured_of_pieces_adds_up() -> None:
    whole = Measured(count=64, error=1.0, max_error=2.0, worst=5.0, beyond=[0, 1])
    whole.add(Measured(count=32, error=0.5, max_error=3.0, worst=4.0, first_nonfinite=70))
    whole.add(Measured(count=32, first_nonfinite=99, beyond=[*range(MOST_KEPT)]))
    assert (whole.count, whole.error, whole.max_error, whole.worst) == (128, 1.5, 3.0, 5.0)
    assert whole.first_nonfinite == 70
    assert (len(whole.beyond), whole.beyond[:4]) == (MOST_KEPT, [0, 1, 0, 1])


@pytest.mark.parametrize("encoding", ["BF16", "F16", "Q8_0", "Q6_K", "Q4_K", "Q4_0", "Q2_K"])
def test_an_encoding_costs_what_it_should(encoding: str) -> None:
    for pair in [
        (held(NUMBERS, encoding), held(NUMBERS)),
        (held(NUMBERS), held(NUMBERS, encoding)),
    ]:
        measure, is_fine = found(*pair)
        assert is_fine
        assert measure.relative_rmse == pytest.approx(measure.expected, rel=0.5)


@pytest.mark.parametrize("bit", range(10, 16))
def test_a_flipped_bit_of_one_scale_is_beyond_what_q8_0_costs(bit: int) -> None:
    measure, is_fine = found(flipped("Q8_0", bit), held(NUMBERS))
    assert not is_fine
    assert measure.runs_beyond == 1
    assert measure.beyond == [3]


@pytest.mark.parametrize("bit", range(16))
def test_any_flipped_bit_of_a_scale_shows_between_tensors_of_one_encoding(bit: int) -> None:
    measure, is_fine = found(flipped("Q8_0", bit), held(NUMBERS, "Q8_0"))
    assert not is_fine
    assert measure.unequal == [3]


def flipped(encoding: str, bit: int) -> ReadableTensor:
    tensor = held(NUMBERS, encoding)
    raw = bytearray(tensor.info.nbytes)
    tensor.read_into(0, memoryview(raw))
    raw[3 * tensor.info.encoding.size + bit // 8] ^= 1 << bit % 8
    data = WeightData.stored(tensor.info, memoryview(bytes(raw)))
    return tensor_of(as_checkpoint({"w": data}).source, "w")


def test_another_rounding_of_the_same_numbers_is_not_a_fault() -> None:
    cut = (NUMBERS.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    _, is_fine = found(held(cut, "BF16"), held(NUMBERS, "BF16"))
    assert is_fine


def test_numbers_that_are_not_finite_on_one_side_make_errors_infinite() -> None:
    damaged = NUMBERS.copy()
    damaged[5, 7] = np.nan
    measure, is_fine = found(held(damaged), held(NUMBERS))
    assert not is_fine
    assert (measure.nonfinite, measure.first_nonfinite) == (1, 5 * 256 + 7)
    assert measure.relative_rmse == inf


def test_numbers_that_are_not_finite_alike_are_equal() -> None:
    damaged = NUMBERS.copy()
    damaged[0, :3] = np.nan, np.inf, -np.inf
    _, is_fine = found(held(damaged), held(damaged.copy()))
    assert is_fine


@pytest.mark.parametrize("factor", [1e-30, 1e30])
def test_the_size_of_numbers_does_not_matter(factor: float) -> None:
    numbers = (NUMBERS * np.float32(factor)).astype(np.float32)
    measure, is_fine = found(held(numbers * np.float32(1.5)), held(numbers))
    assert not is_fine
    assert measure.relative_rmse == pytest.approx(0.5, rel=1e-3)


@pytest.mark.parametrize(("factor", "is_damage"), [(0.5, True), (2.0, True), (0.58, False)])
def test_a_factor_that_no_bit_of_a_scale_makes_is_an_encoders_choice(
    factor: float, is_damage: bool
) -> None:
    # Of a block in which one number matters more than all others, by an importance matrix.
    rounded = held(NUMBERS, "Q4_0")
    raw = bytearray(rounded.info.nbytes)
    rounded.read_into(0, memoryview(raw))
    scale = np.frombuffer(raw, np.float16, 1, 180)
    scale *= np.float16(factor)
    data = WeightData.stored(rounded.info, memoryview(raw))
    _, is_fine = found(tensor_of(as_checkpoint({"w": data}).source, "w"), held(NUMBERS))
    assert is_fine is not is_damage


@pytest.mark.parametrize("huge", [1e9, 1e12, -1e20, 3e38])
def test_one_huge_number_does_not_make_tensors_parallel(huge: float) -> None:
    damaged = NUMBERS.copy()
    damaged[3, 5] = huge
    wide, reference = damaged.astype(np.float64), NUMBERS.astype(np.float64)
    lengths = np.linalg.norm(wide) * np.linalg.norm(reference)
    measure, is_fine = found(held(damaged), held(NUMBERS))
    assert not is_fine
    assert measure.cosine == pytest.approx(np.vdot(wide, reference) / lengths, rel=1e-5)


def test_zeros_where_the_reference_has_zeros_are_not_a_fault() -> None:
    zeros = np.zeros((4, 32), np.float32)
    assert found(held(zeros), held(zeros))[1]
    measure, is_fine = found(held(zeros + 1), held(zeros))
    assert not is_fine
    assert measure.relative_rmse == inf


def test_an_empty_tensor_is_its_reference() -> None:
    empty = np.zeros((0, 32), np.float32)
    assert found(held(empty), held(empty))[1]


def test_a_sample_tells_tensors_apart() -> None:
    assert measure_sample(pair_of(held(NUMBERS), held(NUMBERS))) == 0
    assert measure_sample(pair_of(held(NUMBERS[::-1].copy()), held(NUMBERS))) > 1
