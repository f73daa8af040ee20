"""Divergences and perplexities are the same as those of transformers on the same text."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from verdicts import report_on
from weightctl.verify.figures import ForwardFigures

if TYPE_CHECKING:
    from pathlib import Path

    from crossing_fixtures import Models

WINDOW = 256
# Of what is computed in float32 by both, in another order.
WITHIN = 0.01


class Said(NamedTuple):
    """What two models say of a text, the first one being the reference."""

    divergence: float
    reference_perplexity: float
    perplexity: float
    top_1: float


def in_transformers(reference: Path, other: Path, windows: list[list[int]]) -> Said:
    """Return what transformers says of two directories, everything in float32 and by the book."""
    divergences: list[torch.Tensor] = []
    losses: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
    agrees: list[torch.Tensor] = []
    models = [
        AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        for path in (reference, other)
    ]
    for window in windows:
        tokens = torch.tensor([window])
        with torch.inference_mode():
            right, found = (model(tokens).logits[0].double().log_softmax(-1) for model in models)
        divergences.append((right.exp() * (right - found)).sum(-1))
        agrees.append((right.argmax(-1) == found.argmax(-1)).double())
        for kept, scores in zip(losses, (right, found), strict=True):
            kept.append(-scores[:-1].gather(1, tokens[0, 1:, None])[:, 0])
    first, second = (math.exp(torch.cat(kept).mean()) for kept in losses)
    return Said(
        float(torch.cat(divergences).mean()), first, second, float(torch.cat(agrees).mean())
    )


def by_verify(reference: Path, other: Path, **given: Any) -> tuple[Said, int]:
    """Return the same by `verify`, and on how many tokens."""
    report = report_on(other, reference, ["forward"], **given)
    figures = report.figures(ForwardFigures)
    assert figures is not None
    assert figures.divergence is not None
    scores = Said(
        figures.divergence.mean or 0,
        figures.divergence.reference_perplexity or 0,
        figures.perplexity or 0,
        figures.divergence.top_1 or 0,
    )
    return scores, figures.tokens


def cut(directory: Path, text: str) -> list[list[int]]:
    """Return the windows of a text by the tokenizer that lies in a directory.

    Each begins as the text does, where the tokenizer has something for that.
    """
    tokenizer = AutoTokenizer.from_pretrained(directory)
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    whole = tokenizer(text)["input_ids"]
    first = whole[: len(whole) - len(tokens)]
    step = WINDOW - len(first)
    return [first + tokens[start : start + step] for start in range(0, len(tokens), step)]


def assert_agree(found: Said, expected: Said) -> None:
    assert expected.divergence > 0
    assert found.divergence == pytest.approx(expected.divergence, rel=WITHIN)
    assert found.reference_perplexity == pytest.approx(expected.reference_perplexity, rel=WITHIN)
    assert found.perplexity == pytest.approx(expected.perplexity, rel=WITHIN)
    # A choice or two may be as good as even.
    assert found.top_1 == pytest.approx(expected.top_1, abs=0.01)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K"])
def test_of_a_small_model(kind: str, healthy: Models, tiny_llama: Path) -> None:
    text = (tiny_llama / "held-out.txt").read_text()[:1200]
    windows = cut(tiny_llama, text)
    found, tokens = by_verify(tiny_llama, healthy.gguf("tiny-llama", kind), text=text)
    assert tokens == sum(map(len, windows))
    assert len(windows) > 1
    back = healthy.directory("tiny-llama", kind)
    assert_agree(found, in_transformers(tiny_llama, back, windows))


def test_of_tokens(healthy: Models, tiny_llama: Path) -> None:
    tokens = cut(tiny_llama, (tiny_llama / "held-out.txt").read_text()[:600])[0][:120]
    found, _ = by_verify(tiny_llama, healthy.gguf("tiny-llama", "Q4_0"), tokens=tuple(tokens))
    back = healthy.directory("tiny-llama", "Q4_0")
    assert_agree(found, in_transformers(tiny_llama, back, [tokens]))


@pytest.mark.long
@pytest.mark.real
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_of_a_real_model(kind: str, healthy: Models, tiny_llama: Path) -> None:
    text = (tiny_llama / "held-out.txt").read_text()[:1200]
    windows = cut(healthy("smollm2"), text)
    found, tokens = by_verify(healthy("smollm2"), healthy.gguf("smollm2", kind), text=text)
    assert tokens == sum(map(len, windows))
    back = healthy.directory("smollm2", kind)
    assert_agree(found, in_transformers(healthy("smollm2"), back, windows))
