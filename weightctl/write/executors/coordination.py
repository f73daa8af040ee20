"""Coordinates processes that share a run without an executor: markers, claims, and heartbeats.

Each marker is a small file in a directory next to the output, or a small object. Only one process
can create a marker of a name. Some markers are claims of work, and some are heartbeats.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from contextlib import contextmanager, nullcontext, suppress
from hashlib import sha256
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

from weightctl.errors import ConversionError, OutputError
from weightctl.storage.base import cannot_write
from weightctl.storage.location import is_remote
from weightctl.storage.remote.failures import ExistingObjectError, MissingObjectError
from weightctl.system.files import open_locked, write_durably
from weightctl.system.processes import find_start, name_host
from weightctl.system.temporary import new_token, ranks_name
from weightctl.text.untyped import is_object
from weightctl.write.executors.destinations import Rest, format_rest, parse_rest, uploads_of
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
            write_durably(path, content)
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
                descriptor = open_locked(self._path, shared=True)
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
        try:
            self._uploads.put(self._prefix + name, content, force=False)
        except ExistingObjectError:
            return False
        return True

    def put(self, name: str, content: bytes) -> None:
        self._uploads.put(self._prefix + name, content, force=True)

    def read(self, name: str) -> bytes | None:
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


# The beginning of the name of a claim, which the name of the work and the claim's number follow.
CLAIM = "claim-"
_ALIVE = "alive-"
# The seconds between heartbeats, and the seconds without one after which a process counts as ended.
BEAT = 10.0
LEASE = 60.0


class RankIdentity(NamedTuple):
    """The rank of a process, and the number of processes that were started, None if unknown."""

    rank: int
    ranks: int | None = None


class _RankVariables(NamedTuple):
    """The names of environment variables: the rank, the number of ranks, and the lowest rank."""

    rank: str
    ranks: str
    least: str = ""


_SLURM_ARRAY = _RankVariables(
    "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN"
)
_SLURM_STEP = _RankVariables("SLURM_PROCID", "SLURM_NTASKS")
_SOURCES = (
    _RankVariables("RANK", "WORLD_SIZE"),
    _RankVariables("JOB_COMPLETION_INDEX", "WORLD_SIZE"),
)


def find_rank(environment: Mapping[str, str] = os.environ) -> RankIdentity:
    """Return the rank that torchrun, Slurm or Kubernetes has given to this process.

    Raises `ConversionError` if the environment does not have a rank.
    """
    for source in _SOURCES:
        if source.rank in environment:
            return _read_rank(source, environment)
    array = step = RankIdentity(0, 1)
    if _SLURM_ARRAY.rank in environment:
        array = _read_rank(_SLURM_ARRAY, environment)
    if _SLURM_STEP.rank in environment:
        step = _read_rank(_SLURM_STEP, environment)
    elif _SLURM_ARRAY.rank not in environment:
        raise ConversionError(
            "--on ranks needs the number of this process, which is not in the environment",
            hint="start weightctl with torchrun, srun, a Slurm array or a Kubernetes indexed job, "
            "or set RANK and WORLD_SIZE",
        )
    count = None if array.ranks is None or step.ranks is None else array.ranks * step.ranks
    return RankIdentity(array.rank * (step.ranks or 1) + step.rank, count)


def _read_rank(source: _RankVariables, environment: Mapping[str, str]) -> RankIdentity:
    rank, least, count = (_read_number(name, environment) for name in
                          (source.rank, source.least, source.ranks))  # fmt: skip
    return RankIdentity((rank or 0) - (least or 0), count)


def _read_number(name: str, environment: Mapping[str, str]) -> int | None:
    text = environment.get(name)
    if text is None:
        return None
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII):
        raise ConversionError(
            f"the environment variable {name} is not a number: {text!r}",
            hint="set it to the number of this process, counted from 0",
        )
    return int(text)


class _Beat(NamedTuple):
    """A heartbeat, and the time at which this process first saw it."""

    content: bytes
    seen: float


class Membership:
    """This process, as a member of those that share a run.

    Within its `with` block, it writes heartbeats. `token` identifies it in claims.
    """

    def __init__(self, markers: Markers, identity: RankIdentity) -> None:
        self.token = new_token()
        self.identity = identity
        self._markers = markers
        self._entry = {"rank": identity.rank, **_describe_process(os.getpid())}
        self._beats: dict[str, _Beat] = {}
        self._count = 0
        self._ended = Event()
        self._thread = Thread(target=self._run, name="weightctl-alive", daemon=True)

    def __enter__(self) -> Self:
        self._beat()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        with suppress(OutputError):
            self._markers.remove([f"{_ALIVE}{self.token}"])

    def _run(self) -> None:
        while not self._ended.wait(BEAT):
            with suppress(OutputError):  # the next heartbeat may succeed
                self._beat()

    def _beat(self) -> None:
        self._count += 1
        content = format_json({**self._entry, "beat": self._count})
        self._markers.put(f"{_ALIVE}{self.token}", content)

    def claim(self, what: str, names: Iterable[str], *, even_if_running: bool = False) -> bool:
        """Claim work, unless a running process has claimed it; return whether this succeeded.

        `names` are the names of the markers. If `even_if_running` is set, work that a running
        process has claimed is claimed as well.
        """
        claims = self.list_claims(what, names)
        if claims and not even_if_running and not self.is_void(claims[-1]):
            return False
        content = format_json({"by": self.token})
        return self._markers.create(f"{CLAIM}{what}-{len(claims):04d}", content)

    @staticmethod
    def list_claims(what: str, names: Iterable[str]) -> list[str]:
        """Return the names of the claims on the work `what`, in order."""
        return sorted(name for name in names if name.startswith(f"{CLAIM}{what}-"))

    def is_void(self, claim: str) -> bool:
        """Whether the process that made a claim has ended."""
        owner = parse_json(self._markers.read(claim)).get("by")
        return owner != self.token and self._has_ended(str(owner))

    def list_others(self, names: Iterable[str]) -> list[str]:
        """Return the tokens of other processes that have not ended."""
        tokens = [name.removeprefix(_ALIVE) for name in names if name.startswith(_ALIVE)]
        return [each for each in tokens if each != self.token and not self._has_ended(each)]

    def _has_ended(self, token: str) -> bool:
        content = self._markers.read(f"{_ALIVE}{token}")
        if content is None:
            return True
        entry = parse_json(content)
        if entry.get("rank") == self.identity.rank:
            return True  # this process was started to replace it
        if entry.get("host") == self._entry["host"]:
            number = entry.get("process")
            return type(number) is not int or _describe_process(number) != {
                name: entry.get(name) for name in ("host", "process", "started")
            }
        # The clocks of machines differ, so only the clock of this process is used.
        known = self._beats.get(token)
        if known is None or known.content != content:
            self._beats[token] = _Beat(content, time.monotonic())
            return False
        return time.monotonic() - known.seen > LEASE


def _describe_process(number: int) -> dict[str, Any]:
    """Return properties that identify a process; `started` is empty if it has ended."""
    return {"host": name_host(), "process": number, "started": find_start(number)}
