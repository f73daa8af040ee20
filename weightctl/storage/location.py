"""Parses paths and URLs, and finds their storage."""

from __future__ import annotations

import os
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, NamedTuple, cast

from weightctl.errors import FormatError
from weightctl.system.registry import load, load_tables, name_install

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.storage.base import Store


class StorageLine(NamedTuple):
    """A line of the table of storages.

    `module` refers to the storage's `Store` class, which is called without arguments, and `extra`
    is the extra of weightctl that installs its dependencies. `anonymous` is the environment
    variable that makes it send requests without credentials. `commits` is set if written files
    appear in a commit of a repository.
    """

    module: str
    extra: str = ""
    anonymous: str = ""
    commits: bool = False


# The storages by URL scheme. Local files do not have a `Store`: `weightctl.storage.files` uses the
# functions of the operating system.
STORAGES = {
    "file": StorageLine("weightctl.storage.local"),
    "http": StorageLine("weightctl.storage.remote.store:WebStore", "remote"),
    "https": StorageLine("weightctl.storage.remote.store:WebStore", "remote"),
    "hf": StorageLine(
        "weightctl.storage.remote.hub:HubStore",
        "remote",
        "HF_HUB_DISABLE_IMPLICIT_TOKEN",
        commits=True,
    ),
    "s3": StorageLine(
        "weightctl.storage.remote.buckets:BucketStore", "remote", "AWS_SKIP_SIGNATURE"
    ),
    "gs": StorageLine(
        "weightctl.storage.remote.buckets:BucketStore", "remote", "GOOGLE_SKIP_SIGNATURE"
    ),
    "az": StorageLine(
        "weightctl.storage.remote.buckets:BucketStore", "remote", "AZURE_SKIP_SIGNATURE"
    ),
}
_STORES: dict[str, Store] = {}


@cache
def added_storages() -> Mapping[str, StorageLine]:
    """Return the storages of installed packages, which are looked for if a scheme is not known.

    Raises the errors of `load_tables`.
    """
    return load_tables("weightctl.stores", StorageLine, STORAGES, "URL scheme")


# Maps a URL as it is shown to the full URL, with its signature or password.
_FULL: dict[str, str] = {}
# Maps the scheme and host of a URL to the user and password for all URLs of this host.
_LOGINS: dict[str, str] = {}


class Location(NamedTuple):
    """The location of a file: the scheme of its storage, and its path or URL."""

    scheme: str
    name: str


def parse_location(text: str) -> Location:
    """Parse a path or URL; text that does not begin with a supported scheme is a path.

    The name of a `file` URL is its path. From other URLs, secrets and a final slash are removed.
    Raises `FormatError` if a `file` URL is that of another machine.
    """
    scheme = _scheme_of(text)
    if not scheme:
        return Location("file", text)
    if text in _FULL:
        return Location(scheme, text)
    rest = text[len(scheme) + 3 :].replace(os.sep, "/")  # Windows joins names with backslashes
    if scheme == "file":
        return Location("file", _path_of(text, rest))
    return Location(scheme, _without_secrets(scheme, rest))


def _path_of(url: str, rest: str) -> str:
    """Return the path of a `file` URL; `rest` is the text after the scheme."""
    from urllib.parse import unquote  # seldom needed

    host, slash, below = rest.partition("/")
    if host.lower() not in {"", "localhost"} or not slash:
        raise FormatError(
            url, None, f"`{host}` is not a path" if host else "the URL has no path",
            hint="use file:///PATH, with three slashes and the whole path",
        )  # fmt: skip
    path = unquote(slash + below)
    return path[1:] if os.path.splitdrive(path[1:])[0] else path  # a drive letter of Windows


def without_file_scheme(text: str) -> str:
    """Return the path of a `file://` URL, or other text unchanged."""
    return text if is_remote(text) else parse_location(text).name


def absolute(text: str) -> str:
    """Return the absolute path of a path or `file://` URL, or another URL unchanged."""
    return text if is_remote(text) else os.path.abspath(parse_location(text).name)


def _without_secrets(scheme: str, rest: str) -> str:
    """Return a URL without possible secrets: a signature in its query, or a password.

    The secrets are kept, so that `full_url` can return the whole URL.
    """
    if scheme not in {"http", "https"}:
        return f"{scheme}://{rest.rstrip('/')}"
    rest = rest.partition("#")[0]
    path, _, query = rest.partition("?")
    host, slash, below = path.partition("/")
    shown = f"{scheme}://{host.rpartition('@')[2]}{slash}{below}".rstrip("/")
    login, _, host = host.rpartition("@")
    if login:
        _LOGINS[f"{scheme}://{host}"] = login
    if query or login:
        return _name_full(shown, f"{scheme}://{rest}")
    return shown


def _name_full(shown: str, full: str) -> str:
    """Return a unique name for a URL that is not shown in full.

    If several URLs only differ in their hidden parts, a number is added to `shown`.
    """
    names = (f"{shown}#{number}" if number > 1 else shown for number in count(1))
    name = next(name for name in names if _FULL.get(name, full) == full)
    _FULL[name] = full
    return name


def full_url(shown: str) -> str:
    """Return the URL to connect to, including the secrets that `parse_location` has removed."""
    if shown in _FULL:
        return _FULL[shown]
    scheme, separator, rest = shown.partition("://")
    login = _LOGINS.get(f"{scheme}://{rest.partition('/')[0]}") if separator else None
    return f"{scheme}://{login}@{rest}" if login else shown


def forget_credentials() -> None:
    """Make all storages send requests without credentials from now on."""
    lines = (*STORAGES.values(), *added_storages().values())
    os.environ.update({line.anonymous: "true" for line in lines if line.anonymous})


def is_remote(text: str) -> bool:
    """Whether text is a URL, except that of a local file."""
    return _scheme_of(text) not in {"", "file"}


def has_commits(text: str) -> bool:
    """Whether text is a URL in a repository, where files appear in commits."""
    return is_remote(text) and _line_of(_scheme_of(text)).commits


def store_of(text: str) -> Store | None:
    """Return the storage of a URL; None for a local path.

    Raises `FormatError` if a dependency of the storage is not installed.
    """
    scheme = _scheme_of(text)
    if scheme in {"", "file"}:
        return None
    line = _line_of(scheme)
    if line.module not in _STORES:
        try:
            store = load(line.module, "weightctl.storage.base:Store")
            _STORES[line.module] = cast("Store", store())
        except ImportError as error:
            name = error.name or line.module
            if name.startswith("weightctl"):
                raise
            is_missing = isinstance(error, ModuleNotFoundError)
            why = "is not installed" if is_missing else f"cannot be loaded: {error}"
            how = "install it" if is_missing else "install it again"
            raise FormatError(
                text,
                None,
                f"{scheme}:// URLs need the package {name}, which {why}",
                hint=f"{how}: {name_install(line.extra)}",
            ) from error
    return _STORES[line.module]


def _scheme_of(text: str) -> str:
    """Return the scheme of a URL in lower case, empty for a path."""
    scheme, separator, _ = text.partition("://")
    scheme = scheme.lower() if separator else ""
    is_known = scheme in STORAGES or (scheme.isalnum() and scheme in added_storages())
    return scheme if is_known else ""


def _line_of(scheme: str) -> StorageLine:
    return STORAGES.get(scheme) or added_storages()[scheme]


def hint_for_missing(text: str) -> str:
    """Return a hint for a path that does not exist, which may name a model of another program."""
    scheme, colon, rest = text.partition(":")
    if scheme == "hf" and colon:
        return f"did you mean `hf://{rest.lstrip('/')}`?"
    if colon and _is_repository_word(scheme) and _is_repository_word(rest):
        return "check the name; `weightctl ls` lists the models on this machine"
    owner, _, name = text.partition("/")
    is_repository = all(map(_is_repository_word, (owner, name)))
    if not is_repository or os.path.lexists(owner):
        return "check the path"
    return f"check the path; for a model on Hugging Face, use `hf://{text}`"


def _is_repository_word(text: str) -> bool:
    """Whether text can be the owner or the name of a model on Hugging Face."""
    allowed = text.replace("-", "").replace("_", "").replace(".", "")
    return text[:1].isalnum() and allowed.isalnum() and text.isascii()


def split_url(url: str) -> tuple[str, str, str]:
    """Return the scheme, the bucket and the key of a URL.

    Raises `FormatError` if the URL does not have a bucket.
    """
    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    if not bucket:
        raise FormatError(url, None, "the URL has no bucket", hint=f"use {scheme}://BUCKET/PATH")
    return scheme.lower(), bucket, key.strip("/")
