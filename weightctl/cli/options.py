"""Options that several commands share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from weightctl.formats import FORMATS

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["From", "Json", "Path", "Quiet", "To", "examples"]

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
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Leave out notes and summaries.")]


def examples(lines: Sequence[str]) -> str:
    """Return the end of a help page: commands that work as they stand."""
    return "\n".join(["Examples:", *(f"$ {line}" for line in lines)])
