"""Paths and URLs, and their storages."""

from __future__ import annotations

import os
import posixpath
import re
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import FormatError
from weightctl.system.registry import load

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightctl.storage.base import Reader

__all__ = ["STORAGES", "Location", "hint_for_missing", "is_local", "open_reader", "parse_location"]

# By scheme, what opens a file for reading: `(path: str) -> Reader`.
STORAGES = {
    "file": "weightctl.storage.local:FileReader",
}
_URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+-]*)://(?P<path>.*)", re.IGNORECASE | re.DOTALL)
# By schemes that have no storage yet, the command that downloads what a URL names.
_DOWNLOADS = {
    "hf": "hf download {path} --local-dir {name}",
    "http": "curl -LO {url}",
    "https": "curl -LO {url}",
    "s3": "aws s3 cp --recursive {url} {name}",
    "gs": "gcloud storage cp --recursive {url} {name}",
    "az": "azcopy copy {url} {name} --recursive",
}
_UNSUPPORTED = "remote checkpoints are not supported yet"
# What Hugging Face calls a model, `owner/name`, where no local directory has the owner's name.
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


class Location(NamedTuple):
    """Where a file is: the scheme of its storage, and its path there."""

    scheme: str
    path: str

    @property
    def name(self) -> str:
        """The path of a local file, and the URL of any other."""
        return self.path if self.scheme == "file" else f"{self.scheme}://{self.path}"


def parse_location(text: str) -> Location:
    """Parse a path or URL; text that does not begin with a known scheme is a path.

    Raises `FormatError` for a scheme that is known and not in `STORAGES`.
    """
    found = _URL.fullmatch(text)
    scheme = found["scheme"].lower() if found else ""
    if found and scheme in STORAGES:
        return Location(scheme, found["path"])
    if found and scheme in _DOWNLOADS:
        path = found["path"].strip("/")
        command = _DOWNLOADS[scheme].format(url=text, path=path, name=posixpath.basename(path))
        raise FormatError(text, None, _UNSUPPORTED, hint=f"download it first: `{command}`")
    return Location("file", text)


def hint_for_missing(text: str) -> str:
    """Return what to do about a path that does not exist; it may name a model on Hugging Face."""
    if not _REPOSITORY.fullmatch(text) or os.path.lexists(os.path.dirname(text)):
        return "check the path"
    command = _DOWNLOADS["hf"].format(path=text, name=posixpath.basename(text))
    return (
        "check the path; if it is a model on Hugging Face, download it first, because "
        f"{_UNSUPPORTED}: `{command}`"
    )


def open_reader(text: str) -> Reader:
    """Open the file at a path or URL for reading.

    Raises `FormatError` if it cannot be opened, or as `parse_location` does.
    """
    scheme, path = parse_location(text)
    opener: Callable[[str], Reader] = load(STORAGES[scheme])
    return opener(path)


def is_local(text: str) -> bool:
    """Whether a path or URL names a local file; others cannot be listed, nor asked for but opened.

    Raises `FormatError` as `parse_location` does.
    """
    return parse_location(text).scheme == "file"
