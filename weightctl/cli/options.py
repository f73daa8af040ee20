"""Arguments and options that several commands share: their completions, types and values."""

from __future__ import annotations

import codecs
import os
import re
from contextlib import suppress
from enum import Enum
from glob import escape, glob
from math import inf
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weightctl.errors import (
    ArgumentTypeError,
    ConversionError,
    EngineError,
    OutputError,
    WeightctlError,
)
from weightctl.formats import list_formats, list_written_formats
from weightctl.storage.files import locate_model
from weightctl.storage.location import forget_credentials, is_remote, parse_location
from weightctl.text.untyped import is_sequence

if TYPE_CHECKING:
    from collections.abc import Iterable

    from weightctl.device import DeviceRef
    from weightctl.weights.tree import Checkpoint

# Completions that a shell offers for the values of options. They do not load NumPy or torch. A
# completion that fails offers nothing, since an error would be printed into the command line.

# If more names than this match, one level of the tree is offered at a time.
_MOST_NAMES = 60
# The arguments of commands that are checkpoints to read.
_INPUTS = ("path", "paths", "first", "second")


def complete_models(incomplete: str) -> list[str]:
    """Return the names of models on this machine; nothing if a path begins with what is typed.

    A shell then offers paths.
    """
    if glob(f"{escape(os.path.expanduser(incomplete))}*"):
        return []
    from weightctl.storage.local_models import list_local_models

    return [model.name for model in list_local_models()]


def complete_checks() -> list[str]:
    """Return the names of the checks of `weightctl verify`."""
    from weightctl.verify import CHECKS

    return list(CHECKS)


def complete_quant_types(incomplete: str) -> list[str]:
    """Return the recipes and types that --quant accepts, in the letter case of `incomplete`."""
    from weightctl.plan.scheme_names import list_written
    from weightctl.plan.type_names import list_recipes, single_types

    return _in_case_of(incomplete, [*list_recipes(), *single_types(), *list_written()])


def complete_types(incomplete: str) -> list[str]:
    """Return the types that --dtype accepts."""
    from weightctl.plan.type_names import plain_types

    return _in_case_of(incomplete, plain_types())


def complete_type_rules(incomplete: str) -> list[str]:
    """Return the values that may follow `REGEX=` in --tensor-type."""
    from weightctl.plan.type_names import block_types, plain_types

    pattern, sign, wanted = incomplete.rpartition("=")
    if not sign:
        return []
    types = _in_case_of(wanted, ["keep", *plain_types(), *block_types()])
    return [f"{pattern}={each}" for each in types]


def _in_case_of(incomplete: str, names: Iterable[str]) -> list[str]:
    """Return names in lower case if the typed beginning is in lower case; otherwise unchanged."""
    if incomplete and incomplete == incomplete.lower() != incomplete.upper():
        return [name.lower() for name in names]
    return [*names]


def complete_tensor_names(ctx: Any, incomplete: str) -> list[str]:
    """Return tensor names of the checkpoints in the command line, or patterns for groups of them.

    If there is an output, the names are those that the tensors have there.
    """
    names: set[str] = set()
    for path in _list_inputs(ctx):
        with suppress(WeightctlError, OSError, RecursionError):
            names |= _list_names(path, ctx.params.get("out"), ctx.params.get("names"))
    matching = sorted(name for name in names if name.startswith(incomplete))
    if len(matching) <= _MOST_NAMES:
        return matching
    depth = incomplete.count(".") + 1
    groups = (_shorten(name, depth) for name in matching)
    return list(dict.fromkeys(groups))


def _shorten(name: str, depth: int) -> str:
    parts = name.split(".")
    return name if len(parts) <= depth else ".".join([*parts[:depth], "*"])


def _list_inputs(ctx: Any) -> list[str]:
    """Return the checkpoints in the command line that are files or directories, and not pipes."""
    paths: list[str] = []
    for name in _INPUTS:
        given = ctx.params.get(name)
        paths += map(str, given if is_sequence(given) else [given] if given else [])
    paths = [os.path.expanduser(path) for path in paths]
    return [path for path in paths if os.path.isfile(path) or os.path.isdir(path)]


def _list_names(path: str, out: object, convention: object) -> set[str]:
    from weightctl.formats.open.opening import open_weights
    from weightctl.weights.tree import header_of

    weights = open_weights(path)
    if isinstance(out, str) and (names := _list_translated(weights, out, convention)):
        return names
    return set(header_of(weights).tensors)


def _list_translated(weights: Checkpoint, out: str, convention: object) -> set[str]:
    """Return the tensor names in a conversion's output; empty if it keeps those of the input."""
    from weightctl.families import recognize
    from weightctl.formats import format_by_suffix
    from weightctl.weights.tree import header_of

    format_name = format_by_suffix(out)
    wanted = getattr(convention, "value", "auto")
    if wanted == "auto":
        wanted = "gguf" if format_name == "gguf" else "keep" if format_name else "hf"
    if wanted == "keep" or (wanted == "gguf") == (header_of(weights).format == "gguf"):
        return set()
    model = recognize(weights)
    tensors = [each for each in model.family.tensors(model.config) if each.module in model.tensors]
    names = (each.gguf if wanted == "gguf" else each.hugging_face for each in tensors)
    return {name for name in names if name is not None}


# The values of options.


def locate(given: str | list[str] | None) -> str | list[str] | None:
    """Return the paths and URLs of an argument, without passwords and signatures in URLs."""
    if isinstance(given, list):
        return [parse_location(each).name for each in given]
    return given and parse_location(given).name


def locate_models(given: str | list[str] | None) -> str | list[str] | None:
    """Return the paths and URLs of the models that an argument names."""
    if isinstance(given, list):
        return [locate_model(each) for each in given]
    return given and locate_model(given)


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
MODEL = typer.Argument(callback=locate_models, autocompletion=complete_models, show_default=False)
Path = Annotated[str, MODEL]
Models = Annotated[list[str] | None, MODEL]
LocalPath = Annotated[str, typer.Argument(callback=locate_local)]
InputFile = Annotated[str | None, typer.Option(callback=locate)]
InputFiles = Annotated[list[str] | None, typer.Option(callback=locate)]
OutputFile = Annotated[str | None, typer.Option(callback=locate_local)]
Anonymous = Annotated[
    bool, typer.Option("--anonymous", callback=_forget_credentials, is_eager=True)
]
From = Annotated[str | None, typer.Option("--from", autocompletion=lambda: [*list_formats()])]
To = Annotated[str | None, typer.Option("--to", autocompletion=lambda: [*list_written_formats()])]
TensorNames = Annotated[list[str] | None, typer.Option(autocompletion=complete_tensor_names)]
Dtype = Annotated[str | None, typer.Option(autocompletion=complete_types)]
Quant = Annotated[str | None, typer.Option(autocompletion=complete_quant_types)]
TensorTypes = Annotated[
    list[str] | None, typer.Option("--tensor-type", autocompletion=complete_type_rules)
]
Settings = Annotated[list[str] | None, typer.Option("--set")]
# The number of devices is unknown, since torch is not loaded.
Device = Annotated[str, typer.Option(autocompletion=lambda: ["cpu", "cuda"])]
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


# Values that say on what a model runs: device, text, tokens and layers.

# A model runs on a few thousand tokens, so only this number of bytes of a text file is read.
_TEXT_BYTES = 1 << 20
_STDIN = "-"


def device_named(name: str) -> DeviceRef:
    """Return the device with a name such as `cpu`, `cuda` or `cuda:1`.

    Raises `ConversionError` if the name is invalid, or if this machine does not have the device.
    """
    from weightctl.device import CPU, as_device

    wrong = ConversionError(f"`{name}` is not a device", hint="devices are cpu, cuda, cuda:1 ...")
    try:
        device = as_device(name.strip())
    except ArgumentTypeError:
        raise wrong from None
    if device.kind == "cpu":
        if device != CPU:
            raise wrong
        return device
    from weightctl.engine.devices import require_devices  # loads torch

    try:
        require_devices([device])
    except EngineError as error:
        message = error.message.replace(str(device), name.strip())
        raise ConversionError(message, hint="use --device cpu") from error
    return device


def layers_named(written: str) -> range:
    """Return the range of layers for a text such as `3` or `0-3`, which includes layer 3.

    Raises `ConversionError` if the text is not a range of layers.
    """
    match = re.fullmatch(r"\s*(\d{1,6})\s*(?:-\s*(\d{1,6})\s*)?", written, re.ASCII)
    if match is None or int(match[2] or match[1]) < int(match[1]):
        raise ConversionError(
            f"`--layers {written}` is not a range of layers", hint="write 0-3, or 5; the first is 0"
        )
    return range(int(match[1]), int(match[2] or match[1]) + 1)


def parse_tokens(written: str) -> tuple[int, ...]:
    """Return the token ids in a text such as `1,2,3`.

    Raises `ConversionError` if the text is not a list of token ids.
    """
    numbers = [number for number in re.split(r"[,\s]+", written.strip()) if number]
    if not numbers or not all(re.fullmatch(r"\d{1,9}", each, re.ASCII) for each in numbers):
        raise ConversionError(
            f"`--tokens {written}` is not a list of token ids",
            hint="write numbers with commas: --tokens 1,42,7",
        )
    return tuple(map(int, numbers))


def parse_share(written: str) -> float:
    """Return the number in a text such as `0.08` or `8%`.

    Raises `BadParameter` of Typer if the text is not a number, or above 1.
    """
    number, sign, _ = written.strip().partition("%")
    try:
        share = float(number) / (100 if sign else 1)
    except ValueError:
        share = inf
    if share > 1:
        raise typer.BadParameter(f"`{written}` is not a number between 0 and 1: write 0.08, or 8%")
    return share


def text_of(path: str) -> str:
    """Return the first megabyte of the text in a file; `-` means stdin.

    Raises `OSError` or `FormatError` if the file cannot be read, and `ConversionError` if it is not
    text.
    """
    if path == _STDIN:
        with open(0, "rb", closefd=False) as file:
            raw = file.read(_TEXT_BYTES)
    else:
        from weightctl.storage.files import read_start

        raw = read_start(path, _TEXT_BYTES)
    try:
        # A character that is cut at the end of the first megabyte is left out.
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(raw, len(raw) < _TEXT_BYTES)
    except UnicodeDecodeError as error:
        raise ConversionError(
            f"{path}, byte {error.start}: the file is not UTF-8 text",
            hint="--text-file needs plain text, such as a page of a book",
        ) from error
    if not text.strip():
        raise ConversionError(
            f"{path}: the file contains no text", hint="use a file with a paragraph of text"
        )
    return text
