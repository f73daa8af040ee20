"""Reads the local cache of the Hugging Face Hub, which the Hub's own tools write."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from weightctl.errors import MissingFileError
from weightctl.storage.files import open_reader
from weightctl.storage.local import FileReader
from weightctl.storage.remote.hub_api import hub_home, is_set
from weightctl.storage.remote.hub_url import MAIN

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightctl.storage.remote.hub_url import HubPath
    from weightctl.storage.remote.reader import RemoteObject

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def offline_variable() -> str:
    """Return the environment variable that forbids requests; empty if none is set."""
    # Like the Hub's own client, use the second variable if the first is empty.
    name = "HF_HUB_OFFLINE" if os.environ.get("HF_HUB_OFFLINE") else "TRANSFORMERS_OFFLINE"
    return name if is_set(name) else ""


def is_commit(text: object) -> bool:
    """Whether text is the full hash of a commit."""
    return isinstance(text, str) and _COMMIT.fullmatch(text) is not None


class CachedFile(FileReader):
    """A file in the cache, whose `path` is its URL."""

    def __init__(self, path: str, local: str, known: RemoteObject) -> None:
        super().__init__(local)
        self.path = path
        # The same number as without the cache, so that the input has the same fingerprint.
        self.written = known.version or self.written

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return (open_reader, (self.path,))

    def refuse_change(self) -> None:
        """Do nothing, since files in the cache are not changed."""


def _directory(place: HubPath) -> str:
    names = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE")
    given = next((os.environ[name] for name in names if os.environ.get(name)), "")
    cache = os.path.expandvars(os.path.expanduser(given)) or os.path.join(hub_home(), "hub")
    return os.path.join(cache, f"models--{place.repository.replace('/', '--')}")


def find_cached(place: HubPath, commit: str, size: int) -> str:
    """Return the path of a commit's file in the cache; empty if it is not cached."""
    path = os.path.join(_directory(place), "snapshots", commit, place.path)
    try:
        return path if os.path.isfile(path) and os.path.getsize(path) == size else ""
    except OSError:
        return ""


def read_snapshot(place: HubPath, url: str) -> tuple[str, dict[str, int]]:
    """Return the commit of a revision in the cache, and the sizes of its files by path.

    Raises `MissingFileError` if the cache does not have the revision.
    """
    directory = _directory(place)
    commit = place.revision
    if not is_commit(commit):
        try:
            with open(os.path.join(directory, "refs", place.revision), encoding="utf-8") as file:
                commit = file.read(100).strip()
        except (OSError, ValueError):
            commit = ""
    root = os.path.join(directory, "snapshots", commit)
    if not is_commit(commit) or not os.path.isdir(root):
        raise explain_missing(place, url, f"the revision `{place.revision}`")
    sizes: dict[str, int] = {}
    for parent, _, names in os.walk(root):
        for name in names:
            path = os.path.join(parent, name)
            if os.path.isfile(path):
                sizes[os.path.relpath(path, root).replace(os.sep, "/")] = os.path.getsize(path)
    return commit, sizes


def explain_missing(place: HubPath, url: str, what: str) -> MissingFileError:
    """Return the error for `what`, which is not in the cache, if requests are forbidden."""
    variable = offline_variable()
    option = "" if place.revision == MAIN else f" --revision {place.revision}"
    command = f"hf download {place.repository}{option}"
    return MissingFileError(
        url, None, f"{what} is not in the cache of the Hugging Face Hub, and {variable} allows no "
        "requests",
        hint=f"unset {variable}, or download it first: `{command}`",
    )  # fmt: skip
