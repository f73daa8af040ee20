"""The container formats: each has one module and one line in `FORMATS`, or in a package's table."""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, cast

from weightctl.errors import ConversionError
from weightctl.system.registry import load, load_tables

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from weightctl.dtype import Encoding
    from weightctl.formats.base import Format

__all__ = [
    "DIRECTORY_FORMATS",
    "FORMATS",
    "INDEX_SUFFIX",
    "OTHER_SUFFIXES",
    "FormatLine",
    "added_formats",
    "find_format",
    "format_by_index",
    "format_by_suffix",
    "format_module",
    "has_suffix_of",
    "has_type",
    "is_named_as_any",
    "list_formats",
    "list_preferred",
    "list_written_formats",
    "sort_formats",
]


class FormatLine(NamedTuple):
    """An entry of the table of formats.

    `suffixes` are the suffixes of its files, the usual one first. `in_directory` is the name of its
    file in a model directory; None if the format is not used there. If a model in such a directory
    has several parts, an index lists them; `listing` is its name, if a checkpoint with one file has
    it too. `prefix` is what the names of its files begin with, if the suffix alone does not
    identify them. `is_written` is false for formats that are only read.
    `types_of` is a format with the same types, if `Encoding.ids` does not have the format itself.

    Two functions are named by their references. `cast` chooses the types of the tensors in a file,
    in place of `weightctl.plan.cast.cast`. `list_parts` returns the paths of the files that a list
    with the suffix `list_suffix` names.
    """

    module: str
    suffixes: tuple[str, ...]
    in_directory: str | None = None
    prefix: str = ""
    listing: str = ""
    is_written: bool = True
    types_of: str = ""
    cast: str = ""
    list_suffix: str = ""
    list_parts: str = ""

    @property
    def suffix(self) -> str:
        """The usual suffix of its files."""
        return self.suffixes[0]

    @property
    def has_index(self) -> bool:
        """Whether an index lists the parts of a checkpoint in this format."""
        return self.in_directory is not None

    def has_name_of(self, base: str) -> bool:
        """Whether the name of a file, in lower case, is one that files of this format have."""
        return base.startswith(self.prefix) and base.endswith(self.suffixes)


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
# Formats whose files can only be read together.
DIRECTORY_FORMATS: dict[str, FormatLine] = {
    "dcp": FormatLine(
        "weightctl.formats.dcp",
        (".distcp",),
        "__0_0.distcp",
        listing=".metadata",
        types_of="pytorch",
    ),
}
_OWN = {**FORMATS, **DIRECTORY_FORMATS}
# The group of entry points whose values are tables like `FORMATS`.
ENTRY_POINTS = "weightctl.formats"
# The suffix that formats of packages have, too, if their files have a prefix.
_SHARED, _UNSHARED = ".bin", "pytorch_model"
# Suffixes of weights in formats of packages and in formats that are not supported. They are known
# without a look at the packages.
OTHER_SUFFIXES = (
    ".npz", ".h5", ".keras", ".hdf5", ".msgpack", ".onnx", ".onnx_data", ".ot", ".tflite", ".pb",
    ".mlmodel", ".npy", ".pte",
)  # fmt: skip

INDEX_SUFFIX = ".index.json"


@cache
def added_formats() -> Mapping[str, FormatLine]:
    """Return the formats of installed packages, those in weightctl itself first.

    To find them takes longer than to list a small file, so they are looked for when no format of
    `FORMATS` is the right one. Raises `ConversionError` if a package adds what is not a table of
    formats, or a format that exists already.
    """
    return load_tables(ENTRY_POINTS, FormatLine, _OWN, "format")


def list_formats() -> dict[str, FormatLine]:
    """Return all formats, in order of preference."""
    read = {name: line for name, line in added_formats().items() if not line.is_written}
    return {**list_written_formats(), **read}


def list_written_formats() -> dict[str, FormatLine]:
    """Return the formats that can be written, in order of preference."""
    written = {name: line for name, line in added_formats().items() if line.is_written}
    return {**FORMATS, **written, **DIRECTORY_FORMATS}


def find_format(name: str) -> FormatLine:
    """Return the line of a format; raises `ConversionError` if there is none of this name."""
    line = _OWN.get(name) or added_formats().get(name)
    if line is None:
        is_layout = name.lower() in {"hf", "huggingface", "transformers"}
        raise ConversionError(
            f"`{name}` is not a supported format",
            hint="for a Hugging Face directory, leave out --to, and use an OUT without a suffix"
            if is_layout
            else f"use one of these formats: {', '.join(list_formats())}",
        )
    return line


def format_module(name: str) -> Format:
    """Return the format of this name; raises `ConversionError` if there is none."""
    return cast("Format", load(find_format(name).module, "weightctl.formats.base:Format"))


def has_type(name: str, encoding: Encoding) -> bool:
    """Whether a format has a type for an encoding."""
    return name in encoding.ids or find_format(name).types_of in encoding.ids


def sort_formats(names: Collection[str]) -> list[str]:
    """Return names of formats in order of preference."""
    is_own = all(name in FORMATS for name in names)
    return [name for name in (FORMATS if is_own else list_formats()) if name in names]


def list_preferred(name: str) -> frozenset[str]:
    """Return a format and those that are preferred to it."""
    names = list(FORMATS if name in FORMATS else list_formats())
    return frozenset(names[: names.index(name) + 1])


def format_by_suffix(path: str) -> str | None:
    """Return the name of the format that a path has the suffix of, or None.

    For some formats, the prefix of the file's name counts too.
    """
    base = os.path.basename(path.lower())
    own = _find_own(base)
    is_shared = base.endswith(_SHARED) and not base.startswith(_UNSHARED)
    if "." not in base or (own is not None and not is_shared):
        return own
    added = added_formats().items()
    lines = (name for name, line in added if line.has_name_of(base) and (line.prefix or not own))
    return next(lines, own)


def _find_own(base: str) -> str | None:
    return next((name for name, line in FORMATS.items() if line.has_name_of(base)), None)


def is_named_as_any(path: str, names: Collection[str]) -> bool:
    """Whether a path has the name of a file in one of these formats."""
    is_own = all(name in FORMATS for name in names)
    if is_own and _find_own(os.path.basename(path.lower())) not in names:
        return False
    return format_by_suffix(path) in names


def has_suffix_of(path: str, name: str) -> bool:
    """Whether a path has a suffix of this format, whatever the beginning of its name."""
    return path.lower().endswith(find_format(name).suffixes)


def format_by_index(path: str) -> str | None:
    """Return the format of an index by its name, such as `model.safetensors.index.json`."""
    if not path.endswith(INDEX_SUFFIX):
        return None
    name = format_by_suffix(path.removesuffix(INDEX_SUFFIX))
    return name if name is not None and find_format(name).has_index else None
