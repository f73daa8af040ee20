"""The container formats: one module and one line in `FORMATS` each."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

from weightctl.errors import ConversionError, FormatError
from weightctl.registry import load

if TYPE_CHECKING:
    from weightctl.formats.base import Format
    from weightctl.weights.mapping import MappedFile

__all__ = ["FORMATS", "format_by_suffix", "format_module", "recognise"]


class Line(NamedTuple):
    """What the table says of a format.

    `index_suffix` is that of the file that lists the parts of a checkpoint, where the format has
    one; `in_directory` is the file name it takes inside a model's directory, where it takes one.
    """

    module: str
    suffix: str
    index_suffix: str | None = None
    in_directory: str | None = None


# In order of preference, where a directory holds several.
FORMATS: dict[str, Line] = {
    "safetensors": Line(
        "weightctl.formats.safetensors",
        ".safetensors",
        ".safetensors.index.json",
        "model.safetensors",
    ),
    "gguf": Line("weightctl.formats.gguf", ".gguf"),
}

_HEAD = 512


def format_module(name: str) -> Format:
    """Return the format of this name; `ConversionError` for one that the table lacks."""
    if name not in FORMATS:
        raise ConversionError(f"`{name}` is no format", hint=f"formats: {', '.join(FORMATS)}")
    return cast("Format", load(FORMATS[name].module))


def format_by_suffix(path: str) -> str | None:
    """Return the name of the format whose suffix a path has."""
    lowered = path.lower()
    return next((name for name, line in FORMATS.items() if lowered.endswith(line.suffix)), None)


def sniff(file: MappedFile) -> str | None:
    """Return the name of the format that a file's first bytes show, None for no checkpoint."""
    head = bytes(file.whole[:_HEAD])
    return next((name for name in FORMATS if format_module(name).sniff(head)), None)


def recognise(file: MappedFile, format_name: str | None = None) -> str:
    """Return the name of the format of a file, by its content.

    Raises `FormatError` that says what the file is, where it is no checkpoint of `format_name` or
    of any format.
    """
    found = sniff(file)
    if found is None or (format_name is not None and found != format_name):
        expected = f"no {format_name} file" if format_name else "no checkpoint that weightctl reads"
        message, hint = _what_it_is(bytes(file.whole[:_HEAD]), found)
        raise FormatError(file.path, None, f"{expected}: {message}", hint=hint)
    return found


# What files that are no checkpoint begin with, what they are, and what to do.
_OTHERS = (
    (
        b"version https://git-lfs",
        "it is a Git LFS pointer, not the file itself",
        "run `git lfs pull` in its repository",
    ),
    (b"<!doctype", "it is a web page", "the download got an error page; is a login needed?"),
    (b"<html", "it is a web page", "the download got an error page; is a login needed?"),
    (b"pk\3\4", "it looks like a PyTorch file", "load it with torch and save it as safetensors"),
    (b"\x80", "it looks like a PyTorch file", "load it with torch and save it as safetensors"),
    (b"\0" * 32, "it begins with zeros", "an interrupted download leaves such files"),
    (b"lmgg", "it is older than GGUF", "an older llama.cpp converts such files to GGUF"),
    (b"fmgg", "it is older than GGUF", "an older llama.cpp converts such files to GGUF"),
    (b"tjgg", "it is older than GGUF", "an older llama.cpp converts such files to GGUF"),
)


def _what_it_is(head: bytes, found: str | None) -> tuple[str, str]:
    if found is not None:
        return f"it is {found}", f"leave out --from, or say --from {found}"
    if not head:
        return "it is empty", "download it again"
    start = head.lstrip().lower()
    for beginning, what, remedy in _OTHERS:
        if start.startswith(beginning):
            return what, remedy
    return "its first bytes are those of no format known", f"formats: {', '.join(FORMATS)}"
