"""The files for vLLM's sharded-state loader: its names, its shapes, its padding."""

from __future__ import annotations

import json
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from cut_models import (
    ATTENTION,
    STATES,
    gguf_llama,
    model,
    planned,
    saved,
    stack_experts,
    stated,
    with_names,
)
from each import each
from sharded_files import contents_of, shard_bytes, write_shards
from tiny import arrays_of, make_small
from weightctl import open_weights
from weightctl.errors import ArchitectureError, ShardingError
from weightctl.formats.sharded.manifest import read_manifest
from weightctl.sharding.plan_file import CutRules
from weightctl.sharding.planning import shard_plan
from weightctl.sharding.vllm_names import VLLM_FAMILIES
from weightctl.split import Grid
from weightctl.write.gathering import gather
from weightctl.write.shard import save_shards

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from weightctl import Weights
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


# What vLLM's layout cannot express is refused, with a remedy.


UNEVEN: Mapping[str, tuple[str, dict[str, Any], int, str, str, str]] = {
    "heads": (
        "llama",
        {"vocab_size": 192},
        3,
        f"{ATTENTION}.q_proj.weight",
        "4 query heads cannot be divided evenly",
        "1, 2 or 4 ranks work",
    ),
    "keys": (
        "llama",
        {"num_attention_heads": 12, "num_key_value_heads": 4, "hidden_size": 96, "vocab_size": 192},
        6,
        f"{ATTENTION}.k_proj.weight",
        "the number of KV heads, 4, is neither a multiple nor a divisor of the number of ranks",
        "1, 2, 4 or 12 ranks work",
    ),
    "vocabulary": (
        "llama",
        {},
        3,
        "model.embed_tokens.weight",
        "96 rows, padded to 128 (a multiple of 64), cannot be divided evenly",
        "1, 2 or 4 ranks work",
    ),
    "inner": (
        "llama",
        {"intermediate_size": 90},
        4,
        "model.layers.0.mlp.gate_proj.weight",
        "90 elements cannot be divided evenly",
        "1 or 2 ranks work",
    ),
    "experts": (
        "qwen3moe",
        {"num_attention_heads": 8, "num_experts": 4},
        8,
        "model.layers.0.mlp.experts.0.gate_proj.weight",
        "the model has only 4 experts",
        "1, 2 or 4 ranks work",
    ),
}


@each("case", UNEVEN)
def test_what_does_not_divide_is_refused_with_the_counts_that_work(
    case: str, tmp_path: Path
) -> None:
    family, changes, ranks, name, problem, works = UNEVEN[case]
    with pytest.raises(ShardingError) as caught:
        planned(tmp_path, family, ranks, **changes)
    assert f"`{name}`" in caught.value.message
    assert caught.value.message.endswith(f"among {ranks} ranks: {problem}")
    assert caught.value.hint == (
        f'{works}; other numbers of ranks need --layout ranks (layout="ranks" in Python)'
    )


def refused(weights: Weights, grid: Grid | None = None, **changes: Any) -> str:
    with pytest.raises(ShardingError) as caught:
        shard_plan(weights, grid or Grid(2), layout="vllm", **changes)
    assert caught.value.hint
    return caught.value.message


def test_a_gguf_is_refused() -> None:
    assert "is a GGUF file, whose tensor names and row order differ" in refused(gguf_llama())


def test_gpt2_whose_matrices_would_have_to_be_turned_is_refused(tmp_path: Path) -> None:
    made = make_small("gpt2")
    weights = saved(tmp_path, arrays_of(made), made.document)
    assert "vLLM expects its matrices transposed" in refused(weights)


def llama(folder: Path, **changes: Any) -> Weights:
    arrays, config = model("llama")
    return saved(folder, arrays, config | changes)


@each(
    "grid, changes, problem",
    [
        (
            Grid(2, pp=1),
            {"format_name": "gguf"},
            ("vLLM reads sharded checkpoints only from safetensors, not from gguf"),
        ),
        (Grid(1, pp=2), {}, "the vLLM layout does not support pipeline stages"),
        (
            Grid(2),
            {"rules": CutRules("", ())},
            ("the vLLM layout is fixed and does not use a plan file"),
        ),
    ],
)
def test_what_the_layout_is_not_built_for_is_refused(
    grid: Grid, changes: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    arrays, config = model("llama", num_hidden_layers=2)
    assert problem in refused(saved(tmp_path, arrays, config), grid, **changes)


def test_experts_are_not_shared_out_among_ranks(tmp_path: Path) -> None:
    arrays, config = model("mixtral")
    problem = refused(saved(tmp_path, arrays, config), Grid(1, ep=2))
    assert problem == "the vLLM layout does not support expert parallelism"


@each(
    "changes, problem",
    [
        ({"architectures": ["LlamaForSequenceClassification"]}, "states the `architectures`"),
        ({"architectures": None}, "states the `architectures` None, but vLLM's layout of"),
        ({"architectures": "LlamaForCausalLM"}, "states the `architectures`"),
        ({"quantization_config": {"quant_method": "fp8"}}, "has a `quantization_config`"),
        ({"vocab_size": 90}, "`lm_head.weight` has 96 rows, but vLLM expects"),
    ],
)
def test_a_config_of_another_model_is_refused(
    changes: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    message = refused(llama(tmp_path, **changes))
    assert problem.replace("lm_head", "model.embed_tokens") in message


def encoded(folder: Path, encoding: str, **others: str) -> Weights:
    """Return a llama of which there is a header alone, in an encoding but for some tensors."""
    arrays, config = model("llama")
    tensors = {name: (each.shape, others.get(name.split(".")[-2], encoding))
               for name, each in arrays.items()}  # fmt: skip
    return stated(tensors, directory=folder, config=config)


def test_numbers_that_vllm_does_not_compute_in_are_refused(tmp_path: Path) -> None:
    problem = refused(encoded(tmp_path, "F64"))
    assert problem == (
        "`model.embed_tokens.weight` is stored as F64, but vLLM computes in F32, F16, BF16"
    )


def test_a_quantized_weight_is_refused(tmp_path: Path) -> None:
    arrays, config = model("llama")
    tensors = {name: (each.shape, "F8_E4M3" if "_proj" in name else "BF16")
               for name, each in arrays.items()}  # fmt: skip
    scales = {f"{name}_scale": ((1,), "F32") for name in arrays if "_proj" in name}
    problem = refused(stated(tensors | scales, directory=tmp_path, config=config))
    assert (
        "is a part of a quantized weight: the vLLM layout does not support quantized weights"
    ) in problem


def test_parts_of_one_tensor_are_of_one_encoding(tmp_path: Path) -> None:
    assert refused(encoded(tmp_path, "BF16", k_proj="F32")) == (
        f"`{ATTENTION}.q_proj.weight` is stored as BF16 and `{ATTENTION}.k_proj.weight` "
        f"as F32, but vLLM joins them into one tensor, `{ATTENTION}.qkv_proj.weight`"
    )


def test_norms_may_be_of_another_encoding(tmp_path: Path) -> None:
    plan = shard_plan(encoded(tmp_path, "BF16", norm="F32"), Grid(2), layout="vllm")
    kinds = {shard.info.name: shard.info.encoding.name for shard in plan.ranks[0]}
    assert kinds["model.norm.weight"] == "F32"


def test_a_bias_that_vllm_would_not_add_is_refused(tmp_path: Path) -> None:
    arrays, config = model("qwen3", attention_bias=True)
    problem = refused(saved(tmp_path, arrays, config))
    assert problem == (
        f"vLLM 0.33.0 does not have `{ATTENTION}.o_proj.bias` and would compute without it"
    )


def test_one_tensor_that_the_config_says_are_two_is_refused(tmp_path: Path) -> None:
    arrays, config = model("llama")
    tensors = {name: (each.shape, "F32") for name, each in arrays.items()}
    del tensors["lm_head.weight"]
    weights = stated(tensors, directory=tmp_path, config=config)
    aliases = {"lm_head.weight": "model.embed_tokens.weight"}
    problem = refused(with_names(weights, aliases))
    assert problem == (
        "`model.embed_tokens.weight` is used in two places of the model, but the config "
        "does not state that they are tied"
    )


def test_a_checkpoint_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    arrays, config = model("llama")
    del arrays[f"{ATTENTION}.k_proj.weight"]
    with pytest.raises(ArchitectureError, match=r"k_proj\.weight` is missing"):
        shard_plan(saved(tmp_path, arrays, config), Grid(2), layout="vllm")


def test_a_bias_that_the_config_does_not_know_is_refused(tmp_path: Path) -> None:
    arrays, config = model("llama")
    arrays[f"{ATTENTION}.q_proj.bias"] = np.zeros(64, np.float32)
    with pytest.raises(
        ArchitectureError,
        match=r"`model\.layers\.0\.self_attn\.q_proj\.bias` is not a part of llama",
    ):
        shard_plan(saved(tmp_path, arrays, config), Grid(2), layout="vllm")
