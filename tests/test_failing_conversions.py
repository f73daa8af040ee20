"""A conversion that fails leaves the old output, and no files of its own."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from arrays import weights_of
from commands import ROOT, run_command
from each import each
from outcomes import (
    EACH_KIND,
    failing_call,
    leftovers,
    old_output,
    random_model,
    random_weights,
    standing,
    untouched,
)
from weightctl import Plan, open_weights
from weightctl.errors import ConversionError, FormatError
from weightctl.storage.base import cannot_write
from weightctl.system.temporary import temporary_name
from weightctl.write import journal
from weightctl.write.save import save

if TYPE_CHECKING:
    from pathlib import Path

    from commands import Completed
    from outcomes import Kind

# Commands that write an output. An output of other values stands there, of the same size or in
# other parts.
FIXTURES = ROOT / "fixtures"
COMMANDS = {
    "file": ("convert", "small", "out.gguf", "--quant", "Q8_0"),
    "directory": ("convert", "small", "out", "--dtype", "BF16"),
    "set": ("convert", "small", "out.safetensors", "--max-shard-size", "1B"),
    "gguf set": ("convert", "small", "out.gguf", "--max-shard-size", "1B"),
    "shard": ("shard", "tiny", "out", "--tp", "2"),
    "merge": ("merge", "tiny", FIXTURES / "tiny-adapter", "out"),
    "apply": ("apply", "tiny", "patch", "out"),
    "apply to a file": ("apply", "tiny/model.safetensors", "file.patch", "out.safetensors"),
}
# `apply` has no journal.
JOURNALS = {kind: ("apply" not in kind, False) for kind in COMMANDS}
OTHER_PARTS = ("--max-shard-size", "40kB")
FAULTS = itertools.cycle((errno.ENOSPC, errno.EIO, errno.EACCES))
# So little that a conversion of a few megabytes is read and written in several pieces.
LITTLE = 4_000_000


def stop(_: int) -> None:
    raise RuntimeError("the caller has seen enough")


@EACH_KIND
def test_a_number_that_cannot_be_converted_leaves_the_old_output(
    kind: Kind, tmp_path: Path
) -> None:
    old_output(kind, tmp_path, tensors=2)
    rows = np.ones((1024, 1024), np.float32)
    damaged = rows.copy()
    damaged[-1, -1] = np.nan
    arrays = {"layers.0.weight": rows, "layers.1.weight": damaged}
    blocks = kind._replace(encoding="Q8_0", name="out.gguf")
    plan, where = blocks.plan(weights_of(arrays), tmp_path)
    named = r"`layers\.1\.weight` has nan at element 1048575"
    with untouched(tmp_path), pytest.raises(ConversionError, match=named):
        save(plan, where, force=True, memory=LITTLE)


@EACH_KIND
def test_an_error_of_the_callers_own_leaves_the_old_output(kind: Kind, tmp_path: Path) -> None:
    old_output(kind, tmp_path, tensors=2)
    plan, where = kind.plan(random_weights(2, 64), tmp_path)
    with untouched(tmp_path), pytest.raises(RuntimeError, match="seen enough"):
        save(plan, where, force=True, progress=stop)


@EACH_KIND
def test_no_thread_and_no_open_file_outlives_a_conversion_that_fails(
    kind: Kind, tmp_path: Path
) -> None:
    plan, where = kind.plan(random_weights(4, 512), tmp_path)
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    with pytest.raises(RuntimeError, match="seen enough"):
        save(plan, where, memory=LITTLE, progress=stop)
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == files


@EACH_KIND
def test_an_input_that_is_written_to_meanwhile_leaves_the_old_output(
    kind: Kind, tmp_path: Path
) -> None:
    source = random_model(tmp_path / "source", 3, 256) / "model.safetensors"
    place = tmp_path / "place"
    place.mkdir()
    old_output(kind, place, tensors=2)
    plan, where = kind.plan(open_weights(source), place)

    def write(_: int) -> None:
        with source.open("r+b") as file:
            file.seek(-4, os.SEEK_END)
            file.write(b"\0\0\0\0")

    with untouched(place), pytest.raises(FormatError, match="changed while it was read") as caught:
        save(plan, where, force=True, progress=write)
    assert caught.value.path == str(source)
    assert "try again" in caught.value.hint


def test_an_input_whose_name_goes_to_another_file_meanwhile_is_read_to_its_end(
    tmp_path: Path,
) -> None:
    source = random_model(tmp_path / "source", 3, 256) / "model.safetensors"
    plan = Plan.copy(open_weights(source), "safetensors")
    whole = source.read_bytes()

    def replace_it(_: int) -> None:
        (tmp_path / "new").write_bytes(b"new")
        os.replace(tmp_path / "new", source)

    save(plan, tmp_path / "out.safetensors", progress=replace_it)
    assert (tmp_path / "out.safetensors").read_bytes() == whole


@pytest.mark.parametrize("name", ["out.gguf", "out/model.safetensors"])
def test_an_error_names_the_output_and_not_what_it_is_called_until_it_is_whole(name: str) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    first, *rest = name.split("/")
    temporary = "/".join(["/place", temporary_name(first), *rest])
    assert cannot_write(temporary, full).message == (
        f"/place/{name} cannot be written: No space left on device"
    )


def test_a_tensor_that_comes_out_short_is_not_an_output(tmp_path: Path) -> None:
    plan = Plan.copy(random_weights(1), "gguf")
    item = plan.items[0]
    longer = item.info._replace(shape=(512, 1024))
    plan = plan.with_items((item.__class__(longer, item.source),))
    with pytest.raises(ConversionError, match="has 1048576 bytes instead of 2097152"):
        save(plan, tmp_path / "out.gguf")
    assert os.listdir(tmp_path) == []


@EACH_KIND
def test_names_that_collide_are_refused_before_anything_is_written(
    kind: Kind, tmp_path: Path
) -> None:
    plan, where = kind.plan(random_weights(3, 8), tmp_path)
    save(plan, where)
    same = plan.items[0].info.name
    items = (plan.items[0], *(replace(i, info=i.info._replace(name=same)) for i in plan.items[1:]))
    collision = pytest.raises(ConversionError, match=rf"3 tensors would have the name `{same}`")
    with untouched(tmp_path), collision:
        save(plan.with_items(items), where, force=True)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models")
    random_model(place / "small", 3, 8)
    random_model(place / "old-small", 3, 8, seed=5)
    shutil.copytree(FIXTURES / "tiny-llama", place / "tiny")
    adapter = f"{FIXTURES / 'tiny-adapter'}:5"
    run_command("merge", place / "tiny", adapter, place / "old-tiny")
    for below, name in (("", "patch"), ("model.safetensors", "file.patch")):
        pair = place / "tiny" / below, place / "old-tiny" / below
        for first, second, old in ((*pair, ""), (*pair[::-1], "old-")):
            run_command("diff", first, second, "--patch", place / f"{old}{name}")
    return place


def run_for(models: Path, kind: str, place: Path, *, old: bool = False) -> Completed:
    command, source, *words = COMMANDS[kind]
    words = [f"{place}/{word}" if str(word).startswith("out") else word for word in words]
    parts = OTHER_PARTS if old and "set" in kind else ()
    if command == "apply":  # has no option for threads, and writes in one
        words = [models / f"{'old-' if old else ''}{words[0]}", words[1]]
    else:
        parts = ("--threads", "1", *parts)
    source = models / (f"old-{source}" if old else str(source))
    return run_command(command, source, *words, "--force", *parts)


@each("kind, number, is_done, has_journal", [
    ("directory", 5, False, False), ("directory", 23, False, True), ("set", 58, False, True),
    *[
        pytest.param(kind, None, is_done, has_journal, marks=pytest.mark.long)
        for kind in COMMANDS for is_done in (True, False) for has_journal in {*JOURNALS[kind]}
    ],
])  # fmt: skip
def test_an_error_at_any_write_says_what_is_so_and_the_same_command_completes(
    kind: str, number: int | None, is_done: bool, has_journal: bool, models: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(journal, "BEGIN_AFTER", 0.0 if has_journal else 60.0)
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
        assert run_for(models, kind, tmp_path / name, old=name == "before").returncode == 0
    before, after = standing(tmp_path / "before"), standing(tmp_path / "after")
    place = tmp_path / "place"
    # An error comes before or after each other write: each write has one of both.
    for at in itertools.count(is_done, 2) if number is None else [number]:
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(tmp_path / "before", place)
        with failing_call(place, at, next(FAULTS), is_done=is_done) as failed:
            done = run_for(models, kind, place)
        if not failed:
            assert at > 12
            assert number is None
            break
        said, left, now = done.stderr, leftovers(place), standing(place)
        assert "Traceback" not in said
        if not done.returncode:
            assert (now, left) == (after, []), failed
        elif "weightctl reads them instead of the old ones" in said:
            assert any(name.endswith("switch.partial") and name in said for name in left)
        else:
            assert now in (before, after), (at, failed, said)
            assert ("the target is unchanged" in said) == (now == before), (at, failed, said)
            assert ("the output is complete" in said) == (now == after), (at, failed, said)
            assert [name for name in left if name not in said] == [], (at, failed, said)
            assert ("continues where" in said) == ("temporary files stay" in said)
        assert run_for(models, kind, place).returncode == 0, (at, failed, said)
        assert standing(place) == after, (at, failed, said)
        assert leftovers(place) == [], (at, failed, said)
