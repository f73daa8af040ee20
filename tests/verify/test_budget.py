"""What encodings cost a model is what they cost the reference's own weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import fault_files
from verdicts import assert_healthy, report_on
from weightctl import WeightData
from weightctl.families import recognize
from weightctl.formats.open.opening import open_weights
from weightctl.verify import Subject
from weightctl.verify.checks.forward.budget import degrade
from weightctl.verify.compare.pairs import convert_convention, pair_tensors
from weightctl.weights.derived import DerivedTensor
from weightctl.weights.steps.numbers import AsFloat32, numbers_of

if TYPE_CHECKING:
    from pathlib import Path

    from healthy_models import Models


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
    files = fault_files.read(healthy.gguf("gpt2"))
    embedding = files.numbers("embedding.weight")
    files.tensors["output.weight"] = WeightData.from_numpy(embedding, "output.weight")
    untied = files.write(tmp_path / "untied.gguf")
    assert "output.weight" in recognize(open_weights(untied)).tensors
    tied = healthy.gguf("gpt2", "Q4_K")
    assert_healthy(report_on(tied, untied) if is_coarser else report_on(untied, tied))
