"""Runs the requested checks in order and collects their results."""

from __future__ import annotations

import os
import time
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from weightctl.device import CPU
from weightctl.engine.devices import preload_torch
from weightctl.errors import ConversionError
from weightctl.plan.choices import DEFAULT_TASK
from weightctl.schemes.matching import count_parameters, read_entries
from weightctl.storage.location import without_file_scheme
from weightctl.system.registry import load
from weightctl.text.wording import join_names, pluralize
from weightctl.verify.checks import CHECKS
from weightctl.verify.proof.verdicts import ProofFigures
from weightctl.verify.request import Request, Workers, require_consistent, run_check
from weightctl.verify.results import Problem, Report, Result
from weightctl.verify.subject import Subject, require_there
from weightctl.weights.readable import refuse_expanded, refuse_unknown
from weightctl.weights.tree import header_of, source_of
from weightctl.write.executors import hold_executor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor

    from weightctl.device import DeviceRef
    from weightctl.weights.protocol import Openable

_MOST_ENCODINGS = 3
# The checks beside a proof.
_OF_PROOF = ("structure", "names", "metadata")


def verify(
    model: Openable,
    against: Openable | None = None,
    *,
    checks: Sequence[str] | None = None,
    skip: Sequence[str] = (),
    compare: bool = False,
    device: DeviceRef = CPU,
    text: str | None = None,
    tokens: Sequence[int] | None = None,
    layers: range | None = None,
    max_perplexity: float | None = None,
    max_divergence: float | None = None,
    max_rmse: float | None = None,
    prove: bool = False,
    sample: float | None = None,
    imatrix: str | os.PathLike[str] | None = None,
    attest: str | os.PathLike[str] | None = None,
    attestation: str | os.PathLike[str] | None = None,
    key: str | os.PathLike[str] | None = None,
    source_format: str | None = None,
    progress: Callable[[str, float], object] | None = None,
    on: str | Executor | None = None,
    task_size: int | str = DEFAULT_TASK,
) -> Report:
    """Check that a checkpoint works, and list what is wrong with it.

    `model` and the reference `against` are paths, URLs, trees of weights, or mappings of names to
    arrays. The other arguments are those of `Request` and of `verify_request`, whose errors are
    raised; a path or format that is probably a mistake is an error too.
    """
    request = Request(
        subject=Subject(model, source_format),
        reference=None if against is None else Subject(against),
        device=device,
        text=text,
        tokens=None if tokens is None else tuple(tokens),
        layers=layers,
        max_perplexity=max_perplexity,
        max_divergence=max_divergence,
        max_rmse=max_rmse,
        sample=sample,
        imatrix=None if imatrix is None else os.fspath(imatrix),
        attest=None if attest is None else os.fspath(attest),
        attestation=None if attestation is None else os.fspath(attestation),
        key=None if key is None else os.fspath(key),
        compare=compare,
        progress=progress,
    )
    models = [model] if against is None else [model, against]
    if on is not None and not all(isinstance(each, str | os.PathLike) for each in models):
        raise ConversionError(
            "workers read files, but the model is not a path",
            hint="leave out `on`, or save the model and pass its path",
        )
    require_there(request.subject)
    wanted = choose_checks(request, checks, prove=prove)
    return verify_request(request, wanted, skip, on=on, task_size=task_size)


def choose_checks(
    request: Request, checks: Sequence[str] | None, *, prove: bool
) -> Sequence[str] | None:
    """Return the given checks, and those of a proof and of a statement; None for the usual ones.

    A proof also has checks that need no run of the model, unless some are given.
    """
    wanted = [*(checks or _OF_PROOF), "proof"] if prove else [*(checks or ())]
    return [*wanted, *(["attestation"] if request.attestation else ())] or None


def verify_request(
    request: Request,
    checks: Sequence[str] | None = None,
    skip: Sequence[str] = (),
    *,
    on: str | Executor | None = None,
    task_size: int | str = DEFAULT_TASK,
) -> Report:
    """Verify a checkpoint, alone or against a reference.

    `checks` are the names of the checks to run, all of them if None; `skip` are names to leave out.
    The report lists the problems of the checkpoint, or its differences from the reference if
    `Request.compare` is set.

    `on` selects workers that read the values for the checks `structure`, `finite` and `values`: an
    executor, or text such as "processes:4", as in `weightctl.convert`. Each worker has one thread
    and reads at most `task_size` bytes at a time. The report does not depend on the workers.

    Raises `ConversionError` if a check is unknown or lacks its reference, if no check is left, if a
    limit is not applied by any check, if layers do not exist, or if the model cannot run on the
    tokens or the text; `OSError` if a file is missing; `FormatError` or `ConversionError` if the
    reference is damaged; and `EncodingError` if a tensor cannot be decoded.
    """
    wanted = _choose_checks(request, checks, skip)
    if on is None or request.subject.damage is not None:
        return _attest(request, _run_checks(request, wanted))
    with hold_executor(on) as executor, closing(Workers(executor, request, task_size)) as workers:
        return _attest(request, _run_checks(replace(request, workers=workers), wanted))


def _attest(request: Request, report: Report) -> Report:
    """Write the statement on a proof, if it is asked for and there are no problems."""
    figures, reference = report.figures(ProofFigures), request.reference
    if not request.attest or report.problems or figures is None or reference is None:
        return report
    from weightctl.write.attestation import describe_derivation, write_attestation
    from weightctl.write.attestation.forms import list_parts

    sample = {"share": figures.most_wrong, "confidence": figures.confidence, "seed": figures.seed}
    derivation = describe_derivation(
        reference.path,
        header_of(reference.stored),
        consulted={request.imatrix: "the importance matrix"} if request.imatrix else {},
        recipe=figures.recipe or None,
        importance=figures.uses_importance,
        through=figures.through or None,
        proof={
            "counts": figures.counts,
            "tensors": [
                {"name": each.name, "type": each.encoding, "verdict": each.verdict}
                for each in figures.tensors
            ],
            "sample": sample if figures.most_wrong else None,
            "additions": figures.additions,
        },
    )
    for subject in (request.subject, reference):
        source_of(subject.stored).refuse_change()
    model = without_file_scheme(request.subject.path)
    files = list_parts(header_of(request.subject.stored))
    write_attestation(
        request.attest, model, files, derivation, key=request.key, force=request.force
    )
    return report


def _run_checks(request: Request, wanted: Sequence[str]) -> Report:
    subject, reference = request.subject, request.reference
    damage = subject.damage
    if reference is not None:
        _ = reference.weights
    require_consistent(request, wanted)
    if damage is None:
        _refuse_unreadable(request, wanted)
        _prepare(request, wanted)
        if subject.checkpoint is not None and any(CHECKS[name].uses_torch for name in wanted):
            preload_torch()
    results: dict[str, Result] = {}
    seconds: dict[str, float] = {}
    reported: set[Problem] = set()
    for name in wanted:
        started = time.monotonic()
        if damage is None:
            reported_texts = {each.text for result in results.values() for each in result.problems}
            found = run_check(name, request, reported_texts)
        elif CHECKS[name].opens_files:
            problem = Problem(where=damage.path, text=damage.message, hint=damage.hint)
            found = Result(problems=(problem,))
        else:
            found = Result(skipped="the files cannot be opened")
        # A problem that an earlier check has reported is not repeated.
        problems = tuple(each for each in found.problems if each not in reported)
        reported |= {*problems}
        problems = tuple(replace(each, check=name) for each in problems)
        results[name] = (
            replace(found, problems=(), differences=problems)
            if request.compare
            else replace(found, problems=problems)
        )
        seconds[name] = time.monotonic() - started
    if damage is not None and not _opens_files(wanted):
        raise damage
    return Report(
        path=subject.path,
        reference=None if reference is None else reference.path,
        description="" if damage is not None else _describe(request),
        results=results,
        seconds=seconds,
        comparison=request.compare,
    )


def _refuse_unreadable(request: Request, wanted: Sequence[str]) -> None:
    """Raise `EncodingError` if a requested check has to read tensors that cannot be decoded.

    If the check `structure` runs, it reports unknown encodings of the checkpoint as problems; they
    do not raise an error here.
    """
    if not any(CHECKS[name].reads_tensors for name in wanted):
        return
    for subject in filter(None, (request.subject, request.reference)):
        tensors = [*header_of(subject.stored).tensors.values()]
        if subject is request.reference or not _opens_files(wanted):
            refuse_unknown(tensors)
        refuse_expanded(source_of(subject.stored), tensors)


def _prepare(request: Request, wanted: Sequence[str]) -> None:
    for name in wanted:
        if CHECKS[name].prepares:
            prepare: Callable[[Request], object] = load(CHECKS[name].prepares)
            prepare(request)


def _opens_files(wanted: Sequence[str]) -> bool:
    """Whether a requested check reports files that cannot be opened."""
    return any(CHECKS[name].opens_files for name in wanted)


def _choose_checks(
    request: Request, checks: Sequence[str] | None, skip: Sequence[str]
) -> list[str]:
    for name in (*(checks or ()), *skip):
        if name not in CHECKS:
            raise ConversionError(
                f"there is no check `{name}`", hint=f"the checks are {', '.join(CHECKS)}"
            )
    alone = request.reference is None
    for name in checks or ():
        if alone and CHECKS[name].needs_reference:
            raise ConversionError(
                f"the check `{name}` needs a reference checkpoint",
                hint="give a checkpoint that works: --against PATH",
            )
        if request.compare and not CHECKS[name].compares:
            raise ConversionError(
                f"the check `{name}` does not compare checkpoints, but --compare only lists "
                f"differences",
                hint=f"leave out --compare, or --check {name}",
            )
    usual = [name for name, each in CHECKS.items() if not each.is_asked_for]
    chosen = [name for name in CHECKS if name in checks] if checks else usual
    wanted = [name for name in chosen if name not in skip and _is_possible(name, request)]
    if not wanted:
        raise ConversionError(
            "every check is skipped", hint="leave out --skip, or skip fewer checks"
        )
    return wanted


def _is_possible(name: str, request: Request) -> bool:
    """Whether a check can run: it may need a reference, or be unable to list differences."""
    check = CHECKS[name]
    if request.compare:
        return check.compares
    return request.reference is not None or not check.needs_reference


def _describe(request: Request) -> str:
    subject = request.subject
    checkpoint = subject.checkpoint
    header = header_of(subject.stored)
    found = read_entries(subject.stored)
    parameters = count_parameters(found.entries.values(), found.buffers)
    sizes: dict[str, int] = {}
    for info in header.tensors.values():
        sizes[info.encoding.name] = sizes.get(info.encoding.name, 0) + info.nbytes
    encodings = sorted(sizes, key=lambda name: -sizes[name])
    family = "unknown family" if checkpoint is None else checkpoint.family.name
    shown = join_names(encodings, _MOST_ENCODINGS, " ")
    return f"{header.format}, {family}, {pluralize(parameters, 'parameter')}, {shown}".rstrip(", ")
