"""A model that runs by itself: what is measured, and outputs that no working model has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import small_models
from verdicts import forward, saved
from weightctl.verify import Request, Subject, verify

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FAMILIES = (
    "llama", "gpt2", "bert", "qwen2", "qwen3", "phi3", "mixtral", "qwen3moe", "gemma2", "gemma3",
)  # fmt: skip
TOKENS = tuple(map(int, np.random.default_rng(4).integers(0, 96, 50)))
DOWN = "model.layers.1.mlp.down_proj.weight"


def llama(path: Path, change: Callable[[Any], object] | None = None, **sizes: Any) -> Subject:
    return saved(path, small_models.llama(num_hidden_layers=3, **sizes), change=change)


@pytest.mark.parametrize("family", FAMILIES)
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


@pytest.mark.parametrize("name", ["lm_head.weight", "model.norm.weight"])
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


@pytest.mark.parametrize(("bar", "problems"), [(1.5, 1), (1e9, 0)])
def test_a_perplexity_above_the_bar_is_a_problem(bar: float, problems: int, tmp_path: Path) -> None:
    result, _ = forward(llama(tmp_path), tokens=TOKENS, max_perplexity=bar)
    assert len(result.problems) == problems


@pytest.mark.parametrize(("family", "why"), [("llama", "random tokens"), ("bert", "encoder")])
def test_a_bar_that_nothing_can_be_held_to_is_not_passed(
    family: str, why: str, tmp_path: Path
) -> None:
    subject = saved(tmp_path, getattr(small_models, family)())
    result, _ = forward(subject, max_perplexity=1e9)
    assert why in result.problems[0].text
    assert "the limit of 1e+09 for the perplexity could not be checked" in result.problems[0].text


def test_a_model_that_cannot_be_built_is_skipped_and_says_why(tmp_path: Path) -> None:
    subject = llama(tmp_path, lambda arrays: arrays.pop(DOWN))
    result = verify(Request(subject=subject), ["forward"]).results["forward"]
    assert result.skipped.startswith("the model cannot be built: ")
    assert result.figures is None


def test_what_is_being_done_is_reported(tmp_path: Path) -> None:
    reported: list[tuple[str, float]] = []
    forward(llama(tmp_path), progress=lambda *step: reported.append(step))
    assert reported[0][0] == "forward, layer 0"
    assert [done for _, done in reported] == sorted(done for _, done in reported)
    assert all(0 <= done <= 1 for _, done in reported)
