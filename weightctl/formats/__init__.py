"""The container formats: each has one module and one line in `FORMATS`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple, cast

from weightctl.errors import ConversionError
from weightctl.system.registry import load

if TYPE_CHECKING:
    from weightctl.formats.base import Format

__all__ = [
    "ALL_FORMATS",
    "DIRECTORY_FORMATS",
    "FORMATS",
    "INDEX_SUFFIX",
    "MODEL_FORMATS",
    "READ_FORMATS",
    "WHISPER_CPP",
    "WRITTEN_FORMATS",
    "format_by_index",
    "format_by_suffix",
    "format_module",
    "has_suffix_of",
]


class FormatLine(NamedTuple):
    """An entry of the table of formats.

    `suffixes` are the suffixes of its files, the usual one first. `in_directory` is the name of its
    file in a model directory; None if the format is not used there. If a model in such a directory
    has several parts, an index lists them; `listing` is its name, if a checkpoint with one file has
    it too. `prefix` is what the names of its files begin with, if
    the suffix alone does not identify them.
    """

    module: str
    suffixes: tuple[str, ...]
    in_directory: str | None = None
    prefix: str = ""
    listing: str = ""

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

# Formats that store the models of one family, and nothing else.
WHISPER_CPP = "whisper.cpp"
MODEL_FORMATS: dict[str, FormatLine] = {
    WHISPER_CPP: FormatLine("weightctl.formats.whisper_cpp", (".bin",), prefix="ggml-"),
}
# Formats whose files can only be read together.
DIRECTORY_FORMATS: dict[str, FormatLine] = {
    "dcp": FormatLine("weightctl.formats.dcp", (".distcp",), "__0_0.distcp", listing=".metadata"),
}
WRITTEN_FORMATS = {**FORMATS, **MODEL_FORMATS, **DIRECTORY_FORMATS}
# Formats that are only read.
READ_FORMATS: dict[str, FormatLine] = {
    "npz": FormatLine("weightctl.formats.npz", (".npz",)),
    "keras": FormatLine("weightctl.formats.keras", (".h5", ".keras", ".hdf5")),
}
ALL_FORMATS = {**WRITTEN_FORMATS, **READ_FORMATS}

INDEX_SUFFIX = ".index.json"


def format_module(name: str) -> Format:
    """Return the format of this name; raises `ConversionError` if there is none."""
    if name not in ALL_FORMATS:
        raise ConversionError(
            f"`{name}` is not a supported format",
            hint=f"use one of these formats: {', '.join(ALL_FORMATS)}",
        )
    return cast("Format", load(ALL_FORMATS[name].module))


def format_by_suffix(path: str) -> str | None:
    """Return the name of the format that a path has the suffix of, or None.

    For some formats, the prefix of the file's name counts too.
    """
    lowered = path.lower()
    base = os.path.basename(lowered)
    lines = {**MODEL_FORMATS, **FORMATS, **READ_FORMATS}
    return next(
        (
            name
            for name, line in lines.items()
            if base.startswith(line.prefix) and lowered.endswith(line.suffixes)
        ),
        None,
    )


def has_suffix_of(path: str, name: str) -> bool:
    """Whether a path has a suffix of this format, whatever the beginning of its name."""
    return path.lower().endswith(ALL_FORMATS[name].suffixes)


def format_by_index(path: str) -> str | None:
    """Return the format of an index by its name, such as `model.safetensors.index.json`."""
    name = format_by_suffix(path.removesuffix(INDEX_SUFFIX))
    has_index = path.endswith(INDEX_SUFFIX) and name is not None and ALL_FORMATS[name].has_index
    return name if has_index else None
