"""`save_shards` writes exactly the bytes of its plan, from any source."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from build import BF16, F32, Q8_0, Gguf, Tensor
from copying import held
from outcomes import standing
from sharded_files import (
    all_encodings,
    assert_whole,
    columns_or_all,
    cut,
    inner_or_all,
    layers,
    on_ranks,
    plan_of,
    rows_or_all,
    stopped,
    tensor,
    written,
)
from weightctl import open_weights
from weightctl.dtype import ENCODINGS
from weightctl.formats.sharded.detection import MANIFEST
from weightctl.formats.sharded.record import Shard
from weightctl.plan.arrangement import split
from weightctl.plan.plan import Plan
from weightctl.split import Grid
from weightctl.write.gathering import gather
from weightctl.write.save import save
from weightctl.write.shard import save_shards

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

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
