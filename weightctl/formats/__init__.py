"""The container formats: each has one module and one line in `FORMATS`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

from weightctl.errors import ConversionError
from weightctl.system.registry import load

if TYPE_CHECKING:
    from weightctl.formats.base import Format

__all__ = [
    "FORMATS",
    "INDEX_SUFFIX",
    "format_by_index",
    "format_by_suffix",
    "format_module",
]


class FormatLine(NamedTuple):
    """An entry of the table of formats.

    `suffixes` are the suffixes of its files, the usual one first. `in_directory` is the name of its
    file in a model directory; None if the format is not used there. If a model in such a directory
    has several parts, an index lists them.
    """

    module: str
    suffixes: tuple[str, ...]
    in_directory: str | None = None

    @property
    def suffix(self) -> str:
        """The usual suffix of its files."""
        return self.suffixes[0]

    @property
    def has_index(self) -> bool:
        """Whether an index lists the parts of a checkpoint in this format."""
        return self.in_directory is not None


# In order of preference, if a directory contains several.
FORMATS: dict[str, FormatLine] = {
    "safetensors": FormatLine(
        "weightctl.formats.safetensors",
        (".safetensors",),
        "model.safetensors",
    ),
    "gguf": FormatLine("weightctl.formats.gguf", (".gguf",)),
    "pytorch": FormatLine(
        "weightctl.formats.pytorch",
        (".bin", ".pt", ".pth", ".ckpt", ".pth.tar", ".pkl"),
        "pytorch_model.bin",
    ),
}

INDEX_SUFFIX = ".index.json"


def format_module(name: str) -> Format:
    """Return the format of this name; raises `ConversionError` if there is none."""
    if name not in FORMATS:
        raise ConversionError(
            f"`{name}` is not a supported format",
            hint=f"use one of these formats: {', '.join(FORMATS)}",
        )
    return cast("Format", load(FORMATS[name].module))


def format_by_suffix(path: str) -> str | None:
    """Return the name of the format that a path has the suffix of, or None."""
    lowered = path.lower()
    return next((name for name, line in FORMATS.items() if lowered.endswith(line.suffixes)), None)


def format_by_index(path: str) -> str | None:
    """Return the format of an index by its name, such as `model.safetensors.index.json`."""
    name = format_by_suffix(path.removesuffix(INDEX_SUFFIX))
    has_index = path.endswith(INDEX_SUFFIX) and name is not None and FORMATS[name].has_index
    return name if has_index else None
