"""A request to verify a checkpoint: its reference, limits, and the workers that read values."""

from __future__ import annotations

from collections import deque
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from weightctl.device import CPU
from weightctl.errors import ConversionError, FormatError, OutputError, WeightctlError
from weightctl.formats.sharded.records import SourceFingerprint, fingerprint_source
from weightctl.storage.location import absolute
from weightctl.system.registry import load
from weightctl.system.temporary import new_token
from weightctl.system.threads import thread_count
from weightctl.verify.checks import CHECKS
from weightctl.verify.results import Problem, Result
from weightctl.verify.subject import Subject
from weightctl.weights.tree import header_of, source_of
from weightctl.write.executors import WorkerLostError
from weightctl.write.executors.distribution import parse_task_size

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Sequence
    from concurrent.futures import Executor, Future

    from weightctl.device import DeviceRef
    from weightctl.verify.compare.mismatch import Mismatch
    from weightctl.verify.compare.pairing import Pairing
    from weightctl.verify.run.prompt import Prompt

_Unit = TypeVar("_Unit")
_Made = TypeVar("_Made")
# The products of weights and tokens for each second and core of an AMD EPYC: SmolLM2-135M takes
# 1.8 s for 251 tokens on 2 cores, and a llama of 455 million weights 15 s for 525 tokens.
_PRODUCTS = 9e9
# The tokens of the built-in text with most tokenizers, and the letters of a token of other texts.
_BUILT_IN, _LETTERS = 250, 4


@dataclass(frozen=True, kw_only=True)
class Request:
    """A checkpoint to verify, alone or against a `reference`, and the limits for it.

    The model runs on `device`. Its input is `tokens`, or `text` if `tokens` is None, or the
    built-in text if both are None. Only `layers` are checked, or all layers if None.

    A perplexity above `max_perplexity`, a mean Kullback-Leibler divergence above `max_divergence`
    and a relative RMSE of a tensor above `max_rmse` are problems. If `max_rmse` is None, the limit
    of each tensor is derived from the errors of its encodings. If `compare` is set, differences
    from the reference are listed, not judged.

    `sample` is the share of the rows of a matrix that may be wrong without being found by a proof,
    which then reads only as many rows as that takes; all rows are read if it is None. `imatrix` is
    the path of the importance matrix of a proof. `attestation` is the path of a statement on the
    files to check, and `attest` that of one on the proof to write, which can replace a file with
    `force`. `key` is the path of the key of its signature.

    `progress` is called with the name of a step and the fraction of it that is done, from 0 to 1.
    `workers`, if not None, read the values for the checks `structure`, `finite` and `values`.
    """

    subject: Subject
    reference: Subject | None = None
    device: DeviceRef = CPU
    text: str | None = None
    tokens: tuple[int, ...] | None = None
    layers: range | None = None
    max_perplexity: float | None = None
    max_divergence: float | None = None
    max_rmse: float | None = None
    sample: float | None = None
    imatrix: str | None = None
    attestation: str | None = None
    attest: str | None = None
    force: bool = False
    key: str | None = None
    compare: bool = False
    progress: Callable[[str, float], object] | None = None
    workers: Workers | None = None

    @cached_property
    def prompt(self) -> Prompt:
        """The tokens to run the models on, from the reference's tokenizer if it has one.

        At least one of the models must be of a known family. Raises the errors of `make_prompt`.
        """
        from weightctl.verify.run.prompt import make_prompt

        subjects = (self.reference, self.subject)
        known = (each for each in subjects if each and each.checkpoint)
        return make_prompt(self.tokens, self.text, *known)

    def estimate_seconds(self) -> float | None:
        """Return about how long the models run on a processor; None if that is not known.

        For a mixture of experts, it is the time in which all experts would run.
        """
        weights = 0
        for subject in filter(None, (self.subject, self.reference)):
            try:
                infos = header_of(subject.stored).tensors.values()
            except FormatError:  # the check `structure` reports the error
                return None
            weights += sum(info.size for info in infos if len(info.shape) > 1)
        tokens = len(self.tokens or ()) or len(self.text or "") // _LETTERS or _BUILT_IN
        return weights * tokens / (_PRODUCTS * thread_count(None)) if self.device == CPU else None

    @cached_property
    def mismatch(self) -> Mismatch | None:
        """Why the checkpoints cannot be compared tensor by tensor; None if they can.

        None also if there is no reference. Raises `FormatError` if a file cannot be read.
        """
        from weightctl.verify.compare.mismatch import find_mismatch

        return None if self.reference is None else find_mismatch(self.subject, self.reference)

    @cached_property
    def pairing(self) -> Pairing:
        """The paired tensors of both checkpoints, with the results of the checks so far.

        Raises `ValueError` if there is no reference.
        """
        from weightctl.verify.compare.pairing import pair_tensors

        if self.reference is None:
            raise ValueError("there is no reference")
        if self.mismatch is not None and self.mismatch.pairing is not None:
            return self.mismatch.pairing
        return pair_tensors(self.subject, self.reference)

    def tell(self, doing: str, done: float) -> None:
        """Report progress: the name of a step, and the fraction of it that is done, 0 to 1."""
        if self.progress is not None:
            self.progress(doing, done)

    def has_layer(self, number: int | None) -> bool:
        """Whether layer `number` is checked; None means a tensor outside the layers.

        Tensors outside the layers are checked only if all layers are.
        """
        return self.layers is None or (number is not None and number in self.layers)

    def last_layer(self, layers: int) -> int:
        """Return the last layer that has to run in a model of `layers` layers; -1 if none does.

        The requested range may extend beyond the model's layers.
        """
        return max(filter(self.has_layer, range(layers)), default=-1)


def run_check(name: str, request: Request, reported_texts: Container[str] = ()) -> Result:
    """Run a check, and return an error that stops it as a problem.

    If `reported_texts` already contains the error's message, the check counts as skipped.
    """
    import numpy as np

    run: Callable[[Request], Result] = load(CHECKS[name].run)
    try:
        # NumPy would warn of exactly the values that the checks look for.
        with np.errstate(all="ignore"):
            return run(request)
    except WeightctlError as error:
        if error.message in reported_texts:
            return Result(skipped=error.headline)
        problem = Problem(where="", text=error.message, hint=error.hint)
        return Result(problems=(problem,))


def require_consistent(request: Request, wanted: Container[str]) -> None:
    """Raise `ConversionError` for a limit that no check applies, or layers that do not exist.

    A limit that is silently ignored would look as if it were met.
    """
    last = _find_last_layer(request)
    _require_comparison(request)
    _require_proof(request, wanted)
    for name, limit in [(name, limit) for name, each in CHECKS.items() for limit in each.limits]:
        if getattr(request, limit.field) is None:
            continue
        if limit.needs_reference and request.reference is None:
            raise ConversionError(
                f"{limit.option} limits a difference, but there is no reference checkpoint",
                hint="give a checkpoint that works: --against PATH",
            )
        if name not in wanted:
            raise ConversionError(
                f"{limit.option} applies to the check `{name}`, which --check or --skip disables",
                hint=f"leave out {limit.option}, or run `{name}`",
            )
        if limit.of_whole_model and last is not None and not request.has_layer(last):
            raise ConversionError(
                f"{limit.option} applies to the whole model, but --layers leaves out its last "
                f"layer, {last}",
                hint=f"leave out {limit.option}, or --layers",
            )


def _require_comparison(request: Request) -> None:
    """Raise `ConversionError` for `compare` without a reference, or with a limit."""
    if not request.compare:
        return
    if request.reference is None:
        raise ConversionError(
            "--compare needs a second checkpoint", hint="give its path: --against PATH"
        )
    for limit in [limit for each in CHECKS.values() for limit in each.limits]:
        if getattr(request, limit.field) is not None:
            raise ConversionError(
                f"--compare and {limit.option} are both given, but --compare applies no limits",
                hint=f"leave out --compare, or {limit.option}",
            )


def _require_proof(request: Request, wanted: Container[str]) -> None:
    """Raise `ConversionError` for an option of a proof without one, or for a wrong share."""
    for option, given in (("--sample", request.sample), ("--imatrix", request.imatrix)):
        if given is not None and "proof" not in wanted:
            raise ConversionError(
                f"{option} applies only to a proof", hint="add --prove (prove=True in Python)"
            )
    if request.sample is not None and not 0 < request.sample < 1:
        raise ConversionError(
            f"--sample is {request.sample:g}, and must be between 0 and 1",
            hint="for example --sample 1%; leave it out to read all rows",
        )
    if request.attest is None and (request.key is None or request.attestation is not None):
        return
    if request.attest and (request.attestation or request.layers or "proof" not in wanted):
        raise ConversionError(
            "--attest writes a statement on a proof of the whole model",
            hint="use --prove (prove=True in Python), without --layers and --attestation",
        )
    from weightctl.write.attestation import check_attestation

    subjects = filter(None, (request.subject, request.reference))
    inputs = [path for each in subjects for path in header_of(each.stored).files]
    check_attestation(request.attest, request.key, inputs, force=request.force)


def _find_last_layer(request: Request) -> int | None:
    """Return the number of the model's last layer; None if the model is unknown.

    Raises `ConversionError` if a requested layer does not exist.
    """
    subject, asked = request.subject, request.layers
    if subject.damage is not None or subject.checkpoint is None:
        return None
    count = subject.checkpoint.config.layers
    # The ends are compared, since `len` fails for very large ranges.
    if asked is not None and not (asked and {asked[0], asked[-1]} <= {*range(count)}):
        raise ConversionError(
            f"{subject.path}: --layers lists layers that do not exist: the model has "
            f"{'only layer 0' if count == 1 else f'layers 0 to {count - 1}'}",
            hint="use layers of the model: --layers N-M",
        )
    return count - 1


# Workers check units (ranges of tensors) of the checkpoints, and send back only figures.

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
        from weightctl.system import __version__

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
    from weightctl.system import __version__

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
