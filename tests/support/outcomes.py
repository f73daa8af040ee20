"""What runs of the command leave behind, whether they end, are killed or fail."""

from __future__ import annotations

import builtins
import itertools
import json
import os
import re
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pytest

from weightctl import Plan, WeightData, Weights
from weightctl.dtype import ENCODINGS
from weightctl.plan.arrangement import split
from weightctl.plan.cast import cast
from weightctl.weights.from_arrays import as_checkpoint
from weightctl.write.save import save
from weightctl.write.targets import target

if TYPE_CHECKING:
    import signal
    from collections.abc import Generator
    from pathlib import Path

    from weightctl.write.targets import Target


# The kinds of output that a conversion can have, and what stands where one goes.

TEMPORARY = re.compile(r".+\.weightctl-([0-9a-f]{8}|switch)\.partial(\.\w+)*")


class Kind(NamedTuple):
    """An output by its name, the encoding it is in, and whether each tensor has its own file."""

    name: str
    encoding: str
    is_split: bool = False

    @property
    def options(self) -> tuple[str, ...]:
        """What the command line is told."""
        option = "--quant" if ENCODINGS[self.encoding].quantization else "--dtype"
        return (option, self.encoding, *(("--max-shard-size", "1B") if self.is_split else ()))

    def plan(self, weights: Weights, place: Path) -> tuple[Plan, Target]:
        """Return the same as the command line makes of the options."""
        where = target(f"{place}/{self.name}")
        plan = cast(Plan.copy(weights, where.format), ENCODINGS[self.encoding])
        return split(plan, 1) if self.is_split else plan, where


KINDS = {
    "file": Kind("out.gguf", "Q8_0"),
    "directory": Kind("out/", "BF16"),
    "set": Kind("out.safetensors", "BF16", is_split=True),
    "gguf set": Kind("out.gguf", "Q8_0", is_split=True),
}


def random_weights(
    tensors: int = 8, rows: int = 256, columns: int = 1024, seed: int = 7
) -> Weights:
    numbers = np.random.default_rng(seed)
    names = [f"layers.{number}.weight" for number in range(tensors)]
    return as_checkpoint(
        {
            name: WeightData.from_numpy(numbers.random((rows, columns), np.float32), name)
            for name in names
        }
    )


def random_model(directory: Path, tensors: int, rows: int, seed: int = 7) -> Path:
    """Write a model of random matrices with a config beside it; return its directory."""
    directory.mkdir()
    weights = random_weights(tensors, rows, seed=seed)
    save(Plan.copy(weights, "safetensors"), directory / "model.safetensors")
    (directory / "config.json").write_text(f'{{"torch_dtype": "float32", "seed": {seed}}}')
    return directory


def standing(place: Path) -> dict[str, bytes]:
    """Return the files at a place, by their paths from there, but for temporary ones."""
    return {
        str(path.relative_to(place)): path.read_bytes()
        for path in place.rglob("*")
        if path.is_file() and not any(map(TEMPORARY.fullmatch, path.relative_to(place).parts))
    }


def leftovers(place: Path) -> list[str]:
    """Return the names of what is there only until the next run."""
    return [path.name for path in place.iterdir() if TEMPORARY.fullmatch(path.name)]


# An output that stands where a run would put a new one, and what must become of it.

EACH_KIND = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
OLD = b"what was there before"


def old_output(kind: Kind, place: Path, tensors: int) -> None:
    """Write what a model of so many small tensors gives."""
    save(*kind.plan(random_weights(tensors, 8, seed=1), place))


@contextmanager
def untouched(place: Path) -> Generator[None, None, None]:
    """Hold what is done meanwhile to leaving the same files at the place, and nothing temporary."""
    before = standing(place)
    yield
    assert standing(place) == before
    assert leftovers(place) == []


# System calls that fail.

_DESCRIBED = ("pwrite", "write", "fsync", "fdatasync", "ftruncate", "fchmod", "copy_file_range")
_NAMED = ("rename", "replace", "link", "unlink", "mkdir", "rmdir", "chmod", "open")


@contextmanager
def failing_call(
    place: Path, number: int, error: int, *, is_done: bool = True
) -> Generator[list[str], None, None]:
    """Let one of the calls that change what is below a place fail; yield a list for its name.

    With `is_done`, calls but `open` are carried out before they fail, as those over a network are.
    """
    counted, failed = itertools.count(), list[str]()

    def where(argument: object) -> str:
        with suppress(OSError):
            return os.readlink(f"/proc/self/fd/{argument}")
        return str(argument)

    def wrap(owner: Any, name: str) -> Any:
        real = getattr(owner, name)

        def call(*given: Any, **options: Any) -> Any:
            if name == "open" and not (
                {*str(options.get("mode", given[1:2] and given[1]))} & {*"wxa"}
                if owner is builtins
                else given[1] & (os.O_WRONLY | os.O_RDWR)
            ):
                return real(*given, **options)
            touched = map(where, (*given[:2], options.get("dir_fd")))
            if not any(each.startswith(str(place)) for each in touched) or next(counted) != number:
                return real(*given, **options)
            failed.append(name)
            if is_done and name != "open":
                real(*given, **options)
            raise OSError(error, os.strerror(error))

        return patch.object(owner, name, call)

    with ExitStack() as patches:
        patches.enter_context(wrap(builtins, "open"))
        for name in (*_DESCRIBED, *_NAMED):
            if hasattr(os, name):
                patches.enter_context(wrap(os, name))
        yield failed


# A conversion in a separate process that has begun to write.


def begun(place: Path, *arguments: str | Path) -> subprocess.Popen[bytes]:
    """Start a conversion; return as soon as its temporary file exists."""
    process = subprocess.Popen(
        [sys.executable, "-m", "weightctl", "convert", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    while not leftovers(place):
        assert process.poll() is None
        time.sleep(0.001)
    return process


# Processes that import what runs need and fork a child for each: a run takes some milliseconds.


class Forks(NamedTuple):
    """A process that answers each line of JSON, which describes a run, with another one."""

    process: subprocess.Popen[str]

    def ask(self, *request: object) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@contextmanager
def forking(program: str, *arguments: object, **environment: str) -> Generator[Forks, None, None]:
    """Start the process of a program in Python."""
    with subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # A process with threads cannot be forked safely.
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"} | environment,
    ) as process:
        try:
            yield Forks(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()


# Conversions that kill themselves before a chosen change of a name.

_PROGRAM = """
import json, os, signal, sys, traceback
import numpy, weightctl.codecs, weightctl.write.save
from weightctl import Plan, open_weights
from weightctl.errors import OutputError
from weightctl.write.save import save
from weightctl.plan.arrangement import split

def kill_at(wanted):
    seen = 0
    def count(event, _):
        nonlocal seen
        if event not in ("os.rename", "os.link", "os.remove"):
            return
        seen += 1
        if seen == wanted:
            os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(count)

for line in sys.stdin:
    source, out, most, force, change = json.loads(line)
    process = os.fork()
    if not process:
        try:
            plan = Plan.copy(open_weights(source), "gguf" if ".gguf" in out else "safetensors")
            plan = split(plan, most)
            if change is not None:
                kill_at(change)
            save(plan, out, force=force, threads=1)
            os._exit(0)
        except OutputError:
            os._exit(2)
        except BaseException:
            traceback.print_exc()
            os._exit(99)
    _, status = os.waitpid(process, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
"""


class KilledSaves(NamedTuple):
    """Saves a model as a set of files, in a process that is killed where that is asked."""

    forks: Forks

    def run(
        self, source: Path, out: Path, most: int, *, force: bool, change: int | None = None
    ) -> int:
        """Save in files of at most so many bytes; return the exit code, as `weightctl` has it."""
        return int(self.forks.ask(str(source), str(out), most, force, change))


@contextmanager
def killed_saves() -> Generator[KilledSaves, None, None]:
    """Start the process that the runs are forked from."""
    with forking(_PROGRAM) as forks:
        yield KilledSaves(forks)


# Conversions to which a signal is sent at a chosen moment. From `weightctl.__main__.main` on, each
# is the same as a command in a shell.

_PROGRAM_strikes = """
import functools, json, os, signal, sys, time, traceback
import numpy, weightctl.cli.conversion, weightctl.cli.shard, weightctl.codecs, weightctl.write.save
import weightctl.cli.edit, weightctl.editing.edit, weightctl.storage.pending_edits
import weightctl.formats.gguf, weightctl.formats.safetensors, weightctl.kernels._native
from weightctl.__main__ import main
from weightctl.write import journal

limit = int(sys.argv[2])
if sys.argv[1]:
    journal.BEGIN_AFTER = float(sys.argv[1])
    journal._SECONDS = 0.003  # a run of these takes 0.08 s on a fast machine
if sys.argv[3]:
    # The clients of stores take half a second to import, and boto3's description of S3 0.1 s.
    import obstore.store, weightctl.storage.remote.store
    from weightctl.storage.remote import azure_uploads, gcs_uploads, s3_uploads, upload
    from botocore import loaders
    read_once = functools.cache(loaders.JSONFileLoader().load_file)
    loaders.JSONFileLoader.load_file = lambda _, path: read_once(path)
    s3_uploads.connect("http://localhost:9", is_signed=False, region="us-east-1")
    upload.PART = s3_uploads.PartUploads.least_part = s3_uploads.S3Uploads.least_part = int(
        sys.argv[3]
    )

# The calls that a run can be struck at, those that begin what is of interest, and when: before a
# call, behind it, or both. A signal that comes during a call is answered behind it.
CALLS = {
    "names": (
        {"open", "mkdir", "rmdir", "link", "unlink", "rename", "replace", "flock", "fsync",
         "listdir"},
        {"flock", "mkdir"},
        {"c_call", "c_return", "c_exception"},
    ),
    "writes": (
        {"unlink", "rename", "replace", "fsync", "pwrite", "ftruncate", "copy_file_range"},
        {"flock"},
        {"c_call"},
    ),
    "locks": (
        {"acquire", "release", "__enter__", "__exit__", "_is_owned", "put", "get", "append",
         "popleft", "remove"},
        {"start_new_thread"},
        {"c_return"},
    ),
}

def strike_at(calls, wanted, number, struck):
    seen = 0
    started = False
    struck_at, first, events = CALLS[calls]
    def look(frame, event, function):
        nonlocal seen, started
        if event in events:
            started = started or function.__name__ in first
            seen += started and function.__name__ in struck_at
            if started and seen == wanted and function.__name__ in struck_at:
                sys.setprofile(None)
                os.write(struck, b"x")
                signal.raise_signal(number)
    sys.setprofile(look)

# A signal that comes too early waits for the run to begin.
ENDING = {signal.SIGINT, signal.SIGTERM}
signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
for line in sys.stdin:
    arguments, number, seconds, calls, call, errors = json.loads(line)
    watch, struck = os.pipe()
    started = time.monotonic()
    process = os.fork()
    if not process:
        os.close(watch)
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.argv = ["weightctl", *arguments]
        try:
            signal.alarm(limit)  # nothing waits for ever
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
            if call is not None:
                strike_at(calls, call, number, struck)
            main()
        except KeyboardInterrupt:  # it came before the program's own first line
            os._exit(130)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(99)
    os.close(struck)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(process, number)
    _, status = os.waitpid(process, 0)
    lasted = time.monotonic() - started
    was_struck = bool(os.read(watch, 1))
    os.close(watch)
    print(json.dumps([os.waitstatus_to_exitcode(status), lasted, was_struck]), flush=True)
"""


class Ended(NamedTuple):
    """The end of a run; `was_struck` is only set for signals at a system call."""

    code: int
    seconds: float
    was_struck: bool
    errors: str


class Strikes(NamedTuple):
    """Runs `weightctl` with arguments, and sends it a signal if requested."""

    forks: Forks
    errors: Path

    def run(
        self,
        *arguments: str | Path,
        number: signal.Signals | None = None,
        seconds: float | None = None,
        calls: str = "names",
        call: int | None = None,
    ) -> Ended:
        """Send the signal after some seconds, or at a call of one kind in the main thread.

        The calls are system calls on file names (before and after them), those that write (before
        them), or calls of locks and the code that they guard (after them).
        """
        words = [*map(str, arguments)]
        end = self.forks.ask(words, number, seconds, calls, call, str(self.errors))
        return Ended(*end, self.errors.read_text())


@contextmanager
def strikes(
    scratch: Path, *, begin_after: float | None = None, limit: int = 5, part: int | None = None
) -> Generator[Strikes, None, None]:
    """Start the process that the runs are forked from.

    Journals begin after some seconds, if the number is given. A run of more than `limit` seconds is
    ended. `part` is the size of parts of uploads.
    """
    given = ("" if begin_after is None else begin_after, limit, "" if part is None else part)
    with forking(_PROGRAM_strikes, *given) as forks:
        yield Strikes(forks, scratch / "errors.txt")
