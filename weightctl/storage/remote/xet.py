"""Uploads to Xet, in which the Hugging Face Hub stores the distinct chunks of large files."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.errors import WeightctlError
from weightctl.storage.remote.hub_api import endpoint, quote_segment, read_token
from weightctl.storage.remote.requests import translate_error
from weightctl.storage.traffic import TRAFFIC

if TYPE_CHECKING:
    from collections.abc import Generator

    from weightctl.storage.base import CommitOptions
    from weightctl.storage.remote.hub_url import HubPath

# The library does not have type annotations.
_XET: Any = import_module("hf_xet")
# The library records in its cache which pieces of 64 MB have arrived, so that they are not sent
# again if a run is stopped and repeated. With this option, it does so after each piece; its default
# is after 64 pieces, or 20 seconds.
_NOTED_PIECES = {"data.session_xorb_metadata_flush_max_count": 1}


class XetFile(NamedTuple):
    """An uploaded file: its SHA-256 and its size."""

    sha256: str
    nbytes: int


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
        headers = {"authorization": f"Bearer {read_token()}"}
        address = f"{endpoint()}/api/models/{token_route(place, options)}"
        with _translate(url):
            session = _XET.XetSession(_XET.XetConfig().with_config(_NOTED_PIECES))
            self._commit: Any = session.new_upload_commit(
                token_refresh_url=address, token_refresh_headers=headers
            )

    def begin(self, path: str) -> XetStream:
        """Begin to upload a file; `path` is its name in errors."""
        with _translate(path):
            stream = self._commit.start_upload_stream(name=path, sha256=_XET.COMPUTE_SHA256)
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
