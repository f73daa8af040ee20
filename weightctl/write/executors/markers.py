"""Markers, through which independent processes share a run.

Each marker is a small file in a directory next to the output, or a small object. Only one process
can create a marker of a name.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from contextlib import contextmanager, nullcontext, suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from weightctl.errors import OutputError
from weightctl.storage.base import cannot_write
from weightctl.storage.location import is_remote
from weightctl.system.temporary import new_token, ranks_name
from weightctl.text.untyped import is_object
from weightctl.write.executors.rests import Rest, format_rest, parse_rest, uploads_of
from weightctl.write.journal import Record, format_line, format_record, parse_entries

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping
    from contextlib import AbstractContextManager

    from weightctl.storage.base import Uploads
    from weightctl.write.journal import Purpose

# The beginning of the name of a finished batch's marker, which its number follows.
DONE = "done-"
_NEW = ".new-"


class Markers(Protocol):
    """Small named contents; every method may raise `OutputError`."""

    def create(self, name: str, content: bytes, /) -> bool:
        """Create a marker atomically; return False if a marker of this name exists."""
        ...

    def put(self, name: str, content: bytes, /) -> None:
        """Create or replace a marker."""
        ...

    def read(self, name: str, /) -> bytes | None:
        """Return the content of a marker; None if it does not exist."""
        ...

    def list_names(self) -> list[str]:
        """Return the names of all markers, in order."""
        ...

    def remove(self, names: Iterable[str] | None = None, /) -> None:
        """Remove markers, by default all of them."""
        ...

    def hold(self) -> AbstractContextManager[None]:
        """Mark the markers as in use, within this context, for other runs on this machine."""
        ...


class _FileMarkers:
    """Markers in a directory, which is created with the first marker."""

    def __init__(self, path: str) -> None:
        self._path = path

    def create(self, name: str, content: bytes) -> bool:
        path = os.path.join(self._path, name)
        new = self._write_new(content)
        try:
            # A link is created with the whole content, unlike a file that is opened and written.
            os.link(new, path)
        except FileExistsError:
            return False
        except OSError as error:
            raise cannot_write(path, error) from error
        finally:
            with suppress(OSError):
                os.unlink(new)
        return True

    def put(self, name: str, content: bytes) -> None:
        path = os.path.join(self._path, name)
        try:
            os.replace(self._write_new(content), path)
        except OSError as error:
            raise cannot_write(path, error) from error

    def _write_new(self, content: bytes) -> str:
        path = os.path.join(self._path, f"{_NEW}{new_token()}")
        try:
            os.makedirs(self._path, exist_ok=True)
            with open(path, "xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise cannot_write(path, error) from error
        return path

    def read(self, name: str) -> bytes | None:
        path = os.path.join(self._path, name)
        try:
            with open(path, "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise OutputError(f"{path} cannot be read: {error.strerror}") from error

    def list_names(self) -> list[str]:
        try:
            return sorted(name for name in os.listdir(self._path) if not name.startswith(_NEW))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise OutputError(f"{self._path} cannot be read: {error.strerror}") from error

    def remove(self, names: Iterable[str] | None = None) -> None:
        if names is None:
            shutil.rmtree(self._path, ignore_errors=True)
            return
        for name in names:
            with suppress(OSError):
                os.unlink(os.path.join(self._path, name))

    @contextmanager
    def hold(self) -> Generator[None, None, None]:
        descriptor = -1
        try:
            with suppress(OSError):  # not all file systems support locks
                os.makedirs(self._path, exist_ok=True)
                descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            yield
        finally:
            if descriptor >= 0:
                os.close(descriptor)


class _ObjectMarkers:
    """Markers in an object store."""

    def __init__(self, prefix: str, uploads: Uploads) -> None:
        self._prefix = f"{prefix}/"
        self._uploads = uploads

    def create(self, name: str, content: bytes) -> bool:
        from weightctl.storage.remote.requests import ExistingObjectError  # needs obstore

        try:
            self._uploads.put(self._prefix + name, content, force=False)
        except ExistingObjectError:
            return False
        return True

    def put(self, name: str, content: bytes) -> None:
        self._uploads.put(self._prefix + name, content, force=True)

    def read(self, name: str) -> bytes | None:
        from weightctl.storage.remote.requests import MissingObjectError  # needs obstore

        try:
            return self._uploads.read(self._prefix + name)
        except MissingObjectError:
            return None

    def list_names(self) -> list[str]:
        found = self._uploads.list_objects(self._prefix)
        return sorted(url.removeprefix(self._prefix) for url in found)

    def remove(self, names: Iterable[str] | None = None) -> None:
        wanted = self.list_names() if names is None else names
        self._uploads.delete([self._prefix + name for name in wanted])

    def hold(self) -> AbstractContextManager[None]:
        return nullcontext()


def ranks_token(purpose: Purpose) -> str:
    """Return the token in the names of the markers of runs with this purpose."""
    return sha256("".join(purpose).encode()).hexdigest()[:8]


def markers_of(path: str, purpose: Purpose) -> Markers:
    """Return the markers of runs with this purpose that write to a path or URL."""
    place = ranks_name(path, ranks_token(purpose))
    return _ObjectMarkers(place, uploads_of(path)) if is_remote(path) else _FileMarkers(place)


class DoneBatch(NamedTuple):
    """The content of a finished batch's marker: its records, and the bytes of incomplete parts."""

    records: tuple[Record, ...]
    rest: Rest | None


def format_done(records: Iterable[Record], rest: Rest | None) -> bytes:
    """Return the content of a finished batch's marker."""
    lines = [] if rest is None else [format_line(format_rest(rest))]
    return "".join([*lines, *map(format_record, records)]).encode("ascii")


def read_done(markers: Markers) -> dict[str, DoneBatch]:
    """Return the finished batches, by the names of their markers."""
    found: dict[str, DoneBatch] = {}
    for name in markers.list_names():
        content = markers.read(name) if name.startswith(DONE) else None
        if content is not None:
            found[name] = parse_done(content)
    return found


def parse_done(content: bytes) -> DoneBatch:
    """Parse the content of a finished batch's marker."""
    records, others = parse_entries(content.split(b"\n")[:-1])
    rests = [rest for rest in map(parse_rest, others) if rest is not None]
    return DoneBatch(tuple(records), rests[0] if rests else None)


def format_json(entry: Mapping[str, Any]) -> bytes:
    """Return the content of a marker with a JSON object."""
    return format_line(entry).encode("ascii")


def parse_json(content: bytes | None) -> Mapping[str, Any]:
    """Return the JSON object in a marker; empty if there is none."""
    try:
        entry: Any = json.loads(content or b"")
    except (ValueError, RecursionError):
        return {}
    return entry if is_object(entry) else {}
