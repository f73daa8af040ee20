"""Parses URLs of models on the Hugging Face Hub: `hf://OWNER/NAME[@REVISION][/PATH]`."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote

from weightctl.errors import FormatError

MAIN = "main"
_SCHEME = "hf://"
# URLs of repositories of other kinds begin with these words. `models` may be left out.
_OTHERS = ("datasets", "spaces", "kernels", "buckets", "collections")
_MODELS = "models/"
# Revisions whose slashes need not be written as %2F, as in the Hub's own tools.
_REFERENCE = re.compile(r"refs/(?:convert/[\w.-]+|pr/\d+)(?=/|$)")
_WORD = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?")
_USE = "use hf://OWNER/NAME, such as hf://openai-community/gpt2"


class HubPath(NamedTuple):
    """A file or directory of a model repository at a revision; `path` is empty for its root."""

    repository: str
    revision: str = MAIN
    path: str = ""


def parse_hub_url(url: str) -> HubPath:
    """Parse the URL of a model, or of a file or directory in it.

    A slash in a revision is written as %2F, except in `refs/pr/N` and `refs/convert/NAME`. Raises
    `FormatError` if the URL is invalid.
    """
    body = url[len(_SCHEME) :].removeprefix(_MODELS).strip("/")
    owner, _, rest = body.partition("/")
    if owner.partition("@")[0] in _OTHERS:
        raise FormatError(
            url, None, f"it is not a model: weightctl does not open {owner} of the Hub", hint=_USE
        )
    name = re.split("[/@]", rest, maxsplit=1)[0]
    below = rest[len(name) :]
    if not rest:
        raise FormatError(
            url, None, "the URL does not contain both an owner and a model name", hint=_USE
        )
    repository = f"{owner}/{name}"
    if not _is_repository(owner, name):
        raise FormatError(url, None, f"`{repository}` is not a valid model name", hint=_USE)
    revision = MAIN
    if below.startswith("@"):
        reference = _REFERENCE.match(below, 1)
        end = reference.end() if reference else (below + "/").index("/")
        revision, below = unquote(below[1:end]), below[end:]
        if not is_safe_path(revision):
            raise FormatError(
                url, None, f"`{revision}` is not a valid revision name",
                hint="use a branch, a tag or a commit after @, such as hf://OWNER/NAME@main",
            )  # fmt: skip
    return HubPath(repository, revision, below.strip("/"))


def is_safe_path(path: str) -> bool:
    """Whether a relative path stays inside its directory, and has only valid file names."""
    names = path.split("/")
    return not any(name in {"", ".", ".."} or "\0" in name or "\\" in name for name in names)


def _is_repository(owner: str, name: str) -> bool:
    text = f"{owner}/{name}"
    is_odd = "--" in text or ".." in text or name.endswith(".git") or len(text) > 96
    return not is_odd and all(map(_WORD.fullmatch, (owner, name)))
