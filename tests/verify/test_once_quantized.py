"""Dequantized files are detected by their values, with a single message and the encoding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import families
from arrays import stored
from crossing_fixtures import SMALL
from verdicts import report_on
from weightctl.dtype import ENCODINGS
from weightctl.verify import Request, Subject
from weightctl.verify.checks.values import check
from weightctl.verify.compare.distance import PairSide

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from crossing_fixtures import Models
    from weightctl.verify import Problem

    Arrays = dict[str, Any]

RANDOM = np.random.default_rng(21)
ORIGINAL: Arrays = {
    f"layers.{number}.{part}.weight": RANDOM.normal(0, 0.02, shape).astype(np.float32)
    for number in range(3)
    for part, shape in {"q": (32, 256), "down": (32, 512)}.items()
}
NORM = {"norm.weight": RANDOM.uniform(0.5, 1.5, 256).astype(np.float32)}


def through(numbers: Any, *names: str) -> Any:
    """Return numbers that were stored in some encodings, one after another."""
    flat = numbers.reshape(-1).copy()
    for encoding in (ENCODINGS[name] for name in names):
        made = PairSide(encoding, encoding.size * 8 / encoding.block).through(flat)
        assert made is not None
        flat = made
    return flat.reshape(numbers.shape).copy()


def problems_of(tmp_path: Path, own: Arrays, reference: Arrays) -> tuple[Problem, ...]:
    paths = [
        stored(tmp_path / f"{n}.safetensors", **each) for n, each in enumerate((own, reference))
    ]
    subject, other = map(Subject, paths)
    return check(Request(subject=subject, reference=other)).problems


@pytest.mark.parametrize("kept", ["F32", "BF16", "F16"])
@pytest.mark.parametrize(
    "kind",
    ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL",
     "MXFP4", "F8_E4M3"],
)  # fmt: skip
def test_the_encoding_is_named_once_for_all_tensors(tmp_path: Path, kind: str, kept: str) -> None:
    own = {name: through(array, kind, kept) for name, array in ORIGINAL.items()}
    (problem,) = problems_of(tmp_path, own | NORM, ORIGINAL | NORM)
    assert problem.cause is not None
    assert problem.cause.name == "dequantized"
    assert problem.cause.text.startswith("the values look dequantized")
    assert f"in {kind} before" in problem.cause.text
    assert problem.text.endswith("; in all, 6 tensors differ in this way: q, down of layers 0 to 2")


def test_a_mixture_is_one_cause_that_names_both(tmp_path: Path) -> None:
    own = {
        name: through(array, "Q6_K" if name == "layers.1.down.weight" else "Q4_K", "BF16")
        for name, array in ORIGINAL.items()
    }
    (problem,) = problems_of(tmp_path, own, ORIGINAL)
    assert problem.cause is not None
    assert "in Q4_K and Q6_K before" in problem.cause.text


def test_it_is_reported_for_the_reference_where_that_was_quantized(tmp_path: Path) -> None:
    other = {name: through(array, "Q4_0", "F16") for name, array in ORIGINAL.items()}
    (problem,) = problems_of(tmp_path, ORIGINAL, other)
    assert problem.cause is not None
    assert problem.cause.text.startswith("the values of the reference look dequantized")


@pytest.mark.parametrize("size", [0.001, 0.005, 0.02, 0.04, 0.07, 0.15, 0.3])
@pytest.mark.parametrize("kept", ["F32", "BF16"])
def test_noise_of_any_size_is_not_taken_for_an_encoding(
    tmp_path: Path, size: float, kept: str
) -> None:
    own: Arrays = {}
    for name, array in ORIGINAL.items():
        noise = 1 + size * RANDOM.standard_normal(array.size)
        noisy: Any = array.reshape(-1) * noise
        own[name] = through(noisy.astype(np.float32).reshape(array.shape), kept)
    rounded = {name: through(array, kept) for name, array in ORIGINAL.items()}
    found = problems_of(tmp_path, own, rounded)
    assert found
    assert {each.cause and each.cause.name for each in found} <= {None, "training_steps"}


@pytest.mark.parametrize("kind", ["Q4_K", "Q8_0", "Q4_0"])
@pytest.mark.parametrize("model", SMALL)
def test_a_model_converted_back_has_one_cause(model: str, kind: str, healthy: Models) -> None:
    report = report_on(healthy.directory(model, kind), healthy(model), ["values", "forward"])
    values, forward = report.problems
    assert values.cause is not None
    assert values.cause.name == "dequantized"
    assert kind in values.cause.text
    assert (values.check, forward.check, forward.cause) == ("values", "forward", values.cause)


@pytest.mark.parametrize("name", families.FAMILIES)
def test_no_family_that_was_changed_otherwise_is_told_so(
    name: str, family: Callable[[str], families.Made], tmp_path: Path
) -> None:
    path = family(name).path
    for file in path.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = {
        name: (1.0625 * tensor + 0.05 * tensor[..., ::-1]).astype(np.float32)
        for name, tensor in load_file(path / "model.safetensors").items()
    }
    save_file(tensors, tmp_path / "model.safetensors")
    found = report_on(tmp_path, path, ["values"]).problems
    assert found
    assert "dequantized" not in {each.cause.name for each in found if each.cause is not None}
