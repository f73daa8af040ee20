"""Commits files to models on the Hugging Face Hub, and creates models that do not exist.

Large files are uploaded to Xet first, in which the Hub stores the distinct chunks of files.
"""

from __future__ import annotations

import base64
import hashlib
import json
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.errors import FormatError, MissingFileError, OutputError, WeightctlError
from weightctl.storage.local_models import is_commit
from weightctl.storage.location import store_of
from weightctl.storage.remote.failures import (
    HUB_LOGIN,
    HUB_WRITING,
    ExistingModelError,
    NewerCommitError,
    find_refusal,
    translate_error,
)
from weightctl.storage.remote.hub import HubStore, offline_variable
from weightctl.storage.remote.hub_api import (
    Posted,
    ask,
    endpoint,
    explain,
    is_set,
    quote_segment,
    read_token,
    unexpected_answer,
)
from weightctl.storage.remote.hub_url import MAIN, parse_hub_url
from weightctl.storage.traffic import TRAFFIC
from weightctl.system.registry import name_install
from weightctl.text.untyped import is_list, is_object
from weightctl.text.wording import printable

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping

    from weightctl.storage.base import CommitOptions
    from weightctl.storage.remote.hub import HubCommit
    from weightctl.storage.remote.hub_api import HubError
    from weightctl.storage.remote.hub_url import HubPath

# The Hub decides how a file is stored, also by this number of bytes at its beginning.
_SAMPLE = 512
_LONGEST = 300
_ANONYMOUS = "HF_HUB_DISABLE_IMPLICIT_TOKEN"
# The library records in its cache which pieces of 64 MB have arrived, so that they are not sent
# again if a run is stopped and repeated. With this option, it does so after each piece; its default
# is after 64 pieces, or 20 seconds.
_NOTED_PIECES = {"data.session_xorb_metadata_flush_max_count": 1}


class CommitContent(NamedTuple):
    """The changes of a commit, by path: uploaded files, small files, and deleted files."""

    uploaded: Mapping[str, XetFile]
    small: Mapping[str, bytes]
    deleted: Iterable[str]


class ModelRepository:
    """A model on the Hub to which an output is committed, at the revision in a URL."""

    def __init__(self, url: str, options: CommitOptions) -> None:
        self.url = url
        self.place = parse_hub_url(url)
        self.options = options

    def find_commit(self) -> HubCommit | None:
        """Return the files of the revision; None if the model does not exist.

        Raises `OutputError` if the revision does not exist, and `FormatError` if the Hub does not
        answer.
        """
        store = store_of(self.url)
        if not isinstance(store, HubStore):
            raise TypeError("only URLs of the Hub have commits")
        try:
            return store.find_commit(self.url)
        except MissingFileError as error:
            raise OutputError(
                f"{self.url}: {error.reason}",
                hint="create the branch first, or leave out the revision",
            ) from error

    def refuse(self) -> None:
        """Raise `OutputError` if a commit is impossible: without a token, or not to a branch."""
        revision = self.place.revision
        if variable := offline_variable():
            raise OutputError(
                f"{self.url} cannot be written: {variable} allows no requests",
                hint=f"unset {variable}",
            )
        if is_commit(revision):
            raise OutputError(
                f"{self.url} is a commit, which cannot be changed",
                hint="use a branch, such as hf://OWNER/NAME@main",
            )
        if self.options.pull_request and revision != MAIN:
            raise OutputError(
                f"a pull request is for the main branch, and not for `{revision}`",
                hint=f"remove --pr (pr in Python) or @{revision}",
            )
        if not read_token():
            unwanted = is_set(_ANONYMOUS)
            raise OutputError(
                f"{self.url} cannot be written without a token of the Hugging Face Hub",
                hint=f"remove --anonymous, or unset {_ANONYMOUS}" if unwanted else HUB_LOGIN,
            )

    def create(self) -> None:
        """Create the model, if it does not exist; raises `OutputError` if that fails."""
        owner, _, name = self.place.repository.partition("/")
        asked: dict[str, Any] = {"name": name, "organization": owner, "type": "model"}
        if self.options.private:
            asked |= {"private": True, "visibility": "private"}
        self._post(f"{endpoint()}/api/repos/create", asked)

    def check_access(self, route: str) -> None:
        """Raise `OutputError` if the token must not write; `route` requires write access."""
        self._ask(f"{endpoint()}/api/models/{route}")

    def find_large(self, files: Mapping[str, bytes]) -> set[str]:
        """Return the paths of files that must be uploaded before the commit."""
        if not files:
            return set()
        asked = [
            {"path": path, "size": len(raw), "sample": _base64(raw[:_SAMPLE])}
            for path, raw in files.items()
        ]
        found = self._post(self._route("preupload"), {"files": asked})
        rows: Any = found.get("files") if is_object(found) else None
        if not is_list(rows):
            raise self._translate(unexpected_answer(self.url))
        large = {row.get("path") for row in rows if row.get("uploadMode") == "lfs"}
        return {path for path, raw in files.items() if raw and path in large}

    def commit(self, parent: str, message: str, content: CommitContent) -> str:
        """Commit changes on top of the commit `parent`; return the URL of the pull request, if any.

        Raises `OutputError` if the commit fails, for example because a newer commit than `parent`
        exists.
        """
        header = {"summary": message, "description": "", "parentCommit": parent}
        lines = [{"key": "header", "value": header}, *_list_operations(content)]
        body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        try:
            found = self._ask(self._route("commit"), Posted(body, "application/x-ndjson"))
        except NewerCommitError:
            # If the answer to the first request was lost, the newer commit is this one.
            if self.options.pull_request or not self._has(content):
                raise
            return ""
        link = found.get("pullRequestUrl") if is_object(found) else None
        return link if isinstance(link, str) and self.options.pull_request else ""

    def _has(self, content: CommitContent) -> bool:
        """Whether the newest commit has the content."""
        store = store_of(self.url)
        if store is not None:
            store.refresh(self.url)
        newest = self.find_commit()
        tags = {} if newest is None else {path: each.tag for path, each in newest.files.items()}
        expected = {path: file.sha256 for path, file in content.uploaded.items()}
        expected |= {path: _hash_blob(raw) for path, raw in content.small.items()}
        is_there = all(tags.get(path) == tag for path, tag in expected.items())
        return is_there and not any(path in tags for path in content.deleted)

    def _route(self, action: str) -> str:
        revision = quote_segment(self.place.revision)
        query = "?create_pr=1" * self.options.pull_request
        return f"{endpoint()}/api/models/{self.place.repository}/{action}/{revision}{query}"

    def _post(self, address: str, content: Any) -> Any:
        try:
            return self._ask(address, Posted(json.dumps(content).encode()))
        except ExistingModelError:
            return None

    def _ask(self, address: str, posted: Posted | None = None) -> Any:
        try:
            return ask(address, self.place, self.url, posted, _explain).content
        except FormatError as error:
            raise self._translate(error) from error

    @staticmethod
    def _translate(error: FormatError) -> OutputError:
        return OutputError(error.message, hint=error.hint)


def _explain(error: HubError, place: HubPath, url: str) -> OutputError:
    """Return the error to raise for a refused change."""
    if refusal := find_refusal(HUB_WRITING, error.names):
        text = printable(error.text)[:_LONGEST]
        words = {"url": url, "repository": place.repository, "text": text}
        return refusal.kind(refusal.reason.format(**words), hint=refusal.hint)
    found = explain(error, place, url)
    return OutputError(found.message, hint=found.hint)


def _list_operations(content: CommitContent) -> list[dict[str, Any]]:
    deleted: list[dict[str, Any]] = [
        {"key": "deletedFile", "value": {"path": path}} for path in content.deleted
    ]
    small: list[dict[str, Any]] = [
        {"key": "file", "value": {"path": path, "encoding": "base64", "content": _base64(raw)}}
        for path, raw in content.small.items()
    ]
    uploaded: list[dict[str, Any]] = [
        {
            "key": "lfsFile",
            "value": {"path": path, "algo": "sha256", "oid": file.sha256, "size": file.nbytes},
        }
        for path, file in content.uploaded.items()
    ]
    return [*deleted, *small, *uploaded]


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _hash_blob(raw: bytes) -> str:
    """Return the hash of a file's content as a Git object."""
    return hashlib.sha1(b"blob %d\0" % len(raw) + raw, usedforsecurity=False).hexdigest()


class XetFile(NamedTuple):
    """An uploaded file: its SHA-256 and its size."""

    sha256: str
    nbytes: int


def load_xet(url: str) -> Any:  # the library does not have type annotations
    """Return the library `hf_xet`; raises `OutputError`, which names `url`, if it is missing."""
    try:
        return import_module("hf_xet")
    except ModuleNotFoundError as error:
        raise OutputError(
            f"writing {url} needs the package {error.name}, which is not installed",
            hint=f"install it: {name_install('hub')}",
        ) from error


def token_route(place: HubPath, options: CommitOptions) -> str:
    """Return the API route that returns a token for uploads to a model."""
    route = f"{place.repository}/xet-write-token/{quote_segment(place.revision)}"
    return route + "?create_pr=1" * options.pull_request


class XetStream:
    """A file that is uploaded in order; all methods may raise `OutputError`."""

    def __init__(self, path: str, stream: Any) -> None:
        self._path = path
        self._stream: Any = stream

    def write(self, data: bytes) -> None:
        """Send bytes; wait while too many bytes are not sent yet."""
        with _translate(self._path):
            self._stream.write(data)

    def finish(self) -> XetFile:
        """End the file, after all of it was written."""
        with _translate(self._path):
            found = self._stream.finish().xet_info
            del self._stream  # to release its memory and threads
            return XetFile(str(found.sha256), int(found.file_size))


class XetUpload:
    """Files that are uploaded together; a commit on the Hub makes them visible.

    Only chunks that the storage does not have are sent. All methods may raise `OutputError`.
    """

    def __init__(self, place: HubPath, url: str, options: CommitOptions) -> None:
        self._url = url
        self._xet = load_xet(url)
        headers = {"authorization": f"Bearer {read_token()}"}
        address = f"{endpoint()}/api/models/{token_route(place, options)}"
        with _translate(url):
            session = self._xet.XetSession(self._xet.XetConfig().with_config(_NOTED_PIECES))
            self._commit: Any = session.new_upload_commit(
                token_refresh_url=address, token_refresh_headers=headers
            )

    def begin(self, path: str) -> XetStream:
        """Begin to upload a file; `path` is its name in errors."""
        with _translate(path):
            stream = self._commit.start_upload_stream(name=path, sha256=self._xet.COMPUTE_SHA256)
        return XetStream(path, stream)

    def put(self, path: str, content: bytes) -> XetFile:
        """Upload a file whose content is in memory."""
        stream = self.begin(path)
        stream.write(content)
        return stream.finish()

    def finish(self) -> None:
        """Wait until all files are stored; call `XetStream.finish` for each of them first."""
        with _translate(self._url):
            report = self._commit.wait_to_finish()
            TRAFFIC.count(sent=int(report.dedup_metrics.total_bytes_uploaded))
            self._commit = None

    def abort(self) -> None:
        """Abort all uploads; do nothing if they have ended."""
        if self._commit is not None:
            with suppress(Exception):
                self._commit.abort()


@contextmanager
def _translate(path: str) -> Generator[None, None, None]:
    """Translate the library's errors to `OutputError`, without their text, which may have URLs."""
    try:
        yield
    except WeightctlError:
        raise
    except Exception as error:
        raise translate_error(error, path, "written") from error
