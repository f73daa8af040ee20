"""Bars that nothing would be held to, and layers that there are not, are refused at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from weightctl.errors import ConversionError
from weightctl.verify import Request, Subject, verify

if TYPE_CHECKING:
    from pathlib import Path


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
