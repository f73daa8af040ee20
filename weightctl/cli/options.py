"""Options that several commands share."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from weightctl.formats import FORMATS

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["FormatName", "From", "Json", "Path", "Quiet", "examples"]

FormatName = Enum("FormatName", {name: name for name in FORMATS}, type=str)

Path = Annotated[
    str,
    typer.Argument(
        metavar="PATH",
        help="A checkpoint: a file, any part of a split one, its index, or a directory.",
    ),
]
From = Annotated[
    FormatName | None,
    typer.Option("--from", help="Read this format, where a directory holds several."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")]


def examples(lines: Sequence[str]) -> str:
    """Return the end of a help page: commands that work as they stand."""
    return "\n".join(["Examples:", *(f"$ {line}" for line in lines)])
