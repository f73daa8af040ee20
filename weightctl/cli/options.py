"""Arguments and options that several commands share."""

from __future__ import annotations

import os
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weightctl.cli.completion import (
    complete_devices,
    complete_formats,
    complete_quant_types,
    complete_tensor_names,
    complete_type_rules,
    complete_types,
    complete_written_formats,
)
from weightctl.cli.help import HelpCommand
from weightctl.errors import OutputError
from weightctl.formats import ALL_FORMATS
from weightctl.storage.location import forget_credentials, is_remote, parse_location

if TYPE_CHECKING:
    from collections.abc import Sequence


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


# What a parameter is for is in the pages of help (`weightctl.cli.help`).
Path = Annotated[str, typer.Argument(callback=locate)]
Paths = Annotated[list[str], typer.Argument(callback=locate)]
LocalPath = Annotated[str, typer.Argument(callback=locate_local)]
InputFile = Annotated[str | None, typer.Option(callback=locate)]
InputFiles = Annotated[list[str] | None, typer.Option(callback=locate)]
OutputFile = Annotated[str | None, typer.Option(callback=locate_local)]
Anonymous = Annotated[
    bool, typer.Option("--anonymous", callback=_forget_credentials, is_eager=True)
]
From = Annotated[str | None, typer.Option("--from", autocompletion=complete_formats)]
To = Annotated[str | None, typer.Option("--to", autocompletion=complete_written_formats)]
TensorNames = Annotated[list[str] | None, typer.Option(autocompletion=complete_tensor_names)]
Dtype = Annotated[str | None, typer.Option(autocompletion=complete_types)]
Quant = Annotated[str | None, typer.Option(autocompletion=complete_quant_types)]
TensorTypes = Annotated[
    list[str] | None, typer.Option("--tensor-type", autocompletion=complete_type_rules)
]
Settings = Annotated[list[str] | None, typer.Option("--set")]
Device = Annotated[str, typer.Option(autocompletion=complete_devices)]
AtLeastOne = Annotated[int | None, typer.Option(min=1)]
Threads = Annotated[int | None, typer.Option("--threads", "-j", min=1)]
Memory = Annotated[str, typer.Option("--mem")]
AllowRequantize = Annotated[bool, typer.Option("--allow-requantize")]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n")]
Force = Annotated[bool, typer.Option("--force", "-f")]
Json = Annotated[bool, typer.Option("--json")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q")]


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
