"""A model that runs by itself: what is measured, and outputs that no working model has."""

from __future__ import annotations

import json
import random
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import small_models
from arrays import stored, weights_of
from conftest import ROOT
from each import each
from faults import in_gguf, inject
from lazy import torch
from verdicts import forward, report_on, saved
from weightctl import Plan
from weightctl.dtype import ENCODINGS
from weightctl.plan.cast import cast
from weightctl.verify import Request, Subject, verify_request
from weightctl.verify.checks.forward import check_matrices
from weightctl.verify.checks.forward.walk import Share, is_beyond, measure_share
from weightctl.verify.figures import ForwardFigures, MatrixGain
from weightctl.verify.run.output import (
    Agreement,
    compute_expectations,
    count_by_bound,
    find_least_cosine,
    summarize,
)
from weightctl.weights.metadata import MetadataValue
from weightctl.write.save import save

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from crossing_fixtures import Models
    from weightctl.verify import Report


FAMILIES = (
    "llama", "gpt2", "bert", "qwen2", "qwen3", "phi3", "mixtral", "qwen3moe", "gemma2", "gemma3",
)  # fmt: skip
TOKENS = tuple(map(int, np.random.default_rng(4).integers(0, 96, 50)))
DOWN = "model.layers.1.mlp.down_proj.weight"


def llama(path: Path, change: Callable[[Any], object] | None = None, **sizes: Any) -> Subject:
    return saved(path, small_models.llama(num_hidden_layers=3, **sizes), change=change)


@each("family", FAMILIES)
def test_a_model_of_any_family_that_is_well_is_not_found_fault_with(
    family: str, tmp_path: Path
) -> None:
    result, figures = forward(saved(tmp_path, getattr(small_models, family)()))
    assert not result.problems
    assert not result.skipped
    layers = sum(each.name.startswith("layers.") for each in figures.activations)
    assert [each.name for each in figures.activations] == [
        "embedding", *(f"layers.{number}" for number in range(layers)), "output",
    ]  # fmt: skip


def test_perplexity_and_next_tokens_are_those_of_transformers(tmp_path: Path) -> None:
    model = small_models.llama(num_hidden_layers=3)
    result, figures = forward(saved(tmp_path, model), tokens=TOKENS)
    logits = torch.from_numpy(small_models.logits(model, np.array([TOKENS])))[0].double()
    loss = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(TOKENS[1:]))
    chances, likeliest = logits[-1].softmax(-1).topk(5)
    assert figures.perplexity == pytest.approx(float(loss.exp()), rel=1e-4)
    assert [each.token for each in figures.next_tokens] == likeliest.tolist()
    found = [each.probability for each in figures.next_tokens]
    assert found == pytest.approx(chances.tolist(), rel=1e-3)
    assert not result.problems


def permute(tokens: list[Any], share: float) -> list[Any]:
    """Return tokens of which this share have changed places."""
    made = list(tokens)
    chosen = random.Random(3).sample(range(len(made)), int(share * len(made)))
    for place, other in zip(chosen, random.Random(4).sample(chosen, len(chosen)), strict=True):
        made[place] = tokens[other]
    return made


def test_a_vocabulary_in_another_order_is_a_problem_of_the_run(tmp_path: Path) -> None:
    sound = ROOT / "fixtures" / "tiny-llama"
    assert not forward(Subject(sound))[0].problems
    shutil.copytree(sound, tmp_path / "wrong")
    tokenizer = tmp_path / "wrong" / "tokenizer.json"
    document = json.loads(tokenizer.read_text())
    words = document["model"]["vocab"]
    words |= dict(zip(words, permute([*words.values()], 0.1), strict=True))
    tokenizer.write_text(json.dumps(document))
    result, figures = forward(Subject(tmp_path / "wrong"))
    assert figures.perplexity is not None
    assert 40 < figures.perplexity < 512
    (problem,) = result.problems
    assert "the model's own predictions allow" in problem.text
    # The text of a user may be in a language that the model does not know.
    assert not forward(Subject(tmp_path / "wrong"), text="Thank you for the soup. " * 30)[
        0
    ].problems


@pytest.mark.long
@pytest.mark.parametrize("share", [0.0, 0.1, 0.2, 0.3])
def test_a_real_vocabulary_in_another_order_is_a_problem_of_the_run(
    smollm2: Path, tmp_path: Path, share: float
) -> None:
    key = "tokenizer.ggml.tokens"

    def change(metadata: dict[str, MetadataValue]) -> None:
        content = permute([*metadata[key].content], share)
        metadata[key] = MetadataValue(metadata[key].type, content)

    in_gguf(smollm2, tmp_path / "model.gguf", change)
    result, _ = forward(Subject(tmp_path / "model.gguf"))
    assert bool(result.problems) == bool(share)


def test_what_a_model_expects_is_the_entropy_and_the_tail_of_its_prediction() -> None:
    chances = np.array([[0.5, 0.25, 0.125, 0.125], [0.25, 0.25, 0.25, 0.25]])
    targets = np.array([2, 0])
    found = compute_expectations(np.log(chances).astype(np.float32), targets)
    np.testing.assert_allclose(found.entropies, [1.75 * np.log(2), 2 * np.log(2)], rtol=1e-6)
    np.testing.assert_allclose(found.tails, [0.25, 1.0], rtol=1e-6)
    certain = compute_expectations(np.array([[0, -np.inf]], np.float32), np.array([1]))
    assert [*certain.entropies, *certain.tails] == [0.0, 0.0]
    # Logits that are not finite are judged elsewhere, and cause no warning here.
    assert np.isnan(compute_expectations(np.array([[0, np.inf]], np.float32), np.array([1])).tails)


def test_windows_do_not_see_each_other_and_count_alike(tmp_path: Path) -> None:
    model = small_models.gpt2(n_positions=16)
    _, figures = forward(saved(tmp_path, model), tokens=TOKENS)
    windows = [TOKENS[start : start + 16] for start in range(0, 50, 16)]
    losses = [
        torch.nn.functional.cross_entropy(
            torch.from_numpy(small_models.logits(model, np.array([window])))[0, :-1].double(),
            torch.tensor(window[1:]),
            reduction="none",
        )
        for window in windows
    ]
    assert figures.windows == 4
    assert figures.perplexity == pytest.approx(float(torch.cat(losses).mean().exp()), rel=1e-4)


def test_the_first_part_that_gives_what_is_not_finite_is_named_and_no_later_one(
    tmp_path: Path,
) -> None:
    def ruin(arrays: Any) -> None:
        arrays[DOWN][3, 5] = np.nan

    result, figures = forward(llama(tmp_path, ruin))
    assert [problem.where for problem in result.problems] == ["layers.1"]
    assert [each.nonfinite > 0 for each in figures.activations] == [False] * 2 + [True] * 3
    assert figures.perplexity is None
    assert figures.next_tokens == ()


def test_numbers_that_overflow_are_named_where_they_do(tmp_path: Path) -> None:
    def ruin(arrays: Any) -> None:
        arrays[DOWN].fill(3e38)

    result, _ = forward(llama(tmp_path, ruin))
    assert [problem.where for problem in result.problems] == ["layers.1"]
    assert "infinite" in result.problems[0].text


def test_a_layer_that_makes_all_that_goes_into_it_far_larger_is_named(tmp_path: Path) -> None:
    def ruin(arrays: Any) -> None:
        arrays[DOWN] *= np.float32(1e7)

    result, _ = forward(llama(tmp_path, ruin))
    assert [problem.where for problem in result.problems] == ["layers.1"]
    assert "times as large" in result.problems[0].text


def test_one_position_with_large_numbers_is_not_a_fault(tmp_path: Path) -> None:
    def change(arrays: Any) -> None:
        arrays["model.embed_tokens.weight"][7] *= np.float32(1e5)

    result, figures = forward(llama(tmp_path, change), tokens=(7, *TOKENS))
    assert not result.problems
    assert figures.activations[0].greatest > 1e4


@each("name", ["lm_head.weight", "model.norm.weight"])
def test_logits_that_tell_nothing_apart_are_a_problem(name: str, tmp_path: Path) -> None:
    result, _ = forward(llama(tmp_path, lambda arrays: arrays[name].fill(0)))
    assert [problem.where for problem in result.problems] == ["output"]
    assert "equally probable" in result.problems[0].text


def test_logits_that_are_the_same_after_every_token_are_a_problem(tmp_path: Path) -> None:
    def ruin(arrays: Any) -> None:
        arrays["model.embed_tokens.weight"][:] = arrays["model.embed_tokens.weight"][0]

    result, _ = forward(llama(tmp_path, ruin))
    assert "the same after every text" in result.problems[0].text


def test_a_model_that_is_certain_and_wrong_is_a_problem(tmp_path: Path) -> None:
    def ruin(arrays: Any) -> None:
        arrays["lm_head.weight"] *= np.float32(1e4)

    result, _ = forward(llama(tmp_path, ruin), tokens=TOKENS)
    assert "certain" in result.problems[0].text


def test_one_token_repeated_may_have_one_answer(tmp_path: Path) -> None:
    result, _ = forward(llama(tmp_path), tokens=(5, 5))
    assert not result.problems


def test_states_of_an_encoder_that_are_all_the_same_are_a_problem(tmp_path: Path) -> None:
    def ruin(arrays: Any) -> None:
        arrays["encoder.layer.1.output.LayerNorm.weight"].fill(0)

    result, figures = forward(saved(tmp_path, small_models.bert(), change=ruin))
    assert "the same for every token" in result.problems[0].text
    assert figures.perplexity is None


def test_layers_that_are_asked_for_are_shown_and_no_later_one_runs(tmp_path: Path) -> None:
    def ruin(arrays: Any) -> None:
        arrays["model.layers.2.mlp.down_proj.weight"][0, 0] = np.nan

    result, figures = forward(llama(tmp_path, ruin), layers=range(1, 2), tokens=TOKENS)
    assert [each.name for each in figures.activations] == ["layers.1"]
    assert not result.problems
    assert figures.perplexity is None


def test_where_the_last_layer_was_asked_for_the_output_runs_too(tmp_path: Path) -> None:
    _, figures = forward(llama(tmp_path), layers=range(2, 3), tokens=TOKENS)
    assert [each.name for each in figures.activations] == ["layers.2", "output"]
    assert figures.perplexity is not None


@each("bar, problems", [(1.5, 1), (1e9, 0)])
def test_a_perplexity_above_the_bar_is_a_problem(bar: float, problems: int, tmp_path: Path) -> None:
    result, _ = forward(llama(tmp_path), tokens=TOKENS, max_perplexity=bar)
    assert len(result.problems) == problems


@each("family, why", [("llama", "random tokens"), ("bert", "encoder")])
def test_a_bar_that_nothing_can_be_held_to_is_not_passed(
    family: str, why: str, tmp_path: Path
) -> None:
    subject = saved(tmp_path, getattr(small_models, family)())
    result, _ = forward(subject, max_perplexity=1e9)
    assert why in result.problems[0].text
    assert "the limit of 1e+09 for the perplexity could not be checked" in result.problems[0].text


def test_a_model_that_cannot_be_built_is_skipped_and_says_why(tmp_path: Path) -> None:
    subject = llama(tmp_path, lambda arrays: arrays.pop(DOWN))
    result = verify_request(Request(subject=subject), ["forward"]).results["forward"]
    assert result.skipped.startswith("the model cannot be built: ")
    assert result.figures is None


def test_what_is_being_done_is_reported(tmp_path: Path) -> None:
    reported: list[tuple[str, float]] = []
    forward(llama(tmp_path), progress=lambda *step: reported.append(step))
    assert reported[0][0] == "forward, layer 0"
    assert [done for _, done in reported] == sorted(done for _, done in reported)
    assert all(0 <= done <= 1 for _, done in reported)


# A model runs beside its reference: the first block that differs, and the tensor in it.


PROMPT = tuple(range(5, 69))


def _compared(path: Path, reference: Path, **more: Any) -> Report:
    return report_on(path, reference, ["forward"], **({"tokens": PROMPT} | more))


def _figures(report: Report) -> ForwardFigures:
    found = report.figures(ForwardFigures)
    assert found is not None
    return found


def test_every_part_costs_what_its_encoding_does(healthy: Models) -> None:
    report = _compared(healthy.gguf("tiny-llama", "Q4_0"), healthy("tiny-llama"))
    divergence = _figures(report).divergence
    assert divergence is not None
    assert not report.problems
    assert [each.divergence for each in divergence.layers] == pytest.approx(
        [each.expected for each in divergence.layers], rel=0.05
    )


def test_a_model_is_what_it_is_in_the_other_convention(healthy: Models) -> None:
    report = _compared(healthy.gguf("tiny-llama", "f32"), healthy("tiny-llama"))
    divergence = _figures(report).divergence
    assert divergence is not None
    assert divergence.top_1 == 1
    assert divergence.mean is not None
    assert divergence.mean < 1e-9


def test_one_block_alone_is_blamed_for_a_fault_that_all_later_ones_feel(
    healthy: Models, tmp_path: Path
) -> None:
    injected = inject(healthy("tiny-llama"), tmp_path / "faulty", "zeroed")
    report = _compared(injected.path, healthy("tiny-llama"))
    divergence = _figures(report).divergence
    assert divergence is not None
    assert [each.name for each in divergence.layers if each.is_problem] == ["layers.1"]
    assert [each.where for each in report.problems] == list(injected.where)


def test_a_whole_block_is_one_problem(healthy: Models, tmp_path: Path) -> None:
    injected = inject(healthy("tiny-llama"), tmp_path / "faulty", "layers exchanged")
    report = _compared(injected.path, healthy("tiny-llama"))
    assert [each.where for each in report.problems] == ["layers.0", "layers.1"]
    assert {each.cause and each.cause.name for each in report.problems} == {"layers_exchanged"}


def test_a_key_of_the_config_is_to_blame_for_the_blocks_that_it_changes(
    healthy: Models, tmp_path: Path
) -> None:
    injected = inject(healthy("tiny-llama"), tmp_path / "faulty", "rope theta")
    report = _compared(injected.path, healthy("tiny-llama"))
    assert [each.where for each in report.problems] == ["rope_theta", "layers.0"]
    assert len({each.cause for each in report.problems}) == 1


def test_a_divergence_above_the_bar_is_a_problem(healthy: Models) -> None:
    report = _compared(
        healthy.gguf("tiny-llama", "Q4_0"), healthy("tiny-llama"), max_divergence=1e-4
    )
    (problem,) = report.problems
    assert "above 0.0001" in problem.text


def test_only_the_layers_that_were_asked_for_are_looked_at(healthy: Models) -> None:
    report = _compared(healthy.gguf("tiny-llama", "Q8_0"), healthy("tiny-llama"), layers=range(2))
    divergence = _figures(report).divergence
    assert divergence is not None
    assert [each.name for each in divergence.layers] == ["layers.0", "layers.1"]
    assert divergence.mean is None


def test_encoders_are_compared_by_their_states(healthy: Models) -> None:
    report = _compared(healthy.gguf("bert", "f16"), healthy("bert"))
    divergence = _figures(report).divergence
    assert divergence is not None
    assert divergence.mean is None
    assert divergence.cosine == pytest.approx(1, abs=1e-5)


def test_one_position_with_huge_numbers_does_not_hide_the_others() -> None:
    wanted = np.ones((100, 8), np.float32)
    wanted[0] *= 1e4
    found = wanted * np.float32(1.1)
    found[0] = wanted[0]
    assert measure_share(found, wanted, wanted).all == pytest.approx(0.1, rel=0.02)


def test_what_is_not_finite_is_beyond_all_that_is_expected() -> None:
    wanted = np.ones((2, 8), np.float32)
    assert is_beyond(measure_share(wanted * np.inf, wanted, wanted), Share(1.0, 1.0))


# The matrices of a model of an unknown family, each run by itself.


def drawn(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(3).standard_normal(shape, np.float32)


def test_each_matrix_makes_about_as_much_of_a_vector_as_random_numbers_would(
    tmp_path: Path,
) -> None:
    arrays = {"a": drawn(200, 100), "conv": drawn(8, 4, 3, 3), "stack": drawn(3, 40, 64)}
    result, figures = forward(Subject(stored(tmp_path / "x.safetensors", **arrays)))
    assert [each.name for each in figures.matrices] == list(arrays)
    assert (figures.windows, figures.tokens) == (1, 0)
    for matrix in figures.matrices:
        assert matrix.gain == pytest.approx(matrix.usual, rel=0.4)
    assert not result.problems
    assert any("family is unknown" in note for note in result.notes)


def test_vectors_and_whole_numbers_are_not_matrices(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {
        "norm": drawn(40), "ids": np.zeros((4, 4), np.int64), "none": drawn(0, 4), "a": drawn(4, 4),
    }  # fmt: skip
    _, figures = forward(Subject(stored(tmp_path / "x.safetensors", **arrays)))
    assert [each.name for each in figures.matrices] == ["a"]


def test_what_no_model_multiplies_by_is_left_out(tmp_path: Path) -> None:
    arrays = {
        "a.weight": drawn(4, 4), "a.rotary_emb.inv_freq": drawn(4, 4),
        "optimizer.state.0.exp_avg": drawn(4, 4),
    }  # fmt: skip
    _, figures = forward(Subject(stored(tmp_path / "x.safetensors", **arrays)))
    assert [each.name for each in figures.matrices] == ["a.weight"]


def test_a_bar_for_a_model_that_did_not_run_is_not_passed(tmp_path: Path) -> None:
    subject = Subject(stored(tmp_path / "x.safetensors", a=drawn(4, 4)))
    result, _ = forward(subject, max_perplexity=20.0)
    (problem,) = result.problems
    assert problem.text.startswith("the limit of 20 for the perplexity could not be checked: ")


@each("bad", [np.nan, np.inf, 1e12])
def test_a_matrix_that_ruins_a_vector_is_named(bad: float, tmp_path: Path) -> None:
    ruined = drawn(30, 20)
    ruined[3, 4] = bad
    subject = Subject(stored(tmp_path / "x.safetensors", good=drawn(8, 8), ruined=ruined))
    result, _ = forward(subject)
    assert [problem.where for problem in result.problems] == ["ruined"]


def in_parts(subject: Subject) -> MatrixGain:
    """Return the figures of the one matrix of a model, a few rows of which run at a time."""
    figures = check_matrices(Request(subject=subject), at_once=7 * 64).figures
    assert isinstance(figures, ForwardFigures)
    (matrix,) = figures.matrices
    return matrix


def test_a_matrix_in_parts_is_the_same_matrix(tmp_path: Path) -> None:
    subject = Subject(stored(tmp_path / "x.safetensors", a=drawn(50, 64)))
    _, whole = forward(subject)
    parts = in_parts(subject)
    assert parts.gain == pytest.approx(whole.matrices[0].gain, rel=1e-6)
    assert parts.usual == pytest.approx(whole.matrices[0].usual, rel=1e-6)


def test_matrices_of_blocks_run_too(tmp_path: Path) -> None:
    plain, path = drawn(50, 64), tmp_path / "x.gguf"
    save(cast(Plan.copy(weights_of({"a": plain}), "gguf"), ENCODINGS["Q8_0"]), path)
    _, numbers = forward(Subject(stored(tmp_path / "x.safetensors", a=plain)))
    assert in_parts(Subject(path)).gain == pytest.approx(numbers.matrices[0].gain, rel=0.01)


# Predictions of two models: divergence by position, its distribution, and cosines of states.


LOGITS = arrays.arrays(np.float32, (3, 7), elements=st.floats(-50, 50, width=32))


def _divergences(reference: object, logits: object) -> list[float]:
    agreement = Agreement()
    agreement.add(np.array(reference, np.float32), np.array(logits, np.float32))
    return agreement.divergences.tolist()


def test_the_divergence_of_two_coins_is_the_textbooks() -> None:
    even, uneven = np.log([[0.5, 0.5]]), np.log([[0.9, 0.1]])
    expected = 0.5 * np.log(0.5 / 0.9) + 0.5 * np.log(0.5 / 0.1)
    assert _divergences(even, uneven) == pytest.approx([expected], rel=1e-6)


def test_equal_logits_do_not_diverge() -> None:
    logits = np.random.default_rng(1).standard_normal((5, 100)) * 10
    assert _divergences(logits, logits) == [0.0] * 5


def test_what_is_added_to_all_logits_changes_nothing() -> None:
    logits = np.random.default_rng(1).standard_normal((5, 100))
    assert max(_divergences(logits, logits + 3)) < 1e-10


def test_a_token_that_one_rules_out_alone_diverges_without_end() -> None:
    assert _divergences([[0, 0]], [[0, -np.inf]]) == [np.inf]


def test_a_token_that_both_rule_out_does_not_count() -> None:
    assert _divergences([[0, 1, -np.inf]], [[0, 1, -np.inf]]) == [0.0]


def test_a_token_that_the_reference_alone_rules_out_does_not_count() -> None:
    assert _divergences([[0, -np.inf]], [[0, -50]]) == pytest.approx([0.0], abs=1e-12)


def test_what_is_not_a_number_diverges_without_end() -> None:
    assert _divergences([[0, 1]], [[np.nan, 1]]) == [np.inf]


@given(LOGITS, LOGITS)
def test_no_divergence_is_below_zero(reference: object, logits: object) -> None:
    assert min(_divergences(reference, logits)) >= 0


def test_positions_agree_where_the_same_token_is_the_likeliest() -> None:
    agreement = Agreement()
    agreement.add(np.eye(3, dtype=np.float32), np.eye(3, dtype=np.float32)[[0, 1, 1]])
    assert agreement.agreed == 2


def test_a_spread_has_the_mean_the_percentile_and_the_greatest() -> None:
    found = summarize(np.arange(101.0))
    figures = (found.mean, found.percentile_99, found.greatest)
    assert figures == pytest.approx((50, 99, 100))


def test_a_spread_of_nothing_has_no_figures() -> None:
    found = summarize(np.empty(0))
    assert (found.mean, found.percentile_99, found.greatest) == (None, None, None)


def test_an_infinite_divergence_makes_the_mean_infinite_and_nothing_nan() -> None:
    found = summarize(np.array([0.0, np.inf]))
    assert (found.mean, found.percentile_99, found.greatest) == (np.inf, np.inf, np.inf)


def test_a_histogram_counts_every_position_once() -> None:
    numbers = np.array([0, 1e-9, 0.05, 3, 1e9, np.inf])
    assert sum(count for _, count in count_by_bound(numbers)) == len(numbers)


def test_a_number_on_a_bound_is_counted_above_it() -> None:
    assert count_by_bound(np.array([1.0, 0.5]), [1, 2]) == ((1, 1), (2, 1))


def test_states_that_are_equal_have_a_cosine_of_one() -> None:
    states = np.zeros((2, 4), np.float32)
    assert find_least_cosine(states, states) == 1


def test_the_least_cosine_is_that_of_the_position_that_is_furthest_off() -> None:
    one = np.array([[1, 0], [1, 0]], np.float32)
    other = np.array([[2, 0], [0, 1]], np.float32)
    assert find_least_cosine(one, other) == 0
