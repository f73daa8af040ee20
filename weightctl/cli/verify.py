"""`weightctl verify`: check that a checkpoint works, and name the tensor that is wrong."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from math import isfinite
from typing import TYPE_CHECKING, Annotated

import typer

from weightctl.cli.chart import can_draw
from weightctl.cli.completion import complete_checks, complete_devices
from weightctl.cli.costs import document_network
from weightctl.cli.options import (
    Anonymous,
    From,
    Json,
    Path,
    TaskSize,
    examples,
    exit_codes,
    locate,
    locate_local,
    section,
)
from weightctl.cli.progress import stages_bar
from weightctl.cli.render import columns, is_terminal, note, show_lines, show_text
from weightctl.cli.run_on import device_named, layers_named, parse_tokens, text_of
from weightctl.cli.verdict import brief, verdict
from weightctl.errors import ConversionError, FormatError
from weightctl.formats.huggingface import companions
from weightctl.storage.files import is_file
from weightctl.system.allocator import keep_memory
from weightctl.verify import CHECKS
from weightctl.verify.checking import verify as verified
from weightctl.verify.mistakes import require_there
from weightctl.verify.report import check_targets, write
from weightctl.verify.report.json_document import make_document
from weightctl.verify.request import Request, Subject
from weightctl.weights.tree import header_of
from weightctl.write.executors.worker import DEFAULT_TASK

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weightctl.verify.results import Report

_CHOICE = "Checks to run"
_RUN = "Running the model"
_LIMITS = "Limits"
_CHECKS = ", ".join(CHECKS)
_SUCH_AS = {"--max-ppl": "20", "--max-kld": "0.05", "--max-rmse": "0.1"}


app = typer.Typer(add_completion=False)


@app.command(
    epilog="\n\n".join(
        [
            section("Checks", ((name, check.about) for name, check in CHECKS.items())),
            exit_codes(
                "no problems were found; with --compare, no differences",
                "problems or differences were found, or a check requested with --check could not "
                "run",
            ),
            examples(
                [
                    "weightctl verify model/ --max-ppl 30",
                    "weightctl verify model/ --skip forward -q && echo fine",
                    "weightctl verify model-q8.gguf --against model/ --skip forward",
                    "weightctl verify model/ --check names --report verified.html",
                ]
            ),
        ]
    ),
)
def verify(
    *,
    path: Path,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="OTHER",
            help="Compare with OTHER: a checkpoint, in any format, that is known to be good.",
            callback=locate,
            rich_help_panel=_CHOICE,
        ),
    ] = None,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="With --against, list all differences from OTHER instead of reporting problems. "
            "Exit with 1 if there are any.",
        ),
    ] = False,
    checks: Annotated[
        list[str] | None,
        typer.Option(
            "--check",
            metavar="NAME",
            help=f"Run only the check NAME: {_CHECKS}. Repeatable.",
            rich_help_panel=_CHOICE,
            autocompletion=complete_checks,
        ),
    ] = None,
    skip: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Skip the check NAME. Repeatable.",
            rich_help_panel=_CHOICE,
            autocompletion=complete_checks,
        ),
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            metavar="DEVICE",
            help="Run on cpu, cuda, or another GPU such as cuda:1.",
            rich_help_panel=_RUN,
            autocompletion=complete_devices,
        ),
    ] = "cpu",
    text: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="Run on TEXT instead of the built-in text.", rich_help_panel=_RUN
        ),
    ] = None,
    text_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Run on the text in FILE; - is stdin.",
            callback=locate,
            rich_help_panel=_RUN,
        ),
    ] = None,
    tokens: Annotated[
        str | None,
        typer.Option(
            metavar="IDS",
            help="Run on these token ids, such as 1,42,7. No tokenizer is needed.",
            rich_help_panel=_RUN,
        ),
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(
            metavar="N-M",
            help="Check and run only layers N to M, such as 0-3.",
            rich_help_panel=_RUN,
        ),
    ] = None,
    max_perplexity: Annotated[
        float | None,
        typer.Option(
            "--max-ppl",
            metavar="X",
            help="Report a problem if the perplexity is above X.",
            rich_help_panel=_LIMITS,
        ),
    ] = None,
    max_divergence: Annotated[
        float | None,
        typer.Option(
            "--max-kld",
            metavar="X",
            help="Report a problem if the mean KL divergence from OTHER is above X nats.",
            rich_help_panel=_LIMITS,
        ),
    ] = None,
    max_rmse: Annotated[
        float | None,
        typer.Option(
            "--max-rmse",
            metavar="X",
            help="Report a problem for each tensor whose relative RMSE is above X; 0.1 means 10 %. "
            "[default: about 3 times the error expected for the tensor's type]",
            rich_help_panel=_LIMITS,
        ),
    ] = None,
    reports: Annotated[
        list[str] | None,
        typer.Option(
            "--report",
            metavar="FILE",
            help="Write a report to FILE. The suffix selects the format: .html (with charts), .md "
            "or .json. Repeatable.",
            callback=locate_local,
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace existing reports.")] = False,
    source: From = None,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="EXECUTOR",
            help="Divide the reading of tensors among workers, for the checks 'structure', "
            "'finite' and 'values'. EXECUTOR is processes:N (N processes on this machine), or "
            "dask://HOST:PORT, ray://HOST:PORT or ray (the workers of a cluster).",
        ),
    ] = None,
    task_size: TaskSize = f"{DEFAULT_TASK >> 30}GiB",
    anonymous: Anonymous = False,
    as_json: Json = False,
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", help="Print one line for each problem, and nothing else."),
    ] = False,
) -> None:
    """Check that a checkpoint works, and report what is wrong with it.

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
        subject=Subject(path, source),
        reference=None if against is None else Subject(against),
        device=device_named(device),
        text=text if text_file is None else text_of(text_file),
        tokens=None if tokens is None else parse_tokens(tokens),
        layers=None if layers is None else layers_named(layers),
        max_perplexity=max_perplexity,
        max_divergence=max_divergence,
        max_rmse=max_rmse,
        compare=compare,
    )
    require_there(request.subject)
    if reports:
        check_targets(reports, _inputs(request), force=force)
    keep_memory()
    with stages_bar(quiet=quiet) as progress:
        report = verified(
            replace(request, progress=progress),
            checks or None,
            skip or (),
            on=on,
            task_size=task_size,
        )
    if reports:
        write(reports, report, force=force)
    _show(report, _in_vain(report, checks), as_json=as_json, quiet=quiet)
    if report.problems or report.differences or _in_vain(report, checks):
        raise typer.Exit(1)


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
        inputs += [*header.files, *listing, *companions(header.files).values()]
    return inputs


def _in_vain(report: Report, checks: Sequence[str] | None) -> list[str]:
    """Return the checks that were requested by name and were skipped."""
    return [
        name for name, result in report.results.items() if result.skipped and name in (checks or ())
    ]


def _show(report: Report, in_vain: Sequence[str], *, as_json: bool, quiet: bool) -> None:
    if as_json:
        show_text(json.dumps(make_document(report) | document_network()) + "\n")
    elif quiet:
        show_lines(brief(report, in_vain))
    else:
        # Lines for a pipe are not wrapped, unless COLUMNS sets their length.
        wraps = is_terminal() or "COLUMNS" in os.environ
        show_lines(verdict(report, columns(), wraps=wraps, plain=not can_draw()))
    for text in () if quiet else report.notes:
        note(text)
