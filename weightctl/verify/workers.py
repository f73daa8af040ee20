"""Workers that check units (ranges of tensors) of a checkpoint, and send back only figures."""

from __future__ import annotations

from collections import deque
from concurrent.futures import BrokenExecutor
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from weightctl.errors import ConversionError, FormatError, OutputError, WeightctlError
from weightctl.formats.sharded.record import SourceFingerprint, fingerprint_source
from weightctl.storage.location import absolute
from weightctl.system.temporary import new_token
from weightctl.weights.tree import source_of
from weightctl.write.executors import WorkerLostError
from weightctl.write.executors.distribution import parse_task_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Executor, Future

    from weightctl.verify.request import Request, Subject

_Unit = TypeVar("_Unit")
_Made = TypeVar("_Made")

# If this many workers end while they check one batch, the batch is probably the reason.
_MOST_LOST = 5
# More batches than workers, so that all of them end at about the same time.
_LEAST_BATCHES = 64


class CheckJob(NamedTuple):
    """The data that workers get: the checkpoints, and their fingerprints when the run began.

    `paths` has the paths of the checkpoint and the reference, each with the format if the user
    chose it, otherwise None. `fingerprints` and `version` serve to detect workers that have other
    files or another version of weightctl, and would therefore compute other figures.
    """

    token: str
    paths: tuple[tuple[str, str | None], ...]
    fingerprints: tuple[SourceFingerprint, ...]
    version: str


class Workers:
    """Workers of an executor that check units of the checkpoints of a request."""

    def __init__(self, executor: Executor, request: Request, task_size: int | str) -> None:
        from weightctl import __version__

        subjects = [each for each in (request.subject, request.reference) if each is not None]
        self._executor = executor
        self._request = request
        self._task_size = parse_task_size(task_size)
        self._job = CheckJob(
            new_token(),
            tuple((absolute(each.path), each.format_name) for each in subjects),
            tuple(map(_fingerprint, subjects)),
            __version__,
        )

    def close(self) -> None:
        """Release the checkpoints that workers of this job have opened in this process."""
        with _LOCK:
            if _OPENED and _OPENED[0][0] == self._job.token:
                _OPENED.clear()

    def map(
        self,
        check: Callable[[Request, Sequence[_Unit]], Sequence[_Made]],
        units: Sequence[_Unit],
        sizes: Sequence[int],
        progress: Callable[[float], object],
    ) -> Iterator[_Made]:
        """Yield the result of `check` for each unit, in order; `sizes` are the units' bytes.

        If a worker ends, another worker gets its batch. If a batch causes an error, it is checked
        again in this process, so that errors are the same as without workers.

        Raises `ConversionError` if a worker has another version of weightctl, `FormatError` if its
        files differ, and `OutputError` if the executor ends, or if several workers end while they
        check the same batch.
        """
        batches = _cut(units, sizes, self._task_size)
        total, done = sum(sizes) or 1, 0
        waiting = deque((batch, self._submit(check, batch.units)) for batch in batches)
        try:
            while waiting:
                batch, future = waiting.popleft()
                made = self._take(check, batch, future)
                done += batch.nbytes
                progress(min(done / total, 1.0))
                yield from made
        finally:
            for _, future in waiting:
                future.cancel()

    def _submit(self, check: Any, units: Sequence[Any]) -> Future[Any]:
        return self._executor.submit(run_units, self._job, check, units)

    def _take(self, check: Any, batch: _Units, future: Future[Any]) -> Sequence[Any]:
        for _ in range(_MOST_LOST):
            try:
                made: Sequence[Any] | None = future.result()
            except WorkerLostError:
                future = self._submit(check, batch.units)
            except BrokenExecutor as error:
                raise OutputError(
                    f"the executor has ended: {error}",
                    hint="start it again, or use --on processes:N (on=... in Python), which "
                    "replaces workers that end",
                ) from error
            else:
                return check(self._request, batch.units) if made is None else made
        raise OutputError(
            f"{_MOST_LOST} workers have ended while they checked the same tensors",
            hint="check whether the machines have enough memory",
        )


class _Units(NamedTuple):
    units: Sequence[Any]
    nbytes: int


def _cut(units: Sequence[Any], sizes: Sequence[int], most: int) -> list[_Units]:
    """Group units into batches of at most `most` bytes; a larger unit is a batch of its own."""
    share = max(min(most, sum(sizes) // _LEAST_BATCHES), 1)
    batches: list[_Units] = []
    batch: list[Any] = []
    nbytes = 0
    for unit, size in zip(units, sizes, strict=True):
        if batch and nbytes + size > share:
            batches.append(_Units(batch, nbytes))
            batch, nbytes = [], 0
        batch.append(unit)
        nbytes += size
    return [*batches, _Units(batch, nbytes)] if batch else batches


# The token of a job, and its open checkpoints in this process, which are reused because opening
# and pairing them can take seconds.
_OPENED: list[tuple[str, Request]] = []
_LOCK = Lock()


def run_units(job: CheckJob, check: Any, units: Sequence[Any]) -> Sequence[Any] | None:
    """Check units in a worker; return None after an error, so that the run repeats the check."""
    import numpy as np

    # An executor of threads runs several batches at a time; they share the open checkpoints.
    with _LOCK:
        request = _open_for(job)
        try:
            with np.errstate(all="ignore"):
                made: Sequence[Any] = check(request, units)
        except (WeightctlError, OSError):
            return None
        # Messages contain this worker's paths, so the run makes them again with its own paths.
        return None if any(isinstance(each, str) for each in made) else made


def _open_for(job: CheckJob) -> Request:
    from weightctl import __version__
    from weightctl.verify.request import Request, Subject

    if _OPENED and _OPENED[0][0] == job.token:
        return _OPENED[0][1]
    _OPENED.clear()
    if job.version != __version__:
        raise ConversionError(
            f"a worker has weightctl {__version__}, but weightctl {job.version} started the run",
            hint="install the same version on all machines",
        )
    subjects = [Subject(path, format_name) for path, format_name in job.paths]
    for subject, fingerprint in zip(subjects, job.fingerprints, strict=True):
        if _fingerprint(subject) != fingerprint:
            raise FormatError(
                subject.path,
                None,
                "the files that a worker reads differ from those of the run",
                hint="use a path that has the same files on all machines, and do not change them",
            )
    request = Request(subject=subjects[0], reference=subjects[1] if len(subjects) > 1 else None)
    _OPENED.append((job.token, request))
    return request


def _fingerprint(subject: Subject) -> SourceFingerprint:
    return fingerprint_source(source_of(subject.stored))
