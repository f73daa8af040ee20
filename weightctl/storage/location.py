"""Paths and URLs, and their storages."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import FormatError
from weightctl.system.registry import load

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightctl.storage.base import Reader

__all__ = ["STORAGES", "Location", "is_local", "open_reader", "parse_location"]

# By scheme, what opens a file for reading: `(path: str) -> Reader`.
STORAGES = {
    "file": "weightctl.storage.local:FileReader",
}
_URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+-]*)://(?P<path>.*)", re.IGNORECASE | re.DOTALL)
_DOWNLOADS = {
    "hf": "download it first: `hf download OWNER/NAME --local-dir DIR`",
    "http": "download it first: `curl -LO URL`",
    "https": "download it first: `curl -LO URL`",
    "s3": "download it first: `aws s3 cp --recursive URL DIR`",
    "gs": "download it first: `gcloud storage cp --recursive URL DIR`",
    "az": "download it first: `azcopy copy URL DIR --recursive`",
}


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
    if scheme in _DOWNLOADS:
        raise FormatError(text, None, f"{scheme}:// is not supported yet", hint=_DOWNLOADS[scheme])
    return Location("file", text)


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
