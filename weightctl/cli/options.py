"""Options that several commands share."""

from __future__ import annotations

import os
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from weightctl.formats import FORMATS

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "DryRun",
    "Exclude",
    "Force",
    "From",
    "Include",
    "Json",
    "MetaCommand",
    "Path",
    "Paths",
    "Quiet",
    "Sort",
    "Threads",
    "To",
    "examples",
]

_FORMATS = ", ".join(FORMATS)


def _format_names() -> list[str]:
    return list(FORMATS)


Path = Annotated[
    str,
    typer.Argument(
        metavar="PATH",
        help="A checkpoint: a file, any part of a split one, its index, or a directory.",
    ),
]
Paths = Annotated[
    list[str],
    typer.Argument(
        metavar="PATH...",
        help="Checkpoints: files, any part of a split one, its index, or directories.",
    ),
]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="FORMAT",
        help=f"Read this format, where a directory holds several: {_FORMATS}.",
        autocompletion=_format_names,
    ),
]
To = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="FORMAT",
        help=f"Write this format, where OUT's suffix does not say: {_FORMATS}.",
        autocompletion=_format_names,
    ),
]
Include = Annotated[
    list[str] | None,
    typer.Option(
        metavar="GLOB", help="Only such tensors: '*.layers.[0-27].*'; * matches dots too."
    ),
]
Exclude = Annotated[list[str] | None, typer.Option(metavar="GLOB", help="All but such tensors.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", "-n", help="Show what would be done, and do nothing.")
]
Force = Annotated[bool, typer.Option("--force", "-f", help="Replace what is there.")]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads", "-j", metavar="N", min=1, help="Work on this many cores; all, otherwise."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Leave out notes and summaries.")]


def examples(lines: Sequence[str]) -> str:
    """Return the end of a help page: commands that work as they stand."""
    return "\n".join(["Examples:", *(f"$ {line}" for line in lines)])


class Sort(Enum):
    """What stored tensors can be sorted by."""

    NAME = "name"
    SIZE = "size"
    OFFSET = "offset"


class MetaCommand(typer.core.TyperCommand):
    """A command whose option `--meta` may stand without a key."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments in which `--meta` has got its key, or the empty one."""
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
    """Whether an argument is a path that is there, or looks like one that is misspelt."""
    suffixes = tuple(suffix for line in FORMATS.values() for suffix in line.suffixes)
    return os.path.lexists(argument) or "/" in argument or argument.endswith(suffixes)
