"""The tokens that a model runs on: windows of a text, or of given tokens."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest
import tokenizers

import family_tokenizers
import small_models
from verdicts import forward, saved
from weightctl.errors import ConversionError, TokenizerError
from weightctl.verify import Request, Subject
from weightctl.verify.run.prompt import MOST_WINDOWS, WINDOW, Prompt, make_prompt

if TYPE_CHECKING:
    from pathlib import Path


@cache
def tokenizer(kind: str) -> Any:
    return getattr(family_tokenizers, kind)()


@pytest.fixture
def llama(tmp_path: Path) -> Subject:
    model = small_models.llama(vocab_size=700, max_position_embeddings=512, num_hidden_layers=1)
    return saved(tmp_path, model, tokenizer("llama2"))


@pytest.fixture
def without_tokenizer(tmp_path: Path) -> Subject:
    return saved(tmp_path, small_models.llama(num_hidden_layers=1))


def made(subject: Subject, **request: Any) -> Prompt:
    return make_prompt(Request(subject=subject, **request), subject)


def words(count: int) -> str:
    return "The naïve café owner. " * count


def test_without_anything_given_the_text_is_our_own(llama: Subject) -> None:
    found = made(llama)
    assert found.source == "the built-in text"
    assert found.is_text
    assert found.text_of(found.ids[0, 0]) == "<s>"


def test_every_window_begins_as_the_tokenizer_begins_a_text(llama: Subject) -> None:
    found = made(llama, text=words(100))
    assert len(found.ids) > 1
    assert (found.ids[:, 0] == tokenizer("llama2").bos_token_id).all()
    assert found.ids.shape[1] == WINDOW


def test_windows_hold_the_text_in_order(llama: Subject) -> None:
    found = made(llama, text=words(100))
    inner = found.ids[:, 1:][found.mask[:, 1:]]
    whole = tokenizer("llama2")(words(100))["input_ids"]
    assert inner.tolist() == whole[1:]


def test_what_is_behind_the_end_of_the_last_window_is_masked(llama: Subject) -> None:
    found = made(llama, tokens=tuple(range(1, 301)))
    assert found.mask.sum(1).tolist() == [256, 44]
    assert found.count == 300
    assert not found.ids[~found.mask].any()


def test_what_does_not_fit_into_the_windows_is_reported(llama: Subject) -> None:
    found = made(llama, tokens=(5,) * (WINDOW * MOST_WINDOWS + 7))
    assert len(found.ids) == MOST_WINDOWS
    assert "7 were left out" in found.notes[0]


def test_tokens_are_taken_as_they_are(llama: Subject) -> None:
    found = made(llama, tokens=(7, 6, 5))
    assert found.ids.tolist() == [[7, 6, 5]]
    assert found.mask.all()


def test_an_encoder_s_windows_begin_and_end_as_its_tokenizer_has_them(tmp_path: Path) -> None:
    model = small_models.bert(vocab_size=700, max_position_embeddings=32, num_hidden_layers=1)
    found = made(saved(tmp_path, model, tokenizer("bert")), text=words(10))
    ends = [
        window[mask][[0, -1]].tolist() for window, mask in zip(found.ids, found.mask, strict=True)
    ]
    named = tokenizer("bert")
    assert ends == [[named.cls_token_id, named.sep_token_id]] * len(ends)
    assert len(ends) > 1


def test_windows_are_no_longer_than_the_model_s_context(tmp_path: Path) -> None:
    subject = saved(tmp_path, small_models.gpt2(n_positions=16, n_layer=1))
    assert made(subject, tokens=(1,) * 40).ids.shape == (3, 16)
    assert made(subject).ids.shape == (1, 16)


def test_without_a_tokenizer_tokens_are_drawn_and_that_is_reported(
    without_tokenizer: Subject,
) -> None:
    found, again = made(without_tokenizer), made(without_tokenizer)
    assert not found.is_text
    assert "random tokens" in found.notes[0]
    assert (found.ids == again.ids).all()
    assert found.ids.max() < 96


def test_a_text_without_a_tokenizer_is_refused(without_tokenizer: Subject) -> None:
    with pytest.raises(ConversionError, match="no tokenizer"):
        made(without_tokenizer, text="hello")


@pytest.mark.parametrize("tokens", [(0, 96), (-1,), (2**70,), ()])
def test_tokens_that_the_model_does_not_know_are_refused(
    tokens: tuple[int, ...], without_tokenizer: Subject
) -> None:
    with pytest.raises(ConversionError):
        made(without_tokenizer, tokens=tokens)


def test_a_text_of_nothing_is_refused(llama: Subject) -> None:
    with pytest.raises(ConversionError, match="no tokens"):
        made(llama, text="")


def test_a_tokenizer_of_another_model_is_found_out(tmp_path: Path) -> None:
    subject = saved(tmp_path, small_models.llama(num_hidden_layers=1), tokenizer("llama2"))
    with pytest.raises(TokenizerError, match="does not have all tokens of the tokenizer"):
        made(subject)


def test_masks_and_ids_are_of_one_shape(llama: Subject) -> None:
    found = made(llama)
    assert found.ids.shape == found.mask.shape
    assert found.ids.dtype == np.int64
    assert found.mask.dtype == np.bool_


class Counted:
    """A tokenizer that notes what is asked of it."""

    done: ClassVar[list[str]] = []

    def __init__(self, real: Any) -> None:
        self._real = real

    @classmethod
    def from_buffer(cls, document: bytes) -> Counted:
        cls.done.append("read")
        return cls(REAL.from_buffer(document))

    def encode(self, text: str, **how: Any) -> Any:
        self.done.append(text)
        return self._real.encode(text, **how)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


REAL: Any = tokenizers.Tokenizer


@pytest.mark.parametrize(("has_tokenizer", "times"), [((True, True), 2), ((True, False), 1)])
def test_each_tokenizer_is_read_once_and_cuts_the_text_once(
    has_tokenizer: tuple[bool, bool], times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subjects: list[Subject] = []
    for name, has in zip("ab", has_tokenizer, strict=True):
        (directory := tmp_path / name).mkdir()
        model = small_models.llama(vocab_size=700, num_hidden_layers=1)
        subjects.append(saved(directory, model, tokenizer("llama2") if has else None))
    monkeypatch.setattr(tokenizers, "Tokenizer", Counted)
    monkeypatch.setattr(Counted, "done", [])
    result, figures = forward(subjects[0], reference=subjects[1], text="hello")
    assert not result.problems
    assert figures.source == "the text"
    assert Counted.done.count("read") == times
    assert Counted.done.count("hello") == times
