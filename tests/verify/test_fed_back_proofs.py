"""Proofs of tensors that were rounded with error feedback, with and without the products."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from importances import imatrix_with_products
from weightctl import convert, open_weights
from weightctl.codecs.feedback.parts import has_parts
from weightctl.dtype import ENCODINGS
from weightctl.verify import verify
from weightctl.verify.proof.verdicts import ProofFigures, Verdict
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

TYPES = [name for name, encoding in ENCODINGS.items() if has_parts(encoding)]
PARTS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
NAMES = [f"blk.{layer}.{part}.weight" for layer in range(2) for part in PARTS][: len(TYPES)]
CHOSEN = dict(zip(NAMES, TYPES, strict=True))
SOME = {name: kind for name, kind in CHOSEN.items() if kind in {"Q4_1", "Q6_K", "IQ4_XS"}}
WITHOUT = "values were rounded with error feedback"


class Made:
    """A model of random matrices, an importance matrix with products, and what is made of them."""

    def __init__(self, place: Path, chosen: Mapping[str, str]) -> None:
        self.names = {*chosen}
        self.place, self.source = place, place / "source.gguf"
        random = np.random.default_rng(1)
        columns = {name: 512 if "ffn_down" in name else 256 for name in chosen}
        arrays = {
            name: (random.standard_t(5, (48, width)) * 0.02).astype(np.float32)
            for name, width in columns.items()
        }
        convert(arrays, self.source, names="keep", metadata={"general.architecture": "none"})
        self.matrix = imatrix_with_products(place / "imatrix.gguf", columns)
        self.plain_matrix = imatrix_with_products(place / "plain.gguf", columns, has_products=False)
        self.fed_back, self.plain = place / "fed-back.gguf", place / "alone.gguf"
        rules = {f"^{name.replace('.', r'[.]')}$": kind for name, kind in chosen.items()}
        self.options = {"tensor_types": rules, "names": "keep", "imatrix": self.matrix}
        convert(self.source, self.fed_back, **self.options)
        convert(self.source, self.plain, feedback=False, **self.options)

    def prove(self, path: Path, **more: Any) -> tuple[ProofFigures, list[str], list[str]]:
        """Return the figures of a proof, its problems as text, and its notes."""
        report = verify(path, self.source, checks=["metadata"], prove=True, **more)
        figures, result = report.figures(ProofFigures), report.results["proof"]
        assert figures is not None, result.skipped
        return figures, [str(each) for each in result.problems], [*result.notes]


@pytest.fixture(scope="module")
def each_type(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("each"), CHOSEN)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("some"), SOME)


def by_verdict(figures: ProofFigures) -> Mapping[Verdict, set[str]]:
    found: dict[Verdict, set[str]] = {}
    for each in figures.tensors:
        found.setdefault(each.verdict, set()).add(each.name)
    return found


def test_each_type_is_reproduced_with_the_products(each_type: Made) -> None:
    stored = header_of(open_weights(each_type.fed_back)).tensors
    assert {name: str(info.encoding) for name, info in stored.items()} == CHOSEN
    figures, problems, _ = each_type.prove(each_type.fed_back, imatrix=each_type.matrix)
    assert problems == []
    assert by_verdict(figures) == {Verdict.REPRODUCED: set(NAMES)}
    assert (figures.feeds_back, figures.uses_importance) == (True, True)
    assert "with error feedback" in figures.summarize()


@pytest.mark.parametrize("kind", ["none", "squares"])
def test_without_the_products_tensors_are_within_the_bound_and_the_reason_is_said(
    kind: str, each_type: Made
) -> None:
    imatrix = None if kind == "none" else each_type.plain_matrix
    figures, problems, notes = each_type.prove(each_type.fed_back, imatrix=imatrix)
    assert problems == []
    assert by_verdict(figures) == {Verdict.BOUNDED: set(NAMES)}
    assert not figures.feeds_back
    # Codes that are not the nearest ones tell nothing of types that values had before.
    assert figures.through == ""
    assert figures.additions == ()
    assert any(WITHOUT in each and "--imatrix" in each for each in notes)


def test_a_file_without_feedback_is_reproduced_with_a_matrix_that_has_products(made: Made) -> None:
    figures, problems, notes = made.prove(made.plain, imatrix=made.matrix)
    assert (problems, notes) == ([], [])
    assert by_verdict(figures) == {Verdict.REPRODUCED: made.names}
    assert not figures.feeds_back


def test_a_file_that_only_states_feedback_is_proved_as_any_other(made: Made) -> None:
    claims = made.place / "claims.gguf"
    convert(made.plain, claims, names="keep", metadata={"weightctl.rounding": "error feedback"})
    figures, problems, _ = made.prove(claims)
    expected, _, _ = made.prove(made.plain)
    assert problems == []
    assert by_verdict(figures) == by_verdict(expected)


def change_bits(made: Made, path: Path, names: Sequence[str], seed: int) -> dict[str, int]:
    """Change a bit in one row of each of some tensors, and return these rows."""
    header, random = header_of(open_weights(made.fed_back)), np.random.default_rng(seed)
    raw, rows = bytearray(made.fed_back.read_bytes()), {}
    for name in names:
        rows[name], size = int(random.integers(48)), header.tensors[name].nbytes // 48
        place = header.extents[name].offset + rows[name] * size + int(random.integers(size))
        raw[place] ^= 1 << int(random.integers(8))
    path.write_bytes(raw)
    return rows


def list_unlocated(made: Made, names: Sequence[str], seed: int) -> list[str]:
    path = made.place / "changed.gguf"
    rows = change_bits(made, path, names, seed)
    figures, problems, _ = made.prove(path, imatrix=made.matrix)
    found = {each.name: each.wrong_rows for each in figures.tensors
             if each.verdict is Verdict.OTHER}  # fmt: skip
    is_told = all(any(name in each for each in problems) for name in names)
    if is_told and found == {name: (row,) for name, row in rows.items()}:
        return []
    return [f"{found}, {rows}, {figures.counts}, {problems}"]


def test_changed_bits_are_located_with_the_products(made: Made) -> None:
    assert list_unlocated(made, sorted(made.names), 3) == []


@pytest.mark.long
def test_a_changed_bit_of_each_type_is_located_with_the_products(each_type: Made) -> None:
    cases = [*([name] for name in NAMES), *([NAMES] * 8)]
    found = [list_unlocated(each_type, names, seed) for seed, names in enumerate(cases)]
    assert [each for part in found for each in part] == []


def test_changed_weights_are_found_without_the_products(made: Made) -> None:
    # A file that states feedback is not excused from being near its source.
    source = {name: np.array(node.data()) for name, node in open_weights(made.source).items()}
    (changed,) = (name for name, kind in SOME.items() if kind == "Q6_K")
    source[changed] = source[changed] * np.float32(1.2)
    convert(source, made.place / "tuned-source.gguf", names="keep")
    convert(made.place / "tuned-source.gguf", made.place / "tuned.gguf", **made.options)
    for imatrix in (None, made.matrix):
        figures, problems, _ = made.prove(made.place / "tuned.gguf", imatrix=imatrix)
        assert by_verdict(figures)[Verdict.OTHER] == {changed}
        assert any(changed in each for each in problems)


def test_a_sample_is_reproduced_with_the_products(made: Made) -> None:
    figures, problems, _ = made.prove(made.fed_back, imatrix=made.matrix, sample=0.3)
    assert problems == []
    assert by_verdict(figures) == {Verdict.REPRODUCED: made.names}
    assert all(each.checked < 48 for each in figures.tensors)
    figures, problems, notes = made.prove(made.fed_back, sample=0.3)
    assert problems == []
    assert by_verdict(figures) == {Verdict.BOUNDED: made.names}
    assert any(WITHOUT in each for each in notes)


def test_values_may_differ_more_and_a_note_says_so(made: Made) -> None:
    result = verify(made.fed_back, made.source, checks=["values"]).results["values"]
    assert not result.problems
    assert any("error feedback" in note and "--prove" in note for note in result.notes)
    plain = verify(made.plain, made.source, checks=["values"]).results["values"]
    assert not any("error feedback" in note for note in plain.notes)


def test_a_file_that_is_quantized_again_does_not_state_feedback(made: Made, tmp_path: Path) -> None:
    again, kept = tmp_path / "again.gguf", tmp_path / "kept.gguf"
    convert(made.fed_back, again, names="keep", quant="Q8_0", allow_requantize=True)
    assert "weightctl.rounding" not in open_weights(again).metadata
    convert(made.fed_back, kept, names="keep")
    assert "weightctl.rounding" in open_weights(kept).metadata
