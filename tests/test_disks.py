"""Full, read-only or limited disks leave the old output, and errors name the cause."""

from __future__ import annotations

import errno
import itertools
import os
import resource
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from full_disks import fill, make_read_only
from outcomes import (
    EACH_KIND,
    KINDS,
    Kind,
    old_output,
    random_model,
    random_weights,
    standing,
    untouched,
)
from weightctl import Plan, open_weights
from weightctl.errors import OutputError
from weightctl.plan.arrangement import split
from weightctl.write.save import save

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

TENSORS = 3
SETS = [kind for kind in KINDS.values() if kind.is_split]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(tmp_path_factory.mktemp("models") / "small", TENSORS, 8, seed=2)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(tmp_path_factory.mktemp("models") / "large", TENSORS, 2048, seed=3)


@pytest.mark.parametrize("kind", SETS, ids=lambda kind: kind.name)
def test_a_disk_that_fills_up_before_all_files_are_begun_leaves_the_old_output(
    kind: Kind, tmp_path: Path, disk: Path
) -> None:
    source = random_model(tmp_path / "source", 2, 1024)
    old_output(kind, disk, tensors=2)
    plan, where = kind.plan(open_weights(source), disk)
    with untouched(disk):
        with pytest.raises(OutputError, match="written: No space left on device") as caught:
            save(plan, where, force=True, progress=lambda _: fill(disk))
        (disk / "filler").unlink()
    assert "free some disk space; the target is unchanged" in caught.value.hint


@pytest.mark.parametrize("name", ["out.gguf", "out.safetensors", "out.pt"])
@pytest.mark.parametrize("encoding", ["F32", "BF16"])
def test_a_file_that_has_begun_has_its_room_on_the_disk(
    name: str, encoding: str, tmp_path: Path, disk: Path
) -> None:
    source = random_model(tmp_path / "source", 2, 1024)
    plan, where = Kind(name, encoding).plan(open_weights(source), disk)
    # With little memory, the output is written in several pieces.
    save(plan, where, memory=4_000_000, progress=lambda _: fill(disk))
    (elsewhere := tmp_path / "elsewhere").mkdir()
    save(*Kind(name, encoding).plan(open_weights(source), elsewhere))
    assert (disk / name).read_bytes() == (elsewhere / name).read_bytes()


@EACH_KIND
def test_an_output_takes_no_more_room_than_it_has_bytes(
    kind: Kind, small: Path, tmp_path: Path
) -> None:
    saved = save(*kind.plan(open_weights(small), tmp_path))
    for path in saved.paths:
        status = os.stat(path)
        assert status.st_blocks * 512 < status.st_size + 2 * 4096


def test_a_disk_that_fills_up_while_stdout_goes_there_is_an_error(
    tmp_path: Path, disk: Path
) -> None:
    source = random_model(tmp_path / "source", 4, 1024)
    command = [sys.executable, "-m", "weightctl", "convert", source, "-", "--to", "gguf"]
    with (disk / "out").open("wb") as out:
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert "stdout cannot be written: No space left on device" in done.stderr


@EACH_KIND
def test_a_disk_without_room_is_refused_before_anything_is_written(
    kind: Kind, disk: Path, small: Path
) -> None:
    old_output(kind, disk, TENSORS)
    fill(disk)
    plan, where = kind.plan(open_weights(small), disk)
    refused = pytest.raises(OutputError, match=r"are needed, but 0 B are free on its disk")
    with untouched(disk), refused:
        save(plan, where, force=True)


@EACH_KIND
def test_a_read_only_disk_is_refused_as_such(kind: Kind, disk: Path, small: Path) -> None:
    old_output(kind, disk, TENSORS)
    make_read_only(disk)
    plan, where = kind.plan(open_weights(small), disk)
    with untouched(disk), pytest.raises(OutputError, match="is not writable") as caught:
        save(plan, where, force=True)
    assert "choose another directory" in caught.value.hint


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
    out = tmp_path / "out"
    out.mkdir()
    with untouched(disk):
        saved = save(*kind.plan(open_weights(disk), out))
    assert open_weights(saved.paths[0]).header.tensors.keys() == weights.header.tensors.keys()


def limited(size: int, *arguments: str | Path) -> Completed:
    """Convert in a process that cannot write files larger than a limit."""
    return subprocess.run(
        [sys.executable, "-m", "weightctl", "convert", "--force", "--quiet", *arguments],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)),
    )


@EACH_KIND
def test_a_limit_on_files_leaves_the_old_output(kind: Kind, large: Path, tmp_path: Path) -> None:
    old_output(kind, tmp_path, TENSORS)
    with untouched(tmp_path):
        done = limited(1 << 20, large, f"{tmp_path}/{kind.name}", *kind.options)
    assert done.returncode == 2
    assert "cannot be written: File too large" in done.stderr
    assert (
        "hint: the file system or a limit (`ulimit -f`) does not allow a file of this size"
        in done.stderr
    )


def test_a_limit_that_what_stands_beside_the_input_goes_over_leaves_the_old_output(
    tmp_path: Path,
) -> None:
    model = random_model(tmp_path / "model", TENSORS, 8, seed=2)
    (model / "tokenizer.json").write_bytes(bytes(1 << 20))
    place = tmp_path / "place"
    place.mkdir()
    old_output(KINDS["directory"], place, TENSORS)
    with untouched(place):
        done = limited(1 << 19, model, f"{place}/out/")
    assert done.returncode == 2
    assert "cannot be written: File too large" in done.stderr


@EACH_KIND
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_what_does_not_reach_the_disk_in_the_end_leaves_the_old_output(
    kind: Kind, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    # If space is allocated late (NFS, quotas), fsync is the first call that fails.
    old_output(kind, tmp_path, TENSORS)
    plan, where = kind.plan(open_weights(small), tmp_path)
    last = sum(name.startswith("out") for name in standing(tmp_path))
    monkeypatch.setattr(os, "fsync", failing(os.fsync, number, at=last))
    refused = pytest.raises(OutputError, match=f"cannot be written: {os.strerror(number)}")
    with untouched(tmp_path), refused:
        save(plan, where, force=True)


def failing(call: Callable[..., object], number: int, at: int) -> Callable[..., object]:
    """Return a system call that fails when it is called the given time."""
    count = itertools.count(1)

    def made(*arguments: object, **options: object) -> object:
        if next(count) == at:
            raise OSError(number, os.strerror(number))
        return call(*arguments, **options)

    return made
