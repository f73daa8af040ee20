"""Where a sharded checkpoint can be written, and which files are never changed there."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from full_disks import fill, make_read_only
from outcomes import standing
from sharded_files import (
    StopError,
    after,
    assert_whole,
    cut,
    layers,
    partial_of,
    plan_of,
    stop,
    stopped,
    tensor,
    written,
)
from weightctl import open_weights
from weightctl.errors import ConversionError, OutputError
from weightctl.formats.sharded.detection import MANIFEST
from weightctl.split import Grid
from weightctl.system.temporary import JOURNAL
from weightctl.write.claims import lock_path
from weightctl.write.describe import describe_shards
from weightctl.write.shard import save_shards

if TYPE_CHECKING:
    from weightctl.sharding.plan import ShardPlan


pytestmark = pytest.mark.usefixtures("journal_from_the_start")


@pytest.fixture
def plan(tmp_path: Path) -> ShardPlan:
    return cut(layers(tmp_path / "model"))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Where an output is to go, in a directory with nothing else."""
    (tmp_path / "place").mkdir()
    return tmp_path / "place" / "out"


def test_an_empty_directory_is_filled_and_keeps_its_mode(
    plan: ShardPlan, out: Path, tmp_path: Path
) -> None:
    out.mkdir(mode=0o700)
    save_shards(plan, out)
    assert stat.S_IMODE(out.stat().st_mode) == 0o700
    assert_whole(plan, out, tmp_path)


def test_a_directory_that_has_something_is_replaced_only_by_force(
    plan: ShardPlan, out: Path, tmp_path: Path
) -> None:
    save_shards(cut(layers(tmp_path / "other", seed=2)), out)
    before = standing(out)
    with pytest.raises(OutputError, match="exists and is not empty") as caught:
        save_shards(plan, out)
    assert "--force" in caught.value.hint
    assert standing(out) == before
    saved = save_shards(plan, out, force=True)
    assert saved.started_over == ""
    assert_whole(plan, out, tmp_path)
    assert os.listdir(out.parent) == ["out"]


def test_what_was_there_stays_until_the_new_one_is_whole(
    plan: ShardPlan, out: Path, tmp_path: Path
) -> None:
    save_shards(cut(layers(tmp_path / "other", seed=2)), out)
    before = standing(out)
    with pytest.raises(StopError):
        save_shards(plan, out, force=True, progress=after(3_000_000, stop))
    assert standing(out) == before
    assert save_shards(plan, out, force=True).kept_bytes
    assert_whole(plan, out, tmp_path)


@pytest.mark.parametrize("before", ["ranks", "vllm"])
@pytest.mark.parametrize("after", ["ranks", "vllm"])
def test_a_set_for_more_ranks_is_replaced_by_force(
    before: str, after: str, plan: ShardPlan, out: Path, tmp_path: Path
) -> None:
    save_shards(replace(cut(tmp_path / "model", 4), layout=before), out)
    plan = replace(plan, layout=after)
    with pytest.raises(OutputError, match="not empty") as caught:
        save_shards(plan, out)
    assert "use --force" in caught.value.hint
    save_shards(plan, out, force=True)
    paths = describe_shards(plan, out).parts
    assert sorted(path.relative_to(out).as_posix() for path in out.rglob("model*")) == sorted(paths)
    assert len(list(out.rglob("config.json"))) == (1 if after == "vllm" else 2)
    assert os.listdir(out.parent) == ["out"]


@pytest.mark.parametrize("name", ["rank-3/thesis.tex", "rank-4/model.safetensors"])
def test_of_a_set_for_more_ranks_only_its_own_files_are_replaced(
    name: str, plan: ShardPlan, out: Path, tmp_path: Path
) -> None:
    save_shards(cut(tmp_path / "model", 4), out)
    (out / name).parent.mkdir(exist_ok=True)
    (out / name).write_text("years of work")
    before = standing(out)
    for force in (False, True):
        with pytest.raises(OutputError, match=r"not empty|are not part of the output") as caught:
            save_shards(plan, out, force=force)
        assert name in f"{caught.value} {caught.value.hint}"
    assert standing(out) == before


@pytest.mark.parametrize("name", ["thesis.tex", "rank-0/thesis.tex", "rank-7/model.safetensors"])
@pytest.mark.parametrize("force", [False, True])
def test_somebody_elses_files_are_never_removed(
    name: str, force: bool, plan: ShardPlan, out: Path
) -> None:
    save_shards(plan, out)
    path = out / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("years of work")
    before = standing(out.parent)
    with pytest.raises(OutputError, match=name if force else "not empty"):
        save_shards(plan, out, force=force)
    assert standing(out.parent) == before


def test_a_directory_that_is_only_called_like_a_partial_one_is_left_alone(
    plan: ShardPlan, out: Path
) -> None:
    (partial := Path(f"{out}.partial")).mkdir()
    (partial / MANIFEST).write_text("years of work")
    save_shards(plan, out)
    assert standing(partial) == {MANIFEST: b"years of work"}


@pytest.mark.parametrize("content", [b"", b"{}\n", b"[1]\n", b'{"plan": "", "input": ""}\n'])
def test_a_journal_that_is_none_is_believed_in_nothing(
    content: bytes, plan: ShardPlan, out: Path, tmp_path: Path
) -> None:
    Path(f"{out}.weightctl-0123abcd.partial").mkdir()
    Path(f"{out}.weightctl-0123abcd.partial{JOURNAL}").write_bytes(content)
    assert save_shards(plan, out).kept_bytes == 0
    assert_whole(plan, out, tmp_path)
    assert os.listdir(out.parent) == ["out"]


@pytest.mark.parametrize(
    "line",
    ['{"file": 0, "key": "no such tensor", "sha256": "00"}', '{"file": 99, "key": "a"}',
     '{"file": 0, "key": "layers.0.weight"}', '{"file": "0", "key": 1}', "[]", "null"],
)  # fmt: skip
def test_a_record_that_is_not_of_the_plan_counts_for_nothing(
    line: str, plan: ShardPlan, out: Path, tmp_path: Path
) -> None:
    stopped(plan, out)
    journal = Path(f"{partial_of(out)}{JOURNAL}")
    purpose, *_ = journal.read_text().splitlines()
    journal.write_text(f"{purpose}\n{line}\n")
    assert save_shards(plan, out).kept_bytes == 0
    assert_whole(plan, out, tmp_path)


def test_a_link_to_a_directory_is_followed(plan: ShardPlan, out: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    out.symlink_to("../disk")
    for force in (False, True):
        save_shards(plan, out, force=force)
        assert out.is_symlink()
    assert_whole(plan, tmp_path / "disk", tmp_path)


@pytest.mark.parametrize("name", ["", "/"])
def test_a_path_that_names_nothing_is_refused(name: str, plan: ShardPlan) -> None:
    with pytest.raises(ConversionError, match="not a valid name of an output"):
        save_shards(plan, name)


@pytest.mark.parametrize("kind", ["file", "link to nothing"])
def test_what_is_not_a_directory_is_left_alone(kind: str, plan: ShardPlan, out: Path) -> None:
    if kind == "file":
        out.write_bytes(b"years of work")
    else:
        out.symlink_to(out.parent / "no/where")
    with pytest.raises(OutputError, match=r"not a directory|does not exist") as caught:
        save_shards(plan, out, force=True)
    assert caught.value.hint
    assert os.listdir(out.parent) == [out.name]


def test_a_directory_that_does_not_exist_is_said_to_be(plan: ShardPlan, out: Path) -> None:
    with pytest.raises(OutputError, match="does not exist"):
        save_shards(plan, out / "below")
    assert os.listdir(out.parent) == []


def test_the_input_and_what_holds_it_are_refused(plan: ShardPlan, tmp_path: Path) -> None:
    before = standing(tmp_path)
    for path in ("model", "model/../model/", "model/model.safetensors"):
        with pytest.raises(OutputError):
            save_shards(plan, tmp_path / path, force=True)
    assert standing(tmp_path) == before


def test_an_output_below_the_input_is_one_of_its_own(plan: ShardPlan, tmp_path: Path) -> None:
    save_shards(plan, tmp_path / "model" / "shards")
    assert_whole(plan, tmp_path / "model" / "shards", tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_place_that_may_not_be_written_is_refused_as_such(plan: ShardPlan, out: Path) -> None:
    out.parent.chmod(0o500)
    try:
        with pytest.raises(OutputError, match="is not writable"):
            save_shards(plan, out)
    finally:
        out.parent.chmod(0o700)
    assert os.listdir(out.parent) == []


def test_a_directory_that_another_run_writes_is_refused(plan: ShardPlan, out: Path) -> None:
    (partial := Path(f"{out}.weightctl-0123abcd.partial")).mkdir()
    lock = lock_path(str(partial))
    with pytest.raises(OutputError, match="another run is writing") as caught:
        save_shards(plan, out)
    os.close(lock)
    assert "wait" in caught.value.hint
    assert os.listdir(out.parent) == [partial.name]


def test_two_runs_at_once_do_not_meet(plan: ShardPlan, out: Path, tmp_path: Path) -> None:
    refusals: list[OutputError] = []

    def run_another() -> None:
        with pytest.raises(OutputError, match="another run is writing") as caught:
            save_shards(plan, out)
        refusals.append(caught.value)

    save_shards(plan, out, progress=after(3_000_000, run_another))
    assert refusals
    assert_whole(plan, out, tmp_path)


def test_what_appears_meanwhile_is_not_replaced(plan: ShardPlan, out: Path) -> None:
    def appear() -> None:
        out.mkdir(exist_ok=True)
        (out / "thesis.tex").write_text("years of work")

    for force in (False, True):
        with pytest.raises(OutputError, match=r"not empty|thesis\.tex") as caught:
            save_shards(plan, out, force=force, progress=after(3_000_000, appear))
        assert "the same command continues" in caught.value.hint
        assert standing(out) == {"thesis.tex": b"years of work"}
        (out / "thesis.tex").unlink()
        out.rmdir()


def test_a_format_that_cannot_hold_the_tensors_is_said_to_be(tmp_path: Path, out: Path) -> None:

    path = written(tmp_path / "in.gguf", "gguf", [tensor("a", 2, 2, encoding="Q4_K")])
    plan = plan_of(open_weights(path), Grid(2), format_name="safetensors")
    with pytest.raises(ConversionError, match="safetensors cannot store some of the tensors"):
        save_shards(plan, out)
    with pytest.raises(ConversionError, match="safetensors or GGUF"):
        save_shards(replace(plan, format="pytorch"), out)
    assert os.listdir(out.parent) == []


def test_too_little_room_is_reported_before_anything_is_written(disk: Path, tmp_path: Path) -> None:
    plan = cut(layers(tmp_path / "model", count=24))
    with pytest.raises(OutputError, match="are free on its disk"):
        save_shards(plan, disk / "out")
    assert os.listdir(disk) == []


def test_a_run_that_goes_on_needs_no_room_for_what_it_has(disk: Path, tmp_path: Path) -> None:
    plan = cut(layers(tmp_path / "model", count=16))
    stopped(plan, disk / "out")
    assert save_shards(plan, disk / "out").kept_bytes
    assert_whole(plan, disk / "out", tmp_path)


def test_a_disk_that_fills_up_before_there_is_room_for_all_ends_with_nothing_left(
    disk: Path, plan: ShardPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = os.mkdir

    def make_and_fill(path: str) -> None:
        make(path)
        if path.endswith("rank-1"):
            fill(disk)

    monkeypatch.setattr(os, "mkdir", make_and_fill)
    with pytest.raises(OutputError, match="No space left on device") as caught:
        save_shards(plan, disk / "out")
    assert "free some disk space; the target is unchanged" in caught.value.hint
    assert "continues" not in caught.value.hint
    assert os.listdir(disk) == ["filler"]


def test_a_disk_that_fills_up_meanwhile_keeps_what_is_complete(
    disk: Path, tmp_path: Path, plan: ShardPlan
) -> None:
    stopped(plan, disk / "out", 0.3)
    # The files have their room; what has none are the manifest, and what goes along.
    with pytest.raises(OutputError, match="No space left on device") as caught:
        save_shards(plan, disk / "out", progress=lambda _: fill(disk))
    assert (
        "free some disk space; the target is unchanged; the same command continues"
        in caught.value.hint
    )
    (disk / "filler").unlink()
    assert save_shards(plan, disk / "out").kept_bytes
    assert_whole(plan, disk / "out", tmp_path)


def test_an_error_of_the_disk_is_told_as_such(
    plan: ShardPlan, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fails)
        with pytest.raises(OutputError, match="cannot be written: Input/output error"):
            save_shards(plan, out)
    # What did not reach the disk is recorded nowhere.
    assert os.listdir(out.parent) == []
    save_shards(plan, out)
    assert_whole(plan, out, tmp_path)


def test_a_read_only_disk_is_refused_as_such(disk: Path, plan: ShardPlan) -> None:
    make_read_only(disk)
    with pytest.raises(OutputError, match="is not writable"):
        save_shards(plan, disk / "out")


def test_what_will_be_written_is_known_to_the_byte(plan: ShardPlan, out: Path) -> None:
    outcome = describe_shards(plan, out)
    assert os.listdir(out.parent) == []
    save_shards(plan, out)
    there = standing(out)
    assert outcome.nbytes == sum(len(there[name]) for name in outcome.parts)
    assert {*there} == {MANIFEST, *outcome.parts, *outcome.carried}
