"""Errors and hints for truncated files: how much is missing, and how to get the rest."""

from __future__ import annotations

import os
import re

from weightctl.errors import FormatError
from weightctl.storage.files import exists
from weightctl.text.sizes import format_size

# Suffixes of incomplete downloads by huggingface_hub, browsers and other programs.
_UNFINISHED = (".incomplete", ".part", ".partial", ".crdownload", ".download")
# Files that are too large to upload are divided with `split`. These are the usual names of the
# pieces.
_PIECE = re.compile(
    r"(?P<whole>.+?)(?P<join>[-.](?:split|part)-?)(?:[a-z]{1,3}|\d{1,5}(?:of\d{1,5})?)"
)


def past_end(path: str, at: int, name: str, end: int, size: int) -> FormatError:
    """Return the error for a file of `size` bytes whose last tensor ends at byte `end`."""
    return FormatError(
        path,
        at,
        f"`{name}` ends {end - size} bytes after the end of the file: the file has {size} "
        f"bytes instead of {end} ({format_size(end - size)} of {format_size(end)} are "
        "missing)",
        hint=rest_of(path),
    )


def rest_of(path: str) -> str:
    """Return a hint for a truncated file."""
    question = "check that the download is complete"
    remedy = (
        describe_unfinished(path)
        or describe_join(path)
        or "`curl -C -` and `wget -c` download only the rest"
    )
    return f"{question}; {remedy}"


def describe_unfinished(path: str) -> str:
    """Return a hint if names show that a download is incomplete; else an empty string."""
    base = os.path.basename(path)
    if exists(path + ".aria2"):
        return f"{base}.aria2 beside it shows that it is not: start aria2 again to continue"
    if base.lower().endswith(_UNFINISHED):
        suffix = os.path.splitext(base)[1]
        return f"the suffix {suffix} shows that it is not: start the download again to continue"
    return ""


def describe_join(path: str) -> str:
    """Return a hint if a file has the name of a piece of a split file; else an empty string."""
    piece = _PIECE.fullmatch(os.path.basename(path))
    if piece is None:
        return ""
    whole, join = piece["whole"], piece["join"]
    return f"to join the pieces of the file: cat {whole}{join}* > {whole}"
