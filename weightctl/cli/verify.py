"""`weightctl verify`: check that a checkpoint works, and name the tensor that is wrong."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from math import isfinite
from typing import TYPE_CHECKING, Annotated

import typer

from weightctl.cli import options
from weightctl.cli.costs import show_document
from weightctl.cli.progress import stages_bar
from weightctl.cli.render import columns, is_terminal, show_lines, show_notes, warn
from weightctl.errors import ConversionError, FormatError
from weightctl.formats.huggingface import companions
from weightctl.plan.choices import DEFAULT_TASK
from weightctl.storage.files import is_file
from weightctl.system.allocator import keep_memory
from weightctl.system.threads import thread_count
from weightctl.text.chart import can_draw
from weightctl.text.wording import pluralize
from weightctl.verify import CHECKS
from weightctl.verify.checking import choose_checks, verify_request
from weightctl.verify.report import check_targets, make_document, write
from weightctl.verify.report.screen import brief, verdict
from weightctl.verify.request import Request
from weightctl.verify.subject import Subject, require_there
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from weightctl.verify.results import Report

_CHOICE = "Checks to run"
_RUN = "Running the model"
_LIMITS = "Limits"
_CHECKS = ", ".join(CHECKS)
_SUCH_AS = {"--max-ppl": "20", "--max-kld": "0.05", "--max-rmse": "0.1"}


# Runs of fewer seconds are not announced.
_SHORT = 10

app = typer.Typer(add_completion=False)


@app.command()
def verify(
    *,
    path: options.Path,
    against: options.InputFile = None,
    compare: Annotated[bool, typer.Option("--compare")] = False,
    prove: Annotated[bool, typer.Option("--prove")] = False,
    sample: Annotated[float | None, typer.Option(parser=options.parse_share)] = None,
    imatrix: options.InputFile = None,
    attest: options.OutputFile = None,
    attestation: options.InputFile = None,
    key: options.InputFile = None,
    checks: Annotated[
        list[str] | None, typer.Option("--check", autocompletion=options.complete_checks)
    ] = None,
    skip: Annotated[list[str] | None, typer.Option(autocompletion=options.complete_checks)] = None,
    device: options.Device = "cpu",
    text: str | None = None,
    text_file: options.InputFile = None,
    tokens: str | None = None,
    layers: str | None = None,
    max_perplexity: Annotated[float | None, typer.Option("--max-ppl")] = None,
    max_divergence: Annotated[float | None, typer.Option("--max-kld")] = None,
    max_rmse: Annotated[float | None, typer.Option(parser=options.parse_share)] = None,
    reports: Annotated[
        list[str] | None, typer.Option("--report", callback=options.locate_local)
    ] = None,
    force: options.Force = False,
    source_format: options.From = None,
    on: str | None = None,
    task_size: str = f"{DEFAULT_TASK >> 30}GiB",
    anonymous: options.Anonymous = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Check the values of a checkpoint, run it, and report what is wrong with it.

    The checks cover the files, every tensor value, the tensor names and the metadata. Then the
    model runs on a sample text; this step requires torch.

    With --against, each tensor and each layer is compared with its counterpart in another
    checkpoint, even if the formats, tensor names and tensor types differ. Without --against,
    swapped or slightly wrong weights cannot be detected. In the output, A is MODEL and B is OTHER.
    """
    del anonymous  # its callback has taken effect
    limits = {"--max-ppl": max_perplexity, "--max-kld": max_divergence, "--max-rmse": max_rmse}
    _require_limits(limits)
    _require_one({"--text": text, "--text-file": text_file, "--tokens": tokens})
    request = Request(
        subject=Subject(path, source_format),
        reference=None if against is None else Subject(against),
        device=options.device_named(device),
        text=text if text_file is None else options.text_of(text_file),
        tokens=None if tokens is None else options.parse_tokens(tokens),
        layers=None if layers is None else options.layers_named(layers),
        max_perplexity=max_perplexity,
        max_divergence=max_divergence,
        max_rmse=max_rmse,
        sample=sample,
        imatrix=imatrix,
        attestation=attestation,
        attest=attest,
        force=force,
        key=key,
        compare=compare,
    )
    require_there(request.subject)
    wanted = choose_checks(request, checks, prove=prove)
    if reports:
        check_targets(reports, _inputs(request), force=force)
    keep_memory()
    if sys.stderr.isatty() and "forward" in {*(wanted or CHECKS)} - {*(skip or ())}:
        show_notes(_announce(request), quiet=quiet)
    with stages_bar(quiet=quiet) as progress:
        report = verify_request(
            replace(request, progress=progress),
            wanted,
            skip or (),
            on=on,
            task_size=task_size,
        )
    if reports:
        write(reports, report, force=force)
    _show(report, _in_vain(report, wanted), as_json=as_json, quiet=quiet)
    if attest is not None and (count := len(report.problems)):
        were_found = f"{pluralize(count, 'problem')} {'was' if count == 1 else 'were'} found"
        warn(f"{attest} was not written, because {were_found}")
    if report.problems or report.differences or _in_vain(report, wanted):
        raise typer.Exit(1)


def _announce(request: Request) -> Iterator[str]:
    seconds = request.estimate_seconds() or 0
    if seconds > _SHORT:
        about = f"{seconds / 60:,.0f} minutes" if seconds > 2 * 60 else f"{seconds:.0f} s"
        yield (
            f"running the model takes about {about} on {pluralize(thread_count(None), 'core')}, or "
            "less if it is a mixture of experts; --skip forward leaves it out"
        )


def _require_limits(limits: Mapping[str, float | None]) -> None:
    for option, limit in limits.items():
        if limit is not None and (not isfinite(limit) or limit < 0):
            raise ConversionError(
                f"{option} is {limit:g}, and must be finite and not negative",
                hint=f"such as {option} {_SUCH_AS[option]}",
            )


def _require_one(prompts: Mapping[str, str | None]) -> None:
    given = [option for option, value in prompts.items() if value is not None]
    if len(given) > 1:
        raise ConversionError(f"{' and '.join(given)} are both given", hint="use only one of them")
    if prompts["--text"] is not None and not prompts["--text"].strip():
        raise ConversionError("--text is empty", hint="without --text the built-in text is used")


def _inputs(request: Request) -> list[str]:
    """Return the files that are read, as far as the checkpoints can be opened."""
    inputs: list[str] = []
    for subject in filter(None, (request.subject, request.reference)):
        try:
            header = header_of(subject.stored)
        except FormatError:  # the check `structure` reports the error
            inputs += [subject.path] if is_file(subject.path) else []
            continue
        listing = [header.listing] if header.listing else []
        inputs += [*header.files, *listing, *companions(header).values()]
    return inputs


def _in_vain(report: Report, checks: Sequence[str] | None) -> list[str]:
    """Return the checks that were requested by name and were skipped."""
    return [
        name for name, result in report.results.items() if result.skipped and name in (checks or ())
    ]


def _show(report: Report, in_vain: Sequence[str], *, as_json: bool, quiet: bool) -> None:
    if as_json:
        show_document(make_document(report))
    elif quiet:
        show_lines(brief(report, in_vain))
    else:
        # Lines for a pipe are not wrapped, unless COLUMNS sets their length.
        wraps = is_terminal() or "COLUMNS" in os.environ
        show_lines(verdict(report, columns(), wraps=wraps, plain=not can_draw()))
    show_notes(report.notes, quiet=quiet)
