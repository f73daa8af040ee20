"""The loss of an encoding is measured on the actual values, also for a whole model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import faults
from verdicts import assert_healthy, report_on
from weightctl import WeightData
from weightctl.codecs import can_encode
from weightctl.dtype import ENCODINGS
from weightctl.families import recognize
from weightctl.formats.open.opening import open_weights
from weightctl.verify import Subject
from weightctl.verify.checks.forward.budget import degrade
from weightctl.verify.compare.distance import PairSide, typical_error
from weightctl.verify.compare.pairing import convert_convention
from weightctl.verify.compare.pairs import pair_tensors
from weightctl.weights.derived import DerivedTensor
from weightctl.weights.steps.numbers import AsFloat32, numbers_of

if TYPE_CHECKING:
    from pathlib import Path

    from crossing_fixtures import Models


NUMBERS = np.random.default_rng(8).normal(0, 0.02, 1 << 14).astype(np.float32)
KINDS = [
    encoding
    for encoding in ENCODINGS.values()
    if can_encode(encoding)
    and not encoding.needs_importance
    and (encoding.quantization or encoding.name in {"F16", "BF16"})
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


def test_what_cannot_be_encoded_without_importance_is_not_measured() -> None:
    assert side("IQ2_XXS").through(NUMBERS) is None


def test_numbers_that_blocks_cannot_hold_are_not_measured() -> None:
    assert side("Q8_0").through(np.full(32, 3e38, np.float32)) is None


def test_a_weight_in_parts_costs_what_its_bits_do() -> None:
    apart = PairSide(ENCODINGS["F32"], 4.25)
    assert apart.is_apart
    assert apart.through(NUMBERS) is None
    assert 0.05 < apart.typical < 0.2
    assert typical_error(ENCODINGS["F32"], 1.0) <= 1


@pytest.mark.parametrize("is_coarser", [True, False])
@pytest.mark.parametrize("model", ["gpt2", "tiny-llama"])
def test_weights_are_as_far_off_as_the_encoding_put_them(
    model: str, is_coarser: bool, healthy: Models
) -> None:
    paths = [healthy.gguf(model, "Q4_K"), healthy(model)]
    subject, reference = map(Subject, paths if is_coarser else paths[::-1])
    own, other = subject.checkpoint, reference.checkpoint
    assert own
    assert other
    matrices = [
        pair
        for pair in pair_tensors(subject, reference).pairs
        if pair.layer is not None and len(pair.tensor.info.shape) == 2
    ]
    assert matrices
    for pair in matrices:
        assert pair.names
        made = degrade(pair, own, other)
        assert made is not None, pair.name
        turned = convert_convention(pair.names, own.tensors[pair.module], own, other.convention)
        wanted = numbers_of(DerivedTensor(pair.module, AsFloat32(), [turned]))
        np.testing.assert_allclose(numbers_of(made), wanted, rtol=0, atol=1e-8, err_msg=pair.name)


@pytest.mark.parametrize("is_coarser", [True, False])
def test_an_output_that_is_a_copy_of_the_embedding_costs_what_the_embedding_does(
    is_coarser: bool, healthy: Models, tmp_path: Path
) -> None:
    files = faults.read(healthy.gguf("gpt2"))
    embedding = files.numbers("embedding.weight")
    files.tensors["output.weight"] = WeightData.from_numpy(embedding, "output.weight")
    untied = files.write(tmp_path / "untied.gguf")
    assert "output.weight" in recognize(open_weights(untied)).tensors
    tied = healthy.gguf("gpt2", "Q4_K")
    assert_healthy(report_on(tied, untied) if is_coarser else report_on(untied, tied))
