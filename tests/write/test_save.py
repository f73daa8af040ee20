"""`save_shards` writes exactly the bytes of its plan, from any source."""

from __future__ import annotations

import errno
import os
import stat
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from build import BF16, F32, Q8_0, Gguf, Tensor
from copying import held
from full_disks import fill, make_read_only
from outcomes import standing
from sharded_files import (
    StopError,
    after,
    all_encodings,
    assert_whole,
    columns_or_all,
    cut,
    inner_or_all,
    layers,
    on_ranks,
    partial_of,
    plan_of,
    rows_or_all,
    stop,
    stopped,
    tensor,
    written,
)
from weightctl import open_weights
from weightctl.dtype import ENCODINGS
from weightctl.errors import ConversionError, OutputError
from weightctl.formats.sharded.opening import MANIFEST
from weightctl.formats.sharded.records import Shard
from weightctl.plan.arrangement import split
from weightctl.plan.plan import Plan
from weightctl.split import Grid
from weightctl.system.temporary import JOURNAL
from weightctl.write.gathering import gather
from weightctl.write.locks import lock_path
from weightctl.write.outcome import describe_shards
from weightctl.write.save import save
from weightctl.write.shard import save_shards

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightctl.sharding.plan import ShardPlan
    from weightctl.split import Sharding, Whole


CUTS = {"rows": rows_or_all, "columns": columns_or_all, "inner": inner_or_all}
EACH_CUT = pytest.mark.parametrize("how", CUTS.values(), ids=CUTS)


@EACH_CUT
@pytest.mark.parametrize("format_name", ["gguf", "safetensors"])
def test_tensors_of_every_encoding_are_cut_as_the_plan_says(
    format_name: str, how: Callable[[Whole, int], Sharding], tmp_path: Path
) -> None:
    source = written(tmp_path / "in.bin", format_name, all_encodings(format_name))
    plan = plan_of(open_weights(source), Grid(3), how)
    save_shards(plan, tmp_path / "out")
    assert_whole(plan, tmp_path / "out", tmp_path)


@EACH_CUT
@pytest.mark.parametrize("encoding", ["BF16", "Q8_0"])
def test_tensors_larger_than_what_is_read_at_a_time_are_cut_as_the_plan_says(
    encoding: str, how: Callable[[Whole, int], Sharding], tmp_path: Path
) -> None:
    blocks = 1 if encoding == "Q8_0" else 32
    tensors = [
        tensor("long", 700, 40 * blocks, encoding=encoding),
        tensor("wide", 3, 20_000 * blocks, encoding=encoding),
        tensor("stack", 3, 5, 1000 * blocks, encoding=encoding),
    ]
    plan = plan_of(open_weights(written(tmp_path / "in.gguf", "gguf", tensors)), Grid(3), how)
    save_shards(plan, tmp_path / "out")
    assert_whole(plan, tmp_path / "out", tmp_path)


def test_either_format_can_be_written_from_the_other(tmp_path: Path) -> None:
    tensors = [tensor("a.weight", 5, 7), tensor("a.bias", 5, encoding="BF16")]
    source = written(tmp_path / "in.gguf", "gguf", tensors)
    plan = plan_of(open_weights(source), Grid(2), format_name="safetensors")
    save_shards(plan, tmp_path / "out")
    assert_whole(plan, tmp_path / "out", tmp_path)


def test_a_big_endian_file_is_cut_in_the_byte_order_of_everybody(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    tensors = [
        Tensor("f32", (6, 40_000), F32, random.bytes(6 * 40_000 * 4)),
        Tensor("bf16", (5, 3), BF16, random.bytes(5 * 3 * 2)),
        Tensor("q8_0", (4, 96), Q8_0, random.bytes(4 * 3 * 34)),
    ]
    source = tmp_path / "in.gguf"
    source.write_bytes(Gguf(order=">").file(tensors))
    for name, how in CUTS.items():
        plan = plan_of(open_weights(source), Grid(3), how)
        save_shards(plan, tmp_path / name)
        (tmp_path / f"{name}-wanted").mkdir()
        assert_whole(plan, tmp_path / name, tmp_path / f"{name}-wanted")


def test_tensors_of_pytorch_that_share_and_turn_their_numbers_are_cut(tmp_path: Path) -> None:
    import torch

    matrix = torch.arange(60.0).reshape(6, 10)
    state = {
        "embed.weight": matrix,
        "head.weight": matrix,
        "turned": matrix.t(),
        "part": matrix[1:4, 2:],
    }
    torch.save(state, tmp_path / "in.bin")
    for name, how in CUTS.items():
        plan = plan_of(open_weights(tmp_path / "in.bin"), Grid(3), how, "safetensors")
        assert plan.tied
        save_shards(plan, tmp_path / name)
        (tmp_path / f"{name}-wanted").mkdir()
        assert_whole(plan, tmp_path / name, tmp_path / f"{name}-wanted")


def test_a_checkpoint_of_several_files_is_cut_as_one(tmp_path: Path) -> None:
    model = layers(tmp_path / "model")
    (tmp_path / "set").mkdir()
    whole = open_weights(model)
    save(split(Plan.copy(whole, "safetensors"), 1 << 20), tmp_path / "set/model.safetensors")
    weights = open_weights(tmp_path / "set")
    assert len(weights.header.files) > 2
    plan = plan_of(weights, Grid(2))
    save_shards(plan, tmp_path / "out")
    assert_whole(plan, tmp_path / "out", tmp_path)


def test_what_was_cut_for_some_ranks_can_be_cut_for_others(tmp_path: Path) -> None:
    model = layers(tmp_path / "model")
    save_shards(cut(model, 2), tmp_path / "two")
    again = cut(tmp_path / "two", 3)
    save_shards(again, tmp_path / "three")
    assert_whole(again, tmp_path / "three", tmp_path)
    gather(tmp_path / "three", tmp_path / "whole")
    name = "model.safetensors"
    assert (tmp_path / "whole" / name).read_bytes() == (model / name).read_bytes()


def test_tensors_in_memory_are_cut(tmp_path: Path) -> None:
    raw = np.random.default_rng(1).bytes(4 * 6 * 5)
    plan = plan_of(held({"a.weight": (ENCODINGS["F32"], (6, 5), raw)}), Grid(2), format_name="gguf")
    save_shards(plan, tmp_path / "out")
    assert_whole(plan, tmp_path / "out", tmp_path)


def test_a_checkpoint_without_tensors_gives_ranks_without_any(tmp_path: Path) -> None:
    plan = plan_of(open_weights(written(tmp_path / "in.gguf", "gguf", [])), Grid(2))
    save_shards(plan, tmp_path / "out")
    assert_whole(plan, tmp_path / "out", tmp_path)


def test_pieces_stand_one_after_the_other_and_zeros_behind_them(tmp_path: Path) -> None:
    tensors = [tensor("q", 6, 6), tensor("k", 3, 6), tensor("big", 600, 500)]
    weights = open_weights(written(tmp_path / "in.safetensors", "safetensors", tensors))
    plan = plan_of(weights, Grid(2), columns_or_all)
    made: list[tuple[Shard, ...]] = []
    for shards in plan.ranks:
        q, k, big = (shard.pieces[0] for shard in shards)
        fused = Shard(tensor("qk", 6 + 3 + 2, 3), (q, k), "stacked_qkv")
        made.append((fused, Shard(tensor("big", 607, 250), (big,), "columnwise")))
    plan = replace(plan, layout="vllm", ranks=tuple(made))
    save_shards(plan, tmp_path / "out")
    assert_whole(plan, tmp_path / "out", tmp_path)


def test_a_rank_that_has_no_part_of_a_tensor_has_no_such_tensor(tmp_path: Path) -> None:
    tensors = [tensor("layers.0", 6, 5), tensor("layers.1", 6, 5)]
    weights = open_weights(written(tmp_path / "in.safetensors", "safetensors", tensors))
    plan = plan_of(
        weights, Grid(1, 1, 2), lambda whole, ranks: on_ranks((), [int(whole.name[-1])], ranks)
    )
    save_shards(plan, tmp_path / "out")
    assert_whole(plan, tmp_path / "out", tmp_path)
    for rank in range(2):
        assert [*open_weights(tmp_path / f"out/rank-{rank}").header.tensors] == [f"layers.{rank}"]


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_as_many_threads_as_there_are_write_the_same_bytes(threads: int, tmp_path: Path) -> None:
    plan = cut(layers(tmp_path / "model"))
    save_shards(plan, tmp_path / "out", threads=threads)
    assert_whole(plan, tmp_path / "out", tmp_path)


def test_what_stands_beside_the_source_is_carried_to_each_rank(
    tiny_llama: Path, tmp_path: Path
) -> None:
    plan = cut(tiny_llama)
    save_shards(plan, tmp_path / "out")
    assert_whole(plan, tmp_path / "out", tmp_path)
    assert "rank-1/tokenizer.json" in standing(tmp_path / "out")


def test_progress_tells_of_every_byte_of_tensors_one_thread_at_a_time(tmp_path: Path) -> None:
    plan = cut(layers(tmp_path / "model"), 3)
    reported: list[int] = []
    lock = threading.Lock()

    def progress(nbytes: int) -> None:
        assert lock.acquire(blocking=False)
        reported.append(nbytes)
        lock.release()

    saved = save_shards(plan, tmp_path / "out", threads=4, progress=progress)
    assert sum(reported) == saved.written_bytes == saved.outcome.tensor_bytes
    assert len(reported) > 24
    assert saved.kept_bytes == 0
    assert saved.started_over == ""


def test_progress_of_a_run_that_goes_on_begins_with_what_is_there(tmp_path: Path) -> None:
    plan = cut(layers(tmp_path / "model"))
    stopped(plan, tmp_path / "out")
    reported: list[int] = []
    saved = save_shards(plan, tmp_path / "out", progress=reported.append)
    assert reported[0] == saved.kept_bytes > 0
    assert sum(reported) == saved.outcome.tensor_bytes == saved.written_bytes + saved.kept_bytes


def test_neither_thread_nor_open_file_outlives_a_run(tmp_path: Path) -> None:
    plan = cut(layers(tmp_path / "model"))
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    save_shards(plan, tmp_path / "out")
    stopped(plan, tmp_path / "other")
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == files


def test_files_take_no_more_room_than_they_have_bytes(tmp_path: Path) -> None:
    save_shards(cut(layers(tmp_path / "model")), tmp_path / "out")
    for rank in range(2):
        status = (tmp_path / f"out/rank-{rank}/model.safetensors").stat()
        assert status.st_blocks * 512 < status.st_size + 2 * 4096


def test_what_ranks_have_alike_is_read_once(tmp_path: Path) -> None:
    weights = open_weights(layers(tmp_path / "model"))
    before = _bytes_read()
    save_shards(plan_of(weights, Grid(8), columns_or_all), tmp_path / "out", threads=1)
    total = sum(info.nbytes for info in weights.header.tensors.values())
    assert total <= _bytes_read() - before < 1.2 * total


def _bytes_read() -> int:
    with open("/proc/self/io") as file:
        return int(file.readline().removeprefix("rchar: "))


def test_a_manifest_of_another_tool_beside_the_source_is_not_carried(tmp_path: Path) -> None:
    model = layers(tmp_path / "model")
    (model / MANIFEST).write_text("{}")
    (model / "vocab.json").write_text("{}")
    outcome = save_shards(cut(model), tmp_path / "out").outcome
    assert {name.rpartition("/")[2] for name in outcome.carried} == {"config.json", "vocab.json"}


# Where a sharded checkpoint can be written, and which files are never changed there.


@pytest.fixture
def plan(tmp_path: Path) -> ShardPlan:
    return cut(layers(tmp_path / "model"))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Where an output is to go, in a directory with nothing else."""
    (tmp_path / "place").mkdir()
    return tmp_path / "place" / "out"


@pytest.mark.usefixtures("journal_from_the_start")
def test_an_empty_directory_is_filled_and_keeps_its_mode(
    plan: ShardPlan, out: Path, tmp_path: Path
) -> None:
    out.mkdir(mode=0o700)
    save_shards(plan, out)
    assert stat.S_IMODE(out.stat().st_mode) == 0o700
    assert_whole(plan, out, tmp_path)


@pytest.mark.usefixtures("journal_from_the_start")
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


@pytest.mark.usefixtures("journal_from_the_start")
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


@pytest.mark.usefixtures("journal_from_the_start")
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


@pytest.mark.usefixtures("journal_from_the_start")
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


@pytest.mark.usefixtures("journal_from_the_start")
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


@pytest.mark.usefixtures("journal_from_the_start")
def test_a_directory_that_is_only_called_like_a_partial_one_is_left_alone(
    plan: ShardPlan, out: Path
) -> None:
    (partial := Path(f"{out}.partial")).mkdir()
    (partial / MANIFEST).write_text("years of work")
    save_shards(plan, out)
    assert standing(partial) == {MANIFEST: b"years of work"}


@pytest.mark.usefixtures("journal_from_the_start")
@pytest.mark.parametrize("content", [b"", b"{}\n", b"[1]\n", b'{"plan": "", "input": ""}\n'])
def test_a_journal_that_is_none_is_believed_in_nothing(
    content: bytes, plan: ShardPlan, out: Path, tmp_path: Path
) -> None:
    Path(f"{out}.weightctl-0123abcd.partial").mkdir()
    Path(f"{out}.weightctl-0123abcd.partial{JOURNAL}").write_bytes(content)
    assert save_shards(plan, out).kept_bytes == 0
    assert_whole(plan, out, tmp_path)
    assert os.listdir(out.parent) == ["out"]


@pytest.mark.usefixtures("journal_from_the_start")
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


@pytest.mark.usefixtures("journal_from_the_start")
def test_a_link_to_a_directory_is_followed(plan: ShardPlan, out: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    out.symlink_to("../disk")
    for force in (False, True):
        save_shards(plan, out, force=force)
        assert out.is_symlink()
    assert_whole(plan, tmp_path / "disk", tmp_path)


@pytest.mark.usefixtures("journal_from_the_start")
@pytest.mark.parametrize("name", ["", "/"])
def test_a_path_that_names_nothing_is_refused(name: str, plan: ShardPlan) -> None:
    with pytest.raises(ConversionError, match="not a valid name of an output"):
        save_shards(plan, name)


@pytest.mark.usefixtures("journal_from_the_start")
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


@pytest.mark.usefixtures("journal_from_the_start")
def test_a_directory_that_does_not_exist_is_said_to_be(plan: ShardPlan, out: Path) -> None:
    with pytest.raises(OutputError, match="does not exist"):
        save_shards(plan, out / "below")
    assert os.listdir(out.parent) == []


@pytest.mark.usefixtures("journal_from_the_start")
def test_the_input_and_what_holds_it_are_refused(plan: ShardPlan, tmp_path: Path) -> None:
    before = standing(tmp_path)
    for path in ("model", "model/../model/", "model/model.safetensors"):
        with pytest.raises(OutputError):
            save_shards(plan, tmp_path / path, force=True)
    assert standing(tmp_path) == before


@pytest.mark.usefixtures("journal_from_the_start")
def test_an_output_below_the_input_is_one_of_its_own(plan: ShardPlan, tmp_path: Path) -> None:
    save_shards(plan, tmp_path / "model" / "shards")
    assert_whole(plan, tmp_path / "model" / "shards", tmp_path)


@pytest.mark.usefixtures("journal_from_the_start")
@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_place_that_may_not_be_written_is_refused_as_such(plan: ShardPlan, out: Path) -> None:
    out.parent.chmod(0o500)
    try:
        with pytest.raises(OutputError, match="is not writable"):
            save_shards(plan, out)
    finally:
        out.parent.chmod(0o700)
    assert os.listdir(out.parent) == []


@pytest.mark.usefixtures("journal_from_the_start")
def test_a_directory_that_another_run_writes_is_refused(plan: ShardPlan, out: Path) -> None:
    (partial := Path(f"{out}.weightctl-0123abcd.partial")).mkdir()
    lock = lock_path(str(partial))
    with pytest.raises(OutputError, match="another run is writing") as caught:
        save_shards(plan, out)
    os.close(lock)
    assert "wait" in caught.value.hint
    assert os.listdir(out.parent) == [partial.name]


@pytest.mark.usefixtures("journal_from_the_start")
def test_two_runs_at_once_do_not_meet(plan: ShardPlan, out: Path, tmp_path: Path) -> None:
    refusals: list[OutputError] = []

    def run_another() -> None:
        with pytest.raises(OutputError, match="another run is writing") as caught:
            save_shards(plan, out)
        refusals.append(caught.value)

    save_shards(plan, out, progress=after(3_000_000, run_another))
    assert refusals
    assert_whole(plan, out, tmp_path)


@pytest.mark.usefixtures("journal_from_the_start")
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


@pytest.mark.usefixtures("journal_from_the_start")
def test_a_format_that_cannot_hold_the_tensors_is_said_to_be(tmp_path: Path, out: Path) -> None:

    path = written(tmp_path / "in.gguf", "gguf", [tensor("a", 2, 2, encoding="Q4_K")])
    plan = plan_of(open_weights(path), Grid(2), format_name="safetensors")
    with pytest.raises(ConversionError, match="safetensors cannot store some of the tensors"):
        save_shards(plan, out)
    with pytest.raises(ConversionError, match="safetensors or GGUF"):
        save_shards(replace(plan, format="pytorch"), out)
    assert os.listdir(out.parent) == []


@pytest.mark.usefixtures("journal_from_the_start")
def test_too_little_room_is_reported_before_anything_is_written(disk: Path, tmp_path: Path) -> None:
    plan = cut(layers(tmp_path / "model", count=24))
    with pytest.raises(OutputError, match="are free on its disk"):
        save_shards(plan, disk / "out")
    assert os.listdir(disk) == []


@pytest.mark.usefixtures("journal_from_the_start")
def test_a_run_that_goes_on_needs_no_room_for_what_it_has(disk: Path, tmp_path: Path) -> None:
    plan = cut(layers(tmp_path / "model", count=16))
    stopped(plan, disk / "out")
    assert save_shards(plan, disk / "out").kept_bytes
    assert_whole(plan, disk / "out", tmp_path)


@pytest.mark.usefixtures("journal_from_the_start")
def test_a_disk_that_fills_up_before_there_is_room_for_all_ends_with_nothing_left(
    disk: Path, plan: ShardPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = os.mkdir

    def make_and_fill(path: str, *mode: int) -> None:
        make(path, *mode)
        if path.endswith("rank-1"):
            fill(disk)

    monkeypatch.setattr(os, "mkdir", make_and_fill)
    with pytest.raises(OutputError, match="No space left on device") as caught:
        save_shards(plan, disk / "out")
    assert "free some disk space; the target is unchanged" in caught.value.hint
    assert "continues" not in caught.value.hint
    assert os.listdir(disk) == ["filler"]


@pytest.mark.usefixtures("journal_from_the_start")
def test_a_disk_that_fills_up_meanwhile_keeps_what_is_complete(
    disk: Path, tmp_path: Path, plan: ShardPlan
) -> None:
    stopped(plan, disk / "out", 0.3)
    # The files have their room; what has none are the manifest, and what goes along.
    with pytest.raises(OutputError, match="No space left on device") as caught:
        save_shards(plan, disk / "out", progress=lambda _: fill(disk))
    assert "free some disk space; the same command continues" in caught.value.hint
    assert "the target is unchanged; temporary files stay: " in caught.value.hint
    (disk / "filler").unlink()
    assert save_shards(plan, disk / "out").kept_bytes
    assert_whole(plan, disk / "out", tmp_path)


@pytest.mark.usefixtures("journal_from_the_start")
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


@pytest.mark.usefixtures("journal_from_the_start")
def test_a_read_only_disk_is_refused_as_such(disk: Path, plan: ShardPlan) -> None:
    make_read_only(disk)
    with pytest.raises(OutputError, match="is not writable"):
        save_shards(plan, disk / "out")


@pytest.mark.usefixtures("journal_from_the_start")
def test_what_will_be_written_is_known_to_the_byte(plan: ShardPlan, out: Path) -> None:
    outcome = describe_shards(plan, out)
    assert os.listdir(out.parent) == []
    save_shards(plan, out)
    there = standing(out)
    assert outcome.nbytes == sum(len(there[name]) for name in outcome.parts)
    assert {*there} == {MANIFEST, *outcome.parts, *outcome.carried}
