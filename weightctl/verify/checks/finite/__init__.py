"""The check `finite`: all values are finite, and none are missing or damaged."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from weightctl.families.names import split_layer_number
from weightctl.verify.checks.finite.judge import Finding, Judge
from weightctl.verify.checks.finite.survey import is_numbers, survey_tensors
from weightctl.verify.figures import FiniteFigures
from weightctl.verify.results import MOST_NAMED, Problem, Result
from weightctl.weights.derived import tensor_of
from weightctl.weights.tree import header_of, source_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weightctl.verify.request import Request
    from weightctl.weights.info import Header, TensorInfo

__all__ = ["check"]


def check(request: Request) -> Result:
    """Check every floating-point value and every quantized block of a checkpoint.

    Problems are NaN and infinite values, damaged block scales, matrices that are all zero or
    constant, and zero rows. Zero rows of unused tokens are notes.
    """
    weights = request.subject.weights
    header = header_of(weights)
    infos = [
        info
        for info in header.tensors.values()
        if is_numbers(info.encoding)
        and info.size
        and request.has_layer(split_layer_number(info.name)[0])
    ]
    if request.layers is not None and not infos:
        return Result(
            skipped="no tensor is in the layers of --layers; `weightctl ls` lists the layers"
        )
    repeated = [info.name for info in infos if _is_repeated(header, info)]
    infos = [info for info in infos if not _is_repeated(header, info)]
    surveyed = survey_tensors(
        source_of(weights), infos, partial(request.tell, "finite"), workers=request.workers
    )
    notes = [
        f"`{name}` repeats a few values of its file, so it was not checked"
        for name in repeated[:MOST_NAMED]
    ]
    if request.layers is not None:
        notes.append(f"{len(infos)} of {len(header.tensors)} tensors are in the layers of --layers")
    judge = Judge(request.subject)
    findings: list[Finding] = []
    for info in infos:
        survey = surveyed[info.name]
        if isinstance(survey, str):
            findings.append(Finding(info.name, "unreadable", survey))
        else:
            findings.extend(judge.findings(tensor_of(source_of(weights), info.name), survey))
    return Result(
        problems=tuple(_list_problems(findings)),
        figures=FiniteFigures(
            tensors=len(infos),
            numbers=sum(info.size for info in infos),
            nbytes=sum(info.nbytes for info in infos),
        ),
        notes=(*notes, *judge.notes),
    )


def _list_problems(findings: list[Finding]) -> Iterator[Problem]:
    """Yield the first findings of each kind as problems, and a problem that counts the others."""
    counts: dict[str, int] = {}
    for finding in findings:
        counts[finding.kind] = counts.get(finding.kind, 0) + 1
        if counts[finding.kind] <= MOST_NAMED:
            yield Problem(where=finding.name, text=finding.text, cause=finding.cause)
    for kind, count in counts.items():
        if count > MOST_NAMED:
            text = f"{count - MOST_NAMED:,} more tensors have this problem: {kind}"
            yield Problem(where="", text=text)


def _is_repeated(header: Header, info: TensorInfo) -> bool:
    """Whether a tensor has a stride of 0, so that many indices share the same stored elements."""
    strides = header.extents[info.name].strides
    return strides is not None and any(
        stride == 0 and size > 1 for stride, size in zip(strides, info.shape, strict=False)
    )
