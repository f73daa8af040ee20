"""Models to be verified, what verify reports of them, and whether it names what is wrong."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import save_file

import small_models
from weightctl.verify import Request, Result, Subject, verify_request
from weightctl.verify.figures import ForwardFigures

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from faults import Injected
    from weightctl.verify import Problem, Report

    Arrays = small_models.Arrays

# What `verify` says of a checkpoint, and whether it names what is wrong with it.

ALONE = ("finite", "names", "metadata", "forward")
AGAINST = (*ALONE, "values")


# Enough for attention to be felt; the default one takes ten times as long to run.
SHORT = "The harbour lay quiet under a thin fog, and the boats knocked against the old stone steps."


def report_on(
    path: Path, reference: Path | None = None, checks: Sequence[str] | None = None, **more: Any
) -> Report:
    """Return what is said of a checkpoint; all but the structure of its files is looked at.

    The text is a short one where neither one is given nor a bar that is for a longer one.
    """
    given = {"text": SHORT} if not more.keys() & {"text", "tokens", "max_perplexity"} else {}
    request = Request(
        subject=Subject(path),
        reference=None if reference is None else Subject(reference),
        **given,
        **more,
    )
    return verify_request(request, checks or (ALONE if reference is None else AGAINST))


def explain(report: Report) -> str:
    """Return all that a report says, for a failed test."""
    skipped = [f"{name}: {each.skipped}" for name, each in report.results.items() if each.skipped]
    problems = [f"{each.check}: {each} {each.cause}" for each in report.problems]
    return "\n".join(["", *problems, *skipped, *report.notes]) or "nothing"


def names(problem: Problem, where: Sequence[str]) -> bool:
    """Whether a problem names one of these tensors, keys or blocks."""
    text = f"{problem.where} {problem.text} {problem.cause.text if problem.cause else ''}"
    return any(each in text for each in where)


def assert_named(report: Report, injected: Injected, *, cause: bool = True) -> None:
    """Fail where no problem names what was changed, with its cause where one is to be told."""
    found = [each for each in report.problems if names(each, injected.where)]
    assert found, explain(report)
    if cause and injected.cause:
        causes = {each.cause.name for each in found if each.cause}
        assert injected.cause in causes, explain(report)


def assert_healthy(report: Report) -> None:
    """Fail where something is said to be wrong, or was not looked at."""
    assert not report.problems, explain(report)
    assert not any(result.skipped for result in report.results.values()), explain(report)


# Small models on disk, as transformers saves them, ready to be verified.


def saved(
    directory: Path,
    model: Any,
    tokenizer: Any = None,
    change: Callable[[Arrays], object] | None = None,
    **config: Any,
) -> Subject:
    """Write a model, its tensors changed, and its config, and its tokenizer where there is one."""
    arrays = {name: array.copy() for name, array in small_models.arrays(model).items()}
    if change is not None:
        change(arrays)
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    save_file(contiguous, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(model.config.to_dict() | config))
    if tokenizer is not None:
        tokenizer.save_pretrained(directory)
    return Subject(directory)


def forward(subject: Subject, **request: Any) -> tuple[Result, ForwardFigures]:
    """Return what the check `forward` finds, and its figures."""
    report = verify_request(Request(subject=subject, **request), ["forward"])
    figures = report.figures(ForwardFigures)
    assert figures is not None
    return report.results["forward"], figures
