"""Arguments and options that several commands share."""

from __future__ import annotations

import os
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weightctl.cli.completion import (
    complete_formats,
    complete_tensor_names,
    complete_written_formats,
)
from weightctl.cli.help import HelpCommand
from weightctl.errors import OutputError
from weightctl.formats import ALL_FORMATS, WRITTEN_FORMATS
from weightctl.storage.location import forget_credentials, is_remote, parse_location
from weightctl.translate.optional_parts import OptionalPart

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_FORMATS = f"{', '.join([*ALL_FORMATS][:-1])} or {[*ALL_FORMATS][-1]}"
_WRITTEN = f"{', '.join([*WRITTEN_FORMATS][:-1])} or {[*WRITTEN_FORMATS][-1]}"


def locate(given: str | list[str] | None) -> str | list[str] | None:
    """Return the paths and URLs of an argument, without passwords and signatures in URLs."""
    if isinstance(given, list):
        return [parse_location(each).name for each in given]
    return given and parse_location(given).name


def locate_local(given: str | list[str] | None) -> str | list[str] | None:
    """Return the paths of an argument that must be local.

    Raises `OutputError` for a URL that is not that of a local file.
    """
    located = locate(given)
    for name in located if isinstance(located, list) else [located or ""]:
        if is_remote(name):
            raise OutputError(
                f"{name} is a URL; this file can only be written to a local path",
                hint="use the path of a file",
            )
    return located


def _forget_credentials(wanted: bool) -> bool:
    if wanted:
        forget_credentials()
    return wanted


Path = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="The checkpoint to read: a single file, any part of a split checkpoint, an index "
        "file, a directory, or the URL of one of these.",
        callback=locate,
    ),
]
Paths = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL...",
        help="The checkpoints to read. Each is a single file, any part of a split checkpoint, an "
        "index file, a directory, or the URL of one of these.",
        callback=locate,
    ),
]
Anonymous = Annotated[
    bool,
    typer.Option(
        "--anonymous",
        help="Read URLs without credentials, even if you are logged in.",
        callback=_forget_credentials,
        is_eager=True,
    ),
]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="FORMAT",
        help=f"Read FORMAT ({_FORMATS}) if a directory contains checkpoints in several formats.",
        autocompletion=complete_formats,
    ),
]
To = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="FORMAT",
        help=f"Write FORMAT ({_WRITTEN}). Needed only if the suffix of OUT does not select a "
        "format.",
        autocompletion=complete_written_formats,
    ),
]
Include = Annotated[
    list[str] | None,
    typer.Option(
        metavar="GLOB",
        help="Include only tensors whose name matches GLOB, such as '*.layers.[0-27].*' "
        "('blk.[0-27].*' for GGUF). The wildcard * matches any characters, including dots. [0-27] "
        "matches any number from 0 to 27. Repeatable.",
        autocompletion=complete_tensor_names,
    ),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(
        metavar="GLOB",
        help="Exclude tensors whose name matches GLOB. Repeatable.",
        autocompletion=complete_tensor_names,
    ),
]
Without = Annotated[
    list[OptionalPart] | None,
    typer.Option(
        "--without",
        help="Leave out a part of the model. mtp: the layers for multi-token prediction, which "
        "only speculative decoding uses. Repeatable.",
        rich_help_panel="Content",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", "-n", help="Show what would be written, and write nothing.")
]
Force = Annotated[bool, typer.Option("--force", "-f", help="Replace the output if it exists.")]
Private = Annotated[
    bool,
    typer.Option(
        "--private", help="If OUT is a new repository on the Hugging Face Hub, make it private."
    ),
]
PullRequest = Annotated[
    bool,
    typer.Option(
        "--pr",
        help="If OUT is on the Hugging Face Hub, open a pull request instead of changing the main "
        "branch.",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option("--threads", "-j", metavar="N", min=1, help="Use N threads. [default: all cores]"),
]
Memory = Annotated[
    str,
    typer.Option(
        "--mem",
        metavar="SIZE",
        help="Use at most SIZE of memory for the buffers of all threads. Most conversions need "
        "less.",
    ),
]
Mmproj = Annotated[
    str | None,
    typer.Option(
        "--mmproj",
        metavar="FILE",
        help="The GGUF file with the tower of a multimodal model: its image or audio encoder, "
        "and the projection to the vectors of tokens. It is written in addition to OUT, with "
        "types by --dtype; without OUT, only FILE is written. If MODEL is a GGUF file and OUT a "
        "directory, FILE is read, and OUT contains both.",
        callback=locate,
        rich_help_panel="Content",
    ),
]
Base = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL",
        help="To convert a LoRA adapter to GGUF: the model that it is for, whose config is read. "
        "Needed only if the adapter does not name a local directory.",
        callback=locate,
        rich_help_panel="Content",
    ),
]
Partial = Annotated[
    bool,
    typer.Option(
        "--partial",
        help="If files of a split checkpoint are missing, convert the tensors in the files "
        "that are present.",
        rich_help_panel="Content",
    ),
]
Report = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Write a JSON report to FILE: the tensors that were converted, and the numerical "
        "error of each.",
        callback=locate_local,
    ),
]
Search = Annotated[
    bool,
    typer.Option(
        "--search",
        help="For a model directory, choose the scales (and zero points) with the smallest squared "
        "error, which takes longer. --imatrix implies it.",
        rich_help_panel="Types",
    ),
]
On = Annotated[
    str | None,
    typer.Option(
        metavar="EXECUTOR",
        help="Divide the work among workers. EXECUTOR is processes:N (N processes on this "
        "machine), dask://HOST:PORT or ray://HOST:PORT (the workers of a cluster), ray (the "
        "cluster in RAY_ADDRESS; if RAY_ADDRESS is not set, a new one on this machine), or ranks "
        "(the processes that torchrun, Slurm or Kubernetes starts, each with this same command). "
        "Limits such as -j then apply to each worker, and -j is 1 by default.",
    ),
]
TaskSize = Annotated[
    str,
    typer.Option(metavar="SIZE", help="With --on, give a worker at most SIZE of work at a time."),
]
HeaderRoom = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Leave SIZE of room in the header of each file, such as 64kB, so that `weightctl "
        "edit` can change it without moving the data.",
        rich_help_panel="Files",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print no notes, summaries or progress.")
]


def section(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """Return a section of an epilog: a title, and a line for each pair of a name and a text."""
    listed = [*rows]
    room = max(len(name) for name, _ in listed)
    return "\n".join([f"{title}:", *(f"  {name:<{room}}  {text}" for name, text in listed)])


def exit_codes(success: str, findings: str = "") -> str:
    """Return the section of an epilog that lists the exit codes of a command."""
    rows = [("0", success), *([("1", findings)] if findings else [])]
    rows += [("2", "an error: see stderr for the cause"), ("130", "interrupted by Ctrl-C")]
    return section("Exit codes", rows)


def examples(lines: Sequence[str]) -> str:
    """Return the last section of an epilog: commands that work when they are run in order."""
    shown = (f"  $ {line}".replace("\n", "\n  ") for line in lines)
    return "\n".join(["Examples:", *shown])


class Sort(Enum):
    """The keys by which stored tensors can be sorted."""

    NAME = "name"
    SIZE = "size"
    OFFSET = "offset"


class MetaCommand(HelpCommand):
    """A command whose option `--meta` may be given without a key."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments, with an empty key for a `--meta` that has none."""
        return super().parse_args(ctx, _with_key(args))


def _with_key(arguments: Sequence[str]) -> list[str]:
    made: list[str] = []
    left = list(arguments)
    while left:
        argument = left.pop(0)
        if argument == "--":
            return [*made, argument, *left]
        if argument == "--meta":
            has_key = left and not left[0].startswith("-") and not _is_path(left[0])
            argument = f"--meta={left.pop(0) if has_key else ''}"
        made.append(argument)
    return made


def _is_path(argument: str) -> bool:
    """Whether an argument is an existing path, or looks like a misspelled one."""
    suffixes = tuple(suffix for line in ALL_FORMATS.values() for suffix in line.suffixes)
    return os.path.lexists(argument) or "/" in argument or argument.endswith(suffixes)
