"""Requests that cannot be fulfilled, or that contradict themselves, are errors of the caller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import family_tokenizers
import small_models
from verdicts import forward, saved
from weightctl.errors import ConversionError
from weightctl.verify import Request, Subject, verify

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def without_tokenizer(tmp_path: Path) -> Subject:
    (directory := tmp_path / "without").mkdir()
    model = small_models.llama(vocab_size=700, max_position_embeddings=512, num_hidden_layers=1)
    return saved(directory, model)


@pytest.fixture
def with_tokenizer(tmp_path: Path) -> Subject:
    (directory := tmp_path / "with").mkdir()
    model = small_models.llama(vocab_size=700, max_position_embeddings=512, num_hidden_layers=1)
    return saved(directory, model, family_tokenizers.llama2())


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"tokens": (1, 700)}, "the model does not have all of the given tokens: "),
        ({"tokens": ()}, r"--tokens \(tokens in Python\) is empty"),
        ({"text": "hello"}, "no tokenizer for the text"),
    ],
)
def test_what_the_model_cannot_run_on_is_refused_before_anything_is_checked(
    asked: dict[str, Any], message: str, without_tokenizer: Subject
) -> None:
    done: list[str] = []
    request = Request(
        subject=without_tokenizer, progress=lambda doing, _: done.append(doing), **asked
    )
    with pytest.raises(ConversionError, match=message):
        verify(request)
    assert not done


def test_a_text_of_half_a_character_is_refused(with_tokenizer: Subject) -> None:
    with pytest.raises(ConversionError, match="at character 6"):
        verify(Request(subject=with_tokenizer, text="hello \ud800"), ["forward"])


def test_what_nothing_runs_on_is_not_looked_at(without_tokenizer: Subject) -> None:
    assert not verify(Request(subject=without_tokenizer, tokens=(700,)), ["names"]).problems


def test_a_text_is_cut_by_the_tokenizer_of_the_only_one_that_has_one(
    with_tokenizer: Subject, without_tokenizer: Subject
) -> None:
    result, figures = forward(with_tokenizer, reference=without_tokenizer, text="hello")
    assert not result.problems
    assert figures.source == "the text"


def test_plain_english_makes_sense_to_a_model_that_works(with_tokenizer: Subject) -> None:
    (alone, figures), (given, _) = forward(with_tokenizer), forward(with_tokenizer, text="hello")
    assert figures.perplexity is not None
    # One that was drawn does not work.
    assert "worse than guessing among 700 tokens" in alone.problems[0].text
    assert not given.problems


def test_a_damaged_tokenizer_is_the_checkpoint_s(with_tokenizer: Subject) -> None:
    with open(f"{with_tokenizer.path}/tokenizer.json", "w") as file:
        file.write("{}")
    report = verify(Request(subject=with_tokenizer, text="hello"), ["forward"])
    assert "the package `tokenizers` rejects the tokenizer" in report.problems[0].text


def test_skipping_all_that_was_asked_for_is_refused(without_tokenizer: Subject) -> None:
    with pytest.raises(ConversionError, match="every check is skipped"):
        verify(Request(subject=without_tokenizer), ["names"], ["names"])


@pytest.mark.parametrize(
    ("asked", "skip", "message"),
    [
        ({"max_perplexity": 5.0}, ["forward"], "--max-ppl applies to the check `forward`"),
        ({"max_divergence": 5.0}, [], "there is no"),
        ({"max_rmse": 5.0}, [], "there is no"),
        ({"max_perplexity": 5.0, "layers": range(2)}, [], "leaves out its last layer, 2"),
        ({"layers": range(90, 95)}, [], "the model has layers 0 to 2"),
        ({"layers": range(2, 10**40)}, ["forward"], "the model has layers 0 to 2"),
        ({"layers": range(0)}, [], "the model has layers 0 to 2"),
    ],
)
def test_what_cannot_be_had_is_refused_before_anything_is_looked_at(
    asked: dict[str, Any], skip: list[str], message: str, tiny_llama: Path
) -> None:
    done: list[str] = []
    request = Request(
        subject=Subject(tiny_llama), progress=lambda doing, _: done.append(doing), **asked
    )
    with pytest.raises(ConversionError, match=message):
        verify(request, skip=skip)
    assert not done


def test_a_bar_of_a_comparison_that_is_skipped_is_refused(tiny_llama: Path) -> None:
    subject = Subject(tiny_llama)
    request = Request(subject=subject, reference=subject, max_rmse=0.1)
    with pytest.raises(ConversionError, match="--max-rmse applies to the check `values`"):
        verify(request, ["names"])


def test_a_layer_in_the_middle_may_be_looked_at_by_itself(tiny_llama: Path) -> None:
    request = Request(subject=Subject(tiny_llama), layers=range(1, 2))
    assert not verify(request, ["finite"]).problems
