"""The files for vLLM's sharded-state loader: its names, its shapes, its padding."""

from __future__ import annotations

import json
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from cut_models import ATTENTION, STATES, model, planned, saved, stack_experts
from each import each
from sharded_files import contents_of, shard_bytes, write_shards
from weightctl import open_weights
from weightctl.formats.sharded.manifest import read_manifest
from weightctl.sharding.planning import shard_plan
from weightctl.sharding.vllm_names import VLLM_FAMILIES
from weightctl.split import Grid
from weightctl.write.gathering import gather
from weightctl.write.shard import save_shards

if TYPE_CHECKING:
    from pathlib import Path

    from weightctl.sharding.plan import ShardPlan

EXPERTS = "model.layers.0.block_sparse_moe.experts.routed_experts"


def numbers(plan: ShardPlan, rank: int, name: str) -> np.ndarray[Any, Any]:
    """Return a tensor of a rank."""
    shard = next(each for each in plan.ranks[rank] if each.info.name == name)
    return np.frombuffer(shard_bytes(plan.source, shard), np.float32).reshape(shard.info.shape)


def source(plan: ShardPlan, name: str) -> np.ndarray[Any, Any]:
    """Return a tensor of the input."""
    info = plan.source.header.tensors[name]
    raw = bytearray(info.nbytes)
    plan.source.read_into(name, 0, memoryview(raw))
    return np.frombuffer(raw, np.float32).reshape(info.shape)


@each("rank", [0, 1])
@each("family", STATES)
def test_a_rank_has_just_the_tensors_of_vllms_model(family: str, rank: int, tmp_path: Path) -> None:
    plan = planned(tmp_path, family)
    found = {
        shard.info.name: (shard.info.shape, shard.info.encoding.name) for shard in plan.ranks[rank]
    }
    assert found == {
        name: (shape, "I64" if name.endswith("position_ids") else "F32")
        for name, shape in STATES[family].items()
    }


def test_all_families_of_the_table_are_tested() -> None:
    assert {*STATES} == {*VLLM_FAMILIES}


@each("family, ranks", [*product(STATES, (1, 2, 4))])
def test_what_is_written_opens_as_what_it_was(family: str, ranks: int, tmp_path: Path) -> None:
    plan = planned(tmp_path, family, ranks)
    expected = contents_of(tmp_path / "in")
    if family == "bert":
        expected = {name: each for name, each in expected.items() if "pooler" not in name}
    out = write_shards(plan, tmp_path / "out")
    assert contents_of(out) == expected
    assert read_manifest(str(out / "manifest.json")).shardings == plan.shardings


def test_queries_keys_and_values_follow_one_another(tmp_path: Path) -> None:
    plan = planned(tmp_path, "qwen2")
    for kind in ("weight", "bias"):
        own = [source(plan, f"{ATTENTION}.{each}_proj.{kind}") for each in "qkv"]
        for rank in (0, 1):
            expected = np.concatenate([np.split(each, 2)[rank] for each in own])
            assert np.array_equal(numbers(plan, rank, f"{ATTENTION}.qkv_proj.{kind}"), expected)


def test_ranks_share_heads_of_keys_and_values_where_there_are_fewer(tmp_path: Path) -> None:
    plan = planned(tmp_path, "llama", 4)
    keys = source(plan, f"{ATTENTION}.k_proj.weight")
    for rank in range(4):
        found = numbers(plan, rank, f"{ATTENTION}.qkv_proj.weight")
        assert np.array_equal(found[16:32], keys[16 * (rank // 2) :][:16])


def test_the_rows_of_a_fused_tensor_are_cut_by_heads(tmp_path: Path) -> None:
    plan = planned(tmp_path, "phi3")
    whole = source(plan, f"{ATTENTION}.qkv_proj.weight")
    found = numbers(plan, 1, f"{ATTENTION}.qkv_proj.weight")
    assert np.array_equal(found, np.concatenate([whole[32:64], whole[80:96], whole[112:128]]))


@each("form", ["alone", "stacked"])
def test_all_experts_of_a_layer_are_stacked(form: str, tmp_path: Path) -> None:
    arrays, config = model("mixtral")
    stacked = stack_experts(arrays)
    weights = saved(tmp_path, arrays if form == "alone" else stacked, config)
    plan = shard_plan(weights, Grid(2), layout="vllm")
    gate, up = np.split(stacked["model.layers.0.mlp.experts.gate_up_proj"], 2, axis=1)
    down = stacked["model.layers.0.mlp.experts.down_proj"]
    wide = np.concatenate([gate[:, 48:], up[:, 48:]], axis=1)
    assert np.array_equal(numbers(plan, 1, f"{EXPERTS}.w13_weight"), wide)
    assert np.array_equal(numbers(plan, 1, f"{EXPERTS}.w2_weight"), down[:, :, 48:])


def test_zeros_stand_behind_the_last_token(tmp_path: Path) -> None:
    plan = planned(tmp_path, "llama")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        whole = source(plan, name)  # 96 tokens: 128 rows in all
        assert np.array_equal(numbers(plan, 0, name), whole[:64])
        assert np.array_equal(numbers(plan, 1, name), np.pad(whole[64:], ((0, 32), (0, 0))))


def test_a_rank_may_have_nothing_but_padding(tmp_path: Path) -> None:
    plan = planned(tmp_path, "llama", 4)
    name = "model.embed_tokens.weight"
    assert plan.shardings[name].parts[3] is None
    assert not numbers(plan, 3, name).any()
    assert numbers(plan, 3, name).shape == (32, 64)


def test_a_tied_embedding_goes_by_the_name_that_vllm_keeps(tmp_path: Path) -> None:
    named = {
        family: {shard.info.name for shard in planned(tmp_path / family, family).ranks[0]}
        & {"lm_head.weight", "model.embed_tokens.weight"}
        for family in ("gemma2", "gemma3")
    }
    assert named == {"gemma2": {"model.embed_tokens.weight"}, "gemma3": {"lm_head.weight"}}


def test_a_copy_of_a_tied_embedding_is_left_out(tmp_path: Path) -> None:
    arrays, config = model("llama")
    arrays["lm_head.weight"] = arrays["model.embed_tokens.weight"]
    weights = saved(tmp_path, arrays, config | {"tie_word_embeddings": True})
    plan = shard_plan(weights, Grid(2), layout="vllm")
    assert "lm_head.weight" not in plan.shardings
    assert [
        piece.source
        for shard in plan.ranks[0]
        for piece in shard.pieces
        if shard.info.name == "lm_head.weight"
    ] == ["model.embed_tokens.weight"]


def test_what_vllm_sets_itself_is_zeros(tmp_path: Path) -> None:
    plan = planned(tmp_path, "bert")
    scales = [shard for shard in plan.ranks[1] if shard.info.name.endswith("_scale")]
    assert len(scales) == 4
    assert all(shard_bytes(plan.source, shard) == bytes(4) for shard in scales)


def test_position_ids_stay_where_the_checkpoint_has_them(tmp_path: Path) -> None:
    arrays, config = model("bert")
    own = {"embeddings.position_ids": np.arange(64).reshape(1, 64)}
    plan = shard_plan(saved(tmp_path / "in", arrays | own, config), Grid(2), layout="vllm")
    name = "model.embeddings.position_ids"
    shard = next(each for each in plan.ranks[1] if each.info.name == name)
    assert [*np.frombuffer(shard_bytes(plan.source, shard), np.int64)] == [*range(64)]
    assert "embeddings.position_ids" in contents_of(write_shards(plan, tmp_path / "out"))


def test_what_vllm_has_no_place_for_is_reported(tmp_path: Path) -> None:
    arrays, config = model("bert")
    pooler = {"pooler.dense.weight": np.zeros((64, 64)), "pooler.dense.bias": np.zeros(64)}
    weights = saved(tmp_path / "in", arrays | pooler, config)
    plan = shard_plan(weights, Grid(2), layout="vllm")
    (problem,) = plan.notes
    assert problem == (
        "2 tensors are not written, because vLLM's model does not have them: "
        "pooler.dense.bias, pooler.dense.weight"
    )
    assert not any("pooler" in shard.info.name for shard in plan.ranks[0])
    assert not any("pooler" in name for name in plan.shardings)


@each("family", ["llama", "mixtral", "gemma3"])
def test_files_have_the_names_that_vllm_looks_for(family: str, tmp_path: Path) -> None:
    plan = planned(tmp_path, family, 4)
    save_shards(plan, tmp_path / "out")
    files = [f"model-rank-{rank}-part-0.safetensors" for rank in range(4)]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "config.json", "manifest.json", *files
    ]  # fmt: skip
    plain = write_shards(plan, tmp_path / "plain")
    assert all(contents_of(tmp_path / "out" / name) == contents_of(plain / name) for name in files)
    gather(tmp_path / "out", tmp_path / "whole")
    assert contents_of(tmp_path / "whole") == contents_of(tmp_path / "in")


def test_the_config_that_is_written_is_that_of_the_input(tmp_path: Path) -> None:
    save_shards(planned(tmp_path, "llama"), tmp_path / "out")
    made, given = ((tmp_path / name / "config.json").read_text() for name in ("out", "in"))
    assert json.loads(made) == json.loads(given)
    assert open_weights(tmp_path / "out").header.format == "safetensors"
