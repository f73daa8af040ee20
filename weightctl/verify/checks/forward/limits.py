"""Checks of the limits that a request sets for a model that runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.verify.results import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weightctl.verify.figures import Divergence
    from weightctl.verify.request import Request
    from weightctl.verify.run.prompt import Prompt

__all__ = ["check_divergence", "check_perplexity", "report_unjudged"]


_PERPLEXITY, _DIVERGENCE = "the perplexity", "the mean KL divergence"


def report_unjudged(request: Request, why: str) -> Iterator[Problem]:
    """Yield a problem for each limit that could not be checked because the model did not run."""
    if request.max_perplexity is not None:
        yield _report_unchecked(_PERPLEXITY, request.max_perplexity, why)
    if request.max_divergence is not None:
        yield _report_unchecked(_DIVERGENCE, request.max_divergence, why)


def _report_unchecked(figure: str, limit: float, why: str) -> Problem:
    text = f"the limit of {limit:g} for {figure} could not be checked: {why}"
    return Problem(where="", text=text)


def check_perplexity(
    request: Request, given: Prompt, perplexity: float | None, *, has_logits: bool
) -> Iterator[Problem]:
    """Yield a problem if the perplexity is above the limit, or could not be measured."""
    limit = request.max_perplexity
    if limit is None:
        return
    why = ""
    if not has_logits:
        why = "an encoder has none"
    elif not given.is_text:
        why = "the model ran on random tokens; give a text, or token ids of one"
    elif perplexity is None:
        why = "the model gives no finite logits"
    elif perplexity > limit:
        yield Problem(
            where="", text=f"the perplexity on {given.source} is {perplexity:.4g}, above {limit:g}"
        )
    if why:
        yield _report_unchecked(_PERPLEXITY, limit, why)


def check_divergence(
    request: Request, divergence: Divergence | None, *, has_logits: bool
) -> Iterator[Problem]:
    """Yield a problem if the mean divergence is above the limit, or could not be measured."""
    limit = request.max_divergence
    if limit is None:
        return
    if divergence is None:
        yield _report_unchecked(_DIVERGENCE, limit, "the reference did not run")
    elif divergence.mean is None:
        why = "not all layers ran" if has_logits else "an encoder has none"
        yield _report_unchecked(_DIVERGENCE, limit, why)
    elif not divergence.mean <= limit:
        text = (
            f"the mean KL divergence from the reference is {divergence.mean:.4g} nats, above "
            f"{limit:g}"
        )
        yield Problem(where="", text=text)
