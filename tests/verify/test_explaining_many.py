"""Of many tensors that nothing explains not each is compared with all others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from arrays import stored
from weightctl.verify import Subject
from weightctl.verify.compare.explaining import PATIENCE, explain_each
from weightctl.verify.compare.measure import Samples, take_sample
from weightctl.verify.compare.pairs import pair_tensors
from weightctl.weights.derived import DerivedTensor
from weightctl.weights.steps.rows import RowRange

if TYPE_CHECKING:
    from pathlib import Path

    from weightctl.verify.compare.pairs import Pairing

RANDOM = np.random.default_rng(12)
COUNT = PATIENCE + 20


def _matrices() -> dict[str, Any]:
    return {
        f"layers.{number}.w.weight": RANDOM.normal(0, 1, (32, 64)).astype(np.float32)
        for number in range(COUNT)
    }


def _pairing(tmp_path: Path, own: dict[str, Any], reference: dict[str, Any]) -> Pairing:
    paths = [
        stored(tmp_path / f"{n}.safetensors", **each) for n, each in enumerate((own, reference))
    ]
    subject, other = map(Subject, paths)
    return pair_tensors(subject, other)


def test_no_cause_is_looked_for_once_many_had_none(tmp_path: Path) -> None:
    pairing = _pairing(tmp_path, _matrices(), _matrices())
    assert explain_each(pairing.pairs, pairing) == [None] * COUNT
    assert len(pairing.causes) == PATIENCE


def test_a_tensor_that_is_explained_gives_hope_for_the_next(tmp_path: Path) -> None:
    reference = _matrices()
    own = _matrices()
    names = list(own)
    for name in (names[PATIENCE - 1], names[-1]):
        own[name] = reference[name] / 2
    pairing = _pairing(tmp_path, own, reference)
    causes = explain_each(pairing.pairs, pairing)
    scaled = [number for number, cause in enumerate(causes) if cause and cause.name == "scaled"]
    assert scaled == [PATIENCE - 1, COUNT - 1]


def test_a_sample_is_kept_for_the_tensor_that_it_is_of(tmp_path: Path) -> None:
    pairing = _pairing(tmp_path, _matrices(), _matrices())
    samples = Samples()
    first = pairing.pairs[0].reference
    kept = samples.of(first)
    assert samples.of(first) is kept
    for number in range(1000):
        # Each is gone before the next is made.
        pair = pairing.pairs[number % COUNT]
        part = DerivedTensor("part", RowRange(1, 5), [pair.reference])
        assert np.array_equal(samples.of(part), take_sample(part))
    assert np.array_equal(samples.of(first), kept)
