"""Disks, reads and processes that fail at any moment: the target is the old one or the new one."""

from __future__ import annotations

import errno
import itertools
import os
import random
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest

from copying import contents
from outcomes import KINDS, leftovers, random_model, random_weights, standing
from strikes import strikes
from weightctl import Plan, WeightData, Weights, open_weights
from weightctl.errors import ConversionError, FormatError, OutputError
from weightctl.store import save
from weightctl.transforms.split import split

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from conftest import Completed
    from outcomes import Kind
    from strikes import Ended, Strikes

    Run = Callable[..., Completed]
    Files = dict[str, bytes]

EACH_KIND = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
TENSORS = 3
MOMENTS = 50
# Small enough that a conversion of a few megabytes reads and writes in several pieces.
LITTLE = 4_000_000


@pytest.fixture(scope="module")
def scratch() -> Generator[Path, None, None]:
    """A directory in memory, where there is one: hundreds of runs wait for no disk."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory, prefix="weightctl-test-") as directory:
        yield Path(directory)


@pytest.fixture(scope="module")
def struck(scratch: Path) -> Generator[Strikes, None, None]:
    with strikes(scratch) as running:
        yield running


class Models(NamedTuple):
    """Directories of models whose outputs have the same names."""

    old: Path
    small: Path
    large: Path


@pytest.fixture(scope="module")
def models(scratch: Path) -> Models:
    return Models(
        random_model(scratch / "old", TENSORS, 8, seed=1),
        random_model(scratch / "small", TENSORS, 8, seed=2),
        random_model(scratch / "large", TENSORS, 2048, seed=3),
    )


class Place:
    """Where an old output stands, beside somebody's file, and a run would put a new one."""

    def __init__(self, path: Path, kind: Kind, models: Models, source: Path) -> None:
        self.path = path
        self.arguments = ("convert", source, f"{path}/{kind.name}", *kind.options, "--force", "-q")
        self.new = self._made(kind, source)
        self.old = self._made(kind, models.old)
        assert self.old.keys() == self.new.keys()

    def _made(self, kind: Kind, source: Path) -> Files:
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir()
        (self.path / "thesis.tex").write_text("years of work")
        save(*kind.plan(open_weights(source), self.path))
        return standing(self.path)

    def restore(self) -> None:
        """Put the old output back where it is gone; temporary files stay."""
        if standing(self.path) != self.old:
            for name in standing(self.path):
                (self.path / name).unlink()
            for name, content in self.old.items():
                (self.path / name).parent.mkdir(exist_ok=True)
                (self.path / name).write_bytes(content)


@pytest.fixture
def place(kind: Kind, models: Models, scratch: Path, request: pytest.FixtureRequest) -> Place:
    source = models.large if "moments" in request.node.name else models.small
    return Place(scratch / "place", kind, models, source)


def is_old_or_new(place: Place) -> bool:
    return standing(place.path) in (place.old, place.new)


def is_no_mixture(place: Place) -> bool:
    """Whether a set that lost its process while its files got their names is taken for none."""
    there = standing(place.path)
    assert there.items() <= place.old.items() or there.items() <= place.new.items()
    for name in there.keys() - {"thesis.tex"}:
        with suppress(FormatError):
            opened = contents(open_weights(place.path / name))
            assert opened in (held_by(place.old), held_by(place.new))
    return True


def held_by(files: Files) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Return the tensors of an output."""
    with tempfile.TemporaryDirectory() as directory:
        for name, content in files.items():
            (Path(directory) / name).write_bytes(content)
        return contents(open_weights(directory))


# Signals


def spread(number: int, span: float) -> Iterator[float]:
    """Yield random moments, one in each of so many equal parts of a span."""
    moments = random.Random(number)
    yield from (span * (part + moments.random()) / MOMENTS for part in range(MOMENTS))


@pytest.mark.parametrize(
    "kind", [KINDS["file"], KINDS["directory"], KINDS["set"]], ids=lambda kind: kind.name
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_signal_at_50_random_moments_leaves_the_old_output_or_the_new(
    place: Place, kind: Kind, struck: Strikes, number: signal.Signals
) -> None:
    span = statistics.median(struck.run(*place.arguments).seconds for _ in range(3))
    codes = []
    for moment in spread(number, span):
        place.restore()
        ended = struck.run(*place.arguments, number=number, seconds=moment)
        codes.append(ended.code)
        was_killed = number == signal.SIGKILL
        assert ended.code in (0, -number if was_killed else 128 + number)
        # Python says so where a signal comes while it frees an object, and goes on.
        assert ended.errors == "" or ended.errors.startswith("Exception ignored in")
        assert is_old_or_new(place) or (kind.is_split and was_killed and is_no_mixture(place))
        assert was_killed or leftovers(place.path) == []
    assert codes.count(0) < MOMENTS
    assert struck.run(*place.arguments).code == 0
    assert standing(place.path) == place.new
    assert leftovers(place.path) == []


@EACH_KIND
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_signal_at_any_call_that_deals_with_names_leaves_the_old_output_or_the_new(
    place: Place, kind: Kind, struck: Strikes, number: signal.Signals
) -> None:
    was_killed = number == signal.SIGKILL
    for call, _ in at_each_call(place, struck, number):
        assert is_old_or_new(place) or (kind.is_split and was_killed and is_no_mixture(place)), call
        assert was_killed or leftovers(place.path) == [], call
    assert standing(place.path) == place.new
    assert leftovers(place.path) == []


@pytest.mark.parametrize("kind", [KINDS["file"]], ids=["file"])
def test_ctrl_c_at_any_call_of_a_lock_ends_the_run_at_once(place: Place, struck: Strikes) -> None:
    # An exception that comes out of the middle of one leaves it locked, and a thread waiting.
    for call, ended in at_each_call(place, struck, signal.SIGINT, "locks"):
        assert ended.code == 130, (call, ended.errors)
        assert is_old_or_new(place)


def at_each_call(
    place: Place, struck: Strikes, number: signal.Signals, calls: str = "names"
) -> Iterator[tuple[int, Ended]]:
    """Strike over the old output at one call after the other, until none is left to strike at."""
    for call in itertools.count(1):
        place.restore()
        ended = struck.run(*place.arguments, number=number, calls=calls, call=call)
        if not ended.was_struck:
            assert call > 10
            return
        yield call, ended


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_that_ends_a_run_shows_in_its_exit_code_and_in_nothing_else(
    models: Models, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "weightctl", "convert", models.large, tmp_path / "out.gguf"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    while not leftovers(tmp_path):
        time.sleep(0.001)
    process.send_signal(number)
    output, errors = process.communicate()
    assert process.returncode == code
    assert (output, errors.count(b"\n")) == (b"", 1)  # the note before it began
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_has_left_is_removed_by_the_next(
    weightctl: Run, models: Models, tmp_path: Path
) -> None:
    (tmp_path / "out.gguf.weightctl-0123abcd.partial").write_bytes(b"x" * 1000)
    (tmp_path / "out.gguf.weightctl-4567cdef.partial").mkdir()
    (tmp_path / "out-00001-of-00003.gguf.weightctl-4567cdef.partial").touch()
    assert weightctl("convert", models.small, tmp_path / "out.gguf").returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out.gguf"]


def test_what_a_killed_run_has_left_hides_no_checkpoint(models: Models, tmp_path: Path) -> None:
    save(*KINDS["file"].plan(open_weights(models.small), tmp_path))
    left = tmp_path / "out.gguf.weightctl-0123abcd.partial"
    shutil.copy(tmp_path / "out.gguf", left)
    assert open_weights(tmp_path).header.files == (str(tmp_path / "out.gguf"),)


@pytest.mark.parametrize("name", ["set", "gguf set"])
def test_a_set_without_its_first_file_is_refused(
    weightctl: Run, models: Models, tmp_path: Path, name: str
) -> None:
    # What is there when a process is killed while its files get their names, which cannot be at
    # one moment.
    save(*KINDS[name].plan(open_weights(models.small), tmp_path))
    for path in sorted(tmp_path.glob("out*"))[:1] + list(tmp_path.glob("*.json")):
        path.unlink()
    for path in tmp_path.iterdir():
        done = weightctl("ls", path)
        assert done.returncode == 2
        assert "1 of 3 parts are missing" in done.stderr


# Disks


def mounted(at: Path, megabytes: int) -> bool:
    """Mount an empty file system in memory; where that is not allowed, do nothing."""
    mount = shutil.which("mount")
    command = [mount, "-t", "tmpfs", "-o", f"size={megabytes}m", "weightctl-test", at]
    if mount is None:
        return False
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


@pytest.fixture
def disk(tmp_path: Path) -> Generator[Path, None, None]:
    """A file system of 12 MB, which nothing of it outlives."""
    at = tmp_path / "disk"
    at.mkdir()
    if not mounted(at, 12):
        pytest.skip("this machine lets nobody mount a file system")
    try:
        yield at
    finally:
        subprocess.run(["umount", "--lazy", at], check=True)


def fill(disk: Path) -> None:
    """Take all the room that is left."""
    with suppress(OSError), (disk / "filler").open("ab", buffering=0) as filler:
        while True:
            filler.write(bytes(1 << 16))


def make_read_only(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)


@EACH_KIND
def test_a_disk_that_fills_up_meanwhile_leaves_the_old_output(
    kind: Kind, tmp_path: Path, disk: Path
) -> None:
    source = random_model(tmp_path / "source", 2, 1024)
    old = old_output(kind, disk, tensors=2)
    plan, where = kind.plan(open_weights(source), disk)
    with pytest.raises(OutputError, match="cannot be written: No space left on device") as caught:
        save(plan, where, force=True, memory=LITTLE, progress=lambda _: fill(disk))
    assert "free some space" in caught.value.hint
    (disk / "filler").unlink()
    assert standing(disk) == old
    assert leftovers(disk) == []


def old_output(kind: Kind, place: Path, tensors: int) -> Files:
    """Write what a model of so many small tensors gives; return the files."""
    weights = random_weights(tensors, 8, seed=1)
    save(*kind.plan(weights, place))
    return standing(place)


@EACH_KIND
def test_a_disk_without_room_is_refused_before_anything_is_written(
    kind: Kind, disk: Path, models: Models
) -> None:
    old_output(kind, disk, TENSORS)
    fill(disk)
    before = standing(disk)
    plan, where = kind.plan(open_weights(models.small), disk)
    with pytest.raises(OutputError, match=r"are needed, and 0 B are free on its disk"):
        save(plan, where, force=True)
    assert standing(disk) == before
    assert leftovers(disk) == []


@EACH_KIND
def test_a_read_only_disk_is_refused_as_such(kind: Kind, disk: Path, models: Models) -> None:
    old = old_output(kind, disk, TENSORS)
    make_read_only(disk)
    plan, where = kind.plan(open_weights(models.small), disk)
    with pytest.raises(OutputError, match="may not be written") as caught:
        save(plan, where, force=True)
    assert "choose another place" in caught.value.hint
    assert standing(disk) == old


@EACH_KIND
@pytest.mark.parametrize("layout", ["model.safetensors", "set.safetensors", "set.gguf"])
def test_an_input_on_a_read_only_disk_works(
    kind: Kind, layout: str, disk: Path, tmp_path: Path
) -> None:
    weights = random_weights(TENSORS, 8)
    plan = Plan.copy(weights, "gguf" if layout.endswith(".gguf") else "safetensors")
    save(split(plan, 1 if layout.startswith("set") else 1 << 30), disk / layout)
    (disk / "config.json").write_text("{}")
    make_read_only(disk)
    before = standing(disk)
    out = tmp_path / "out"
    out.mkdir()
    saved = save(*kind.plan(open_weights(disk), out))
    assert open_weights(saved.paths[0]).header.tensors.keys() == weights.header.tensors.keys()
    assert standing(disk) == before


@EACH_KIND
def test_a_limit_on_files_leaves_the_old_output(kind: Kind, models: Models, tmp_path: Path) -> None:
    old = old_output(kind, tmp_path, TENSORS)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "weightctl", "convert", "--force", "--quiet", *kind.options),
            *(models.large, f"{tmp_path}/{kind.name}"),
        ],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)),
    )
    assert done.returncode == 2
    assert "cannot be written: File too large" in done.stderr
    assert "hint: the file system or a limit (ulimit -f)" in done.stderr
    assert standing(tmp_path) == old
    assert leftovers(tmp_path) == []


def test_a_limit_that_what_stands_beside_the_input_goes_over_leaves_the_old_output(
    models: Models, tmp_path: Path
) -> None:
    model = shutil.copytree(models.small, tmp_path / "model")
    (model / "tokenizer.json").write_bytes(bytes(1 << 20))
    place = tmp_path / "place"
    place.mkdir()
    old = old_output(KINDS["directory"], place, TENSORS)
    done = subprocess.run(
        [sys.executable, "-m", "weightctl", "convert", "--force", "-q", model, f"{place}/out/"],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, 1 << 19)),
    )
    assert done.returncode == 2
    assert "cannot be written: File too large" in done.stderr
    assert standing(place) == old
    assert leftovers(place) == []


@EACH_KIND
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_what_does_not_reach_the_disk_in_the_end_leaves_the_old_output(
    kind: Kind, models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    # Where space is given late (NFS, quotas), fsync is the first to say that there is none.
    old = old_output(kind, tmp_path, TENSORS)
    plan, where = kind.plan(open_weights(models.small), tmp_path)
    last = sum(name.startswith("out") for name in old)
    monkeypatch.setattr(os, "fsync", failing(os.fsync, number, at=last))
    with pytest.raises(OutputError, match=f"cannot be written: {os.strerror(number)}"):
        save(plan, where, force=True)
    assert standing(tmp_path) == old
    assert leftovers(tmp_path) == []


def failing(call: Callable[..., object], number: int, at: int) -> Callable[..., object]:
    """Return the call of the operating system so that it fails at the given time it is made."""
    count = itertools.count(1)

    def made(*arguments: object, **options: object) -> object:
        if next(count) == at:
            raise OSError(number, os.strerror(number))
        return call(*arguments, **options)

    return made


# Reads


@EACH_KIND
@pytest.mark.parametrize("at", [1, 2, 9])
def test_a_read_that_fails_names_the_file_and_the_byte_and_leaves_the_old_output(
    kind: Kind, at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = random_model(tmp_path / "source", 3, 1024)
    place = tmp_path / "place"
    place.mkdir()
    old = old_output(kind, place, tensors=3)
    plan, where = kind.plan(open_weights(source), place)
    failed: list[int] = []

    def read(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        failed.append(offset)
        if len(failed) == at:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(descriptor, buffers, offset)

    real = os.preadv
    monkeypatch.setattr(os, "preadv", read)
    with pytest.raises(FormatError, match="cannot be read: Input/output error") as caught:
        save(plan, where, force=True, memory=LITTLE, threads=1)
    assert caught.value.path == str(source / "model.safetensors")
    assert caught.value.offset == failed[at - 1]
    assert standing(place) == old
    assert leftovers(place) == []


@EACH_KIND
def test_an_input_that_is_cut_off_meanwhile_leaves_the_old_output(
    kind: Kind, tmp_path: Path
) -> None:
    source = random_model(tmp_path / "source", 3, 1024)
    place = tmp_path / "place"
    place.mkdir()
    old = old_output(kind, place, tensors=3)
    plan, where = kind.plan(open_weights(source), place)
    file = source / "model.safetensors"
    middle = file.stat().st_size // 2
    with pytest.raises(FormatError, match="the file ends here") as caught:
        save(
            plan, where, force=True, memory=LITTLE,
            progress=lambda _: os.truncate(file, middle),
        )  # fmt: skip
    assert (caught.value.path, caught.value.offset) == (str(file), middle)
    assert "change meanwhile" in caught.value.hint
    assert standing(place) == old
    assert leftovers(place) == []


def test_an_input_that_is_replaced_meanwhile_is_read_to_its_end(tmp_path: Path) -> None:
    file = random_model(tmp_path / "source", 3, 1024) / "model.safetensors"
    weights = open_weights(file)
    expected = contents(weights)
    other = random_model(tmp_path / "other", 3, 8, seed=8) / "model.safetensors"
    save(
        Plan.copy(weights, "gguf"), tmp_path / "out.gguf", memory=LITTLE,
        progress=lambda _: other.replace(file) if other.exists() else None,
    )  # fmt: skip
    assert contents(open_weights(tmp_path / "out.gguf")) == expected


# What else ends a conversion


@EACH_KIND
def test_a_number_that_cannot_be_converted_leaves_the_old_output(
    kind: Kind, tmp_path: Path
) -> None:
    old = old_output(kind, tmp_path, tensors=2)
    rows = np.ones((1024, 1024), np.float32)
    damaged = rows.copy()
    damaged[-1, -1] = np.nan
    arrays = {"layers.0.weight": rows, "layers.1.weight": damaged}
    data = {name: WeightData.from_numpy(array, name) for name, array in arrays.items()}
    blocks = kind._replace(encoding="Q8_0", name="out.gguf")
    plan, where = blocks.plan(Weights.from_data(data), tmp_path)
    with pytest.raises(ConversionError, match=r"`layers\.1\.weight` has nan at element 1048575"):
        save(plan, where, force=True, memory=LITTLE)
    assert standing(tmp_path) == old
    assert leftovers(tmp_path) == []


@EACH_KIND
def test_an_error_of_the_callers_own_leaves_the_old_output(kind: Kind, tmp_path: Path) -> None:
    old = old_output(kind, tmp_path, tensors=2)

    def stop(_: int) -> None:
        raise RuntimeError("the caller has seen enough")

    plan, where = kind.plan(random_weights(2, 64), tmp_path)
    with pytest.raises(RuntimeError, match="seen enough"):
        save(plan, where, force=True, progress=stop)
    assert standing(tmp_path) == old
    assert leftovers(tmp_path) == []


@EACH_KIND
def test_no_thread_and_no_open_file_outlives_a_conversion_that_fails(
    kind: Kind, tmp_path: Path
) -> None:
    plan, where = kind.plan(random_weights(4, 512), tmp_path)
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))

    def stop(_: int) -> None:
        raise RuntimeError("the caller has seen enough")

    with pytest.raises(RuntimeError):
        save(plan, where, memory=LITTLE, progress=stop)
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == files


@EACH_KIND
def test_progress_adds_up_to_the_bytes_of_the_tensors(kind: Kind, tmp_path: Path) -> None:
    plan, where = kind.plan(random_weights(3, 500), tmp_path)
    done: list[int] = []
    save(plan, where, memory=LITTLE, progress=done.append)
    assert sum(done) == sum(item.info.nbytes for item in plan.items)
    assert len(done) > 3
