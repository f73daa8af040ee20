"""Ranks of Megatron-LM, which are made from a model of Hugging Face, are joined to this model."""

from __future__ import annotations

import argparse
import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from lazy import distributed_checkpoint, torch
from weightctl import convert, open_weights
from weightctl.errors import FormatError

if TYPE_CHECKING:
    from pathlib import Path

    from weightctl.weights.tree import Checkpoint

Tensors = dict[str, torch.Tensor]
# The number of an expert in a name.
EXPERT = r"(?<=local_experts\.)\d+|(?<=experts\.linear_fc[12]\.weight)\d+"
JOINED = "the tensors of {} ranks of Megatron-LM are joined, with the names of Hugging Face"
HIDDEN, HEADS, GROUPS, SIZE, FFN, VOCABULARY, PADDED, LAYERS = 12, 4, 2, 6, 8, 10, 16, 4


def arguments(**changes: Any) -> dict[str, Any]:
    """Return the arguments that Megatron stores for the model of this test."""
    return {
        "num_layers": LAYERS, "hidden_size": HIDDEN, "num_attention_heads": HEADS,
        "group_query_attention": True, "num_query_groups": GROUPS, "kv_channels": SIZE,
        "ffn_hidden_size": FFN, "swiglu": True, "normalization": "RMSNorm", "num_experts": None,
        "untie_embeddings_and_output_weights": True, "tensor_model_parallel_size": 1,
        "pipeline_model_parallel_size": 1, "position_embedding_type": "rope",
        "vocab_size": VOCABULARY, "padded_vocab_size": PADDED, **changes,
    }  # fmt: skip


def make_model(*, experts: int = 0, is_qwen: bool = False, is_tied: bool = False) -> Tensors:
    """Return a model with the names of Hugging Face and random values."""
    torch.manual_seed(31)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        for letter, heads in (("q", HEADS), ("k", GROUPS), ("v", GROUPS)):
            shapes[f"{prefix}self_attn.{letter}_proj.weight"] = (heads * SIZE, HIDDEN)
            if is_qwen:
                shapes[f"{prefix}self_attn.{letter}_proj.bias"] = (heads * SIZE,)
                if letter != "v":
                    shapes[f"{prefix}self_attn.{letter}_norm.weight"] = (SIZE,)
        shapes[f"{prefix}self_attn.o_proj.weight"] = (HIDDEN, HEADS * SIZE)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{prefix}{norm}.weight"] = (HIDDEN,)
        for gate, up, down in mlps(prefix, experts, is_qwen=is_qwen):
            shapes |= {gate: (FFN, HIDDEN), up: (FFN, HIDDEN), down: (HIDDEN, FFN)}
        if experts:
            router = "mlp.gate.weight" if is_qwen else "block_sparse_moe.gate.weight"
            shapes[prefix + router] = (experts, HIDDEN)
    shapes["model.norm.weight"] = (HIDDEN,)
    if not is_tied:
        shapes["lm_head.weight"] = (VOCABULARY, HIDDEN)
    return {name: torch.randn(shape).to(torch.bfloat16) for name, shape in shapes.items()}


def mlps(prefix: str, experts: int, *, is_qwen: bool) -> list[list[str]]:
    """Return the names of the gate, up and down projections of each MLP."""
    if not experts:
        return [[f"{prefix}mlp.{each}_proj.weight" for each in ("gate", "up", "down")]]
    if is_qwen:
        return [[f"{prefix}mlp.experts.{n}.{each}_proj.weight" for each in ("gate", "up", "down")]
                for n in range(experts)]  # fmt: skip
    return [[f"{prefix}block_sparse_moe.experts.{n}.{each}.weight" for each in ("w1", "w3", "w2")]
            for n in range(experts)]  # fmt: skip


def rank_of(  # noqa: C901  # one table of all tensors
    model: Tensors, rank: int, ranks: int, *, experts: int = 0, is_local: bool = False
) -> Tensors:
    """Return the tensors of a tensor-parallel rank with Megatron's names, for all layers."""
    made: Tensors = {}

    def rows(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.chunk(ranks)[rank]

    def columns(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.chunk(ranks, 1)[rank]

    def pad(tensor: torch.Tensor) -> torch.Tensor:
        return torch.cat([tensor, torch.ones(PADDED - VOCABULARY, HIDDEN, dtype=tensor.dtype)])

    made["embedding.word_embeddings.weight"] = rows(pad(model["model.embed_tokens.weight"]))
    is_qwen = "model.layers.0.self_attn.q_norm.weight" in model
    for layer in range(LAYERS):
        hf, own = f"model.layers.{layer}.", f"decoder.layers.{layer}."
        attention = hf + "self_attn."
        for kind in ("weight", "bias") if is_qwen else ("weight",):
            groups = [
                torch.cat([
                    model[f"{attention}q_proj.{kind}"].chunk(GROUPS)[group],
                    model[f"{attention}k_proj.{kind}"].chunk(GROUPS)[group],
                    model[f"{attention}v_proj.{kind}"].chunk(GROUPS)[group],
                ]) for group in range(GROUPS)
            ]  # fmt: skip
            made[f"{own}self_attention.linear_qkv.{kind}"] = rows(torch.cat(groups))
        output = model[f"{attention}o_proj.weight"]
        made[f"{own}self_attention.linear_proj.weight"] = columns(output)
        norms = ("input_layernorm.weight", "pre_mlp_layernorm.weight")
        if not is_local:
            fc1 = "pre_mlp_layernorm.weight" if experts else "mlp.linear_fc1.layer_norm_weight"
            norms = ("self_attention.linear_qkv.layer_norm_weight", fc1)
        made[own + norms[0]] = model[f"{hf}input_layernorm.weight"]
        made[own + norms[1]] = model[f"{hf}post_attention_layernorm.weight"]
        if is_qwen:
            for letter in "qk":
                made[f"{own}self_attention.{letter}_layernorm.weight"] = model[
                    f"{attention}{letter}_norm.weight"
                ]
        if experts:
            router = "mlp.gate.weight" if is_qwen else "block_sparse_moe.gate.weight"
            made[f"{own}mlp.router.weight"] = model[hf + router]
        for number, (gate, up, down) in enumerate(mlps(hf, experts, is_qwen=is_qwen)):
            first, second = "mlp.linear_fc1.weight", "mlp.linear_fc2.weight"
            if experts and is_local:
                first, second = (f"mlp.experts.local_experts.{number}.linear_fc{n}.weight"
                                 for n in (1, 2))  # fmt: skip
            elif experts:
                first, second = (f"mlp.experts.linear_fc{n}.weight{number}" for n in (1, 2))
            made[own + first] = torch.cat([rows(model[gate]), rows(model[up])])
            made[own + second] = columns(model[down])
        made[f"{own}self_attention.core_attention._extra_state"] = torch.zeros(0, dtype=torch.uint8)
    made["decoder.final_layernorm.weight"] = model["model.norm.weight"]
    if "lm_head.weight" in model:
        made["output_layer.weight"] = rows(pad(model["lm_head.weight"]))
    return {name: tensor.clone() for name, tensor in made.items()}


def stage_of(rank: Tensors, first: int, count: int) -> Tensors:
    """Return the tensors of the layers from `first` on, with the numbers of a pipeline stage."""
    stage: Tensors = {}
    for name, tensor in rank.items():
        if name.startswith("decoder.layers."):
            layer, _, own = name.removeprefix("decoder.layers.").partition(".")
            if first <= int(layer) < first + count:
                stage[f"decoder.layers.{int(layer) - first}.{own}"] = tensor
        elif (name.startswith("embedding") and first == 0) or (
            not name.startswith("embedding") and first + count == LAYERS
        ):
            stage[name] = tensor
    return stage


def save(folder: Path, model: Tensors, args: dict[str, Any] | None, **options: Any) -> None:
    """Write a classic checkpoint; `args` state the number of ranks."""
    stated = args or arguments()
    ranks, stages = stated["tensor_model_parallel_size"], stated["pipeline_model_parallel_size"]
    virtual = options.pop("virtual", 1)
    count = LAYERS // stages // virtual
    for rank in range(ranks):
        whole = rank_of(model, rank, ranks, **options)
        for stage in range(stages):
            name = f"mp_rank_{rank:02d}" + (f"_{stage:03d}" if stages > 1 else "")
            (folder / name).mkdir(parents=True)
            saved: dict[str, Any] = {"checkpoint_version": 3.0, "iteration": 7}
            for number in range(virtual):
                key = "model" if virtual == 1 else f"model{number}"
                saved[key] = stage_of(whole, (number * stages + stage) * count, count)
            if args is not None:
                saved["args"] = argparse.Namespace(**args)
            torch.save(saved, folder / name / "model_optim_rng.pt")


def assert_equal(tree: Checkpoint, model: Tensors) -> None:
    """Compare all values with those of a model."""
    assert {*tree.header.tensors} == {*model}
    for name, tensor in model.items():
        values = np.asarray(tree[name]).view(np.int16)
        np.testing.assert_array_equal(values, tensor.view(torch.int16).numpy(), err_msg=name)


@pytest.mark.parametrize(
    ("ranks", "stages", "virtual"), [(1, 1, 1), (2, 1, 1), (2, 2, 2), (1, 4, 1)]
)
def test_tensor_and_pipeline_ranks_are_joined(
    ranks: int, stages: int, virtual: int, tmp_path: Path
) -> None:
    model = make_model()
    args = arguments(tensor_model_parallel_size=ranks, pipeline_model_parallel_size=stages)
    save(tmp_path / "iter_0000007", model, args, virtual=virtual)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("7")
    tree = open_weights(tmp_path)
    assert_equal(tree, model)
    assert tree.header.notes == (JOINED.format(ranks * stages),)
    convert(tmp_path, tmp_path / "out.safetensors")
    assert_equal(open_weights(tmp_path / "out.safetensors"), model)


def test_a_config_beside_the_ranks_leads_to_the_names_of_gguf(tmp_path: Path) -> None:
    save(tmp_path / "in", make_model(), arguments())
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": HIDDEN,
        "num_attention_heads": HEADS, "num_key_value_heads": GROUPS, "head_dim": SIZE,
        "intermediate_size": FFN, "num_hidden_layers": LAYERS, "vocab_size": VOCABULARY,
        "rms_norm_eps": 1e-5, "max_position_embeddings": 64, "tie_word_embeddings": False,
    }  # fmt: skip
    (tmp_path / "in" / "config.json").write_text(json.dumps(config))
    convert(tmp_path / "in", tmp_path / "out.gguf")
    assert "blk.3.attn_q.weight" in open_weights(tmp_path / "out.gguf").header.tensors
    convert(tmp_path / "in", f"{tmp_path}/out/")
    assert (tmp_path / "out" / "config.json").exists()


@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize("is_qwen", [False, True])
@pytest.mark.parametrize("experts", [0, 3])
def test_families_have_the_names_of_hugging_face(
    experts: int, is_qwen: bool, is_local: bool, tmp_path: Path
) -> None:
    model = make_model(experts=experts, is_qwen=is_qwen, is_tied=is_qwen)
    args = arguments(
        tensor_model_parallel_size=2, num_experts=experts or None,
        untie_embeddings_and_output_weights=not is_qwen,
    )  # fmt: skip
    save(tmp_path, model, args, experts=experts, is_local=is_local)
    assert_equal(open_weights(tmp_path), model)


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("is_local", [False, True])
def test_expert_parallel_ranks_are_joined(stages: int, is_local: bool, tmp_path: Path) -> None:
    model = make_model(experts=4)
    args = arguments(
        num_experts=4, expert_model_parallel_size=2, tensor_model_parallel_size=2,
        pipeline_model_parallel_size=stages,
    )  # fmt: skip
    save(tmp_path, model, args, experts=4, is_local=is_local)
    for folder in [*tmp_path.iterdir()]:
        saved = torch.load(folder / "model_optim_rng.pt", weights_only=False)
        whole = saved["model"]
        for rank in range(2):
            saved["model"] = {
                re.sub(EXPERT, str(int(found[0]) - 2 * rank), name) if found else name: tensor
                for name, tensor in whole.items()
                if (found := re.search(EXPERT, name)) is None or int(found[0]) // 2 == rank
            }
            (tmp_path / f"{folder.name}_{rank:03d}").mkdir()
            torch.save(saved, tmp_path / f"{folder.name}_{rank:03d}" / "model_optim_rng.pt")
        (folder / "model_optim_rng.pt").unlink()
        folder.rmdir()
    assert_equal(open_weights(tmp_path), model)


def test_missing_arguments_are_named(tmp_path: Path) -> None:
    save(tmp_path / "none", make_model(), None)
    with pytest.raises(FormatError, match="it stores no arguments") as raised:
        open_weights(tmp_path / "none")
    assert "--no-save-args" in raised.value.hint
    args = arguments()
    del args["num_query_groups"], args["swiglu"]
    save(tmp_path / "some", make_model(), args)
    with pytest.raises(FormatError, match="do not state `num_query_groups`, `swiglu`"):
        open_weights(tmp_path / "some")


def test_a_missing_rank_and_shapes_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    args = arguments(tensor_model_parallel_size=2)
    save(tmp_path / "a", make_model(), args)
    (tmp_path / "a" / "mp_rank_01" / "model_optim_rng.pt").rename(tmp_path / "moved")
    (tmp_path / "a" / "mp_rank_01").rmdir()
    with pytest.raises(FormatError, match="1 of 2 ranks of the checkpoint are missing: mp_rank_01"):
        open_weights(tmp_path / "a")
    save(tmp_path / "b", make_model(), args | {"num_query_groups": 4})
    with pytest.raises(FormatError, match="does not fit 4 heads, 4 groups of 6 channels"):
        open_weights(tmp_path / "b")
    save(tmp_path / "c", make_model(), args | {"num_layers": 5})
    with pytest.raises(FormatError, match=r"`model\.layers\.4\.input_layernorm\.weight`: no rank"):
        open_weights(tmp_path / "c")


@pytest.mark.parametrize("name", ["num_layers", "tensor_model_parallel_size", "num_experts"])
def test_huge_arguments_are_refused(name: str, tmp_path: Path) -> None:
    args = arguments(num_experts=2)
    save(tmp_path, make_model(experts=2), args, experts=2)
    path = tmp_path / "mp_rank_00" / "model_optim_rng.pt"
    saved = torch.load(path, weights_only=False)
    setattr(saved["args"], name, 1 << 31)
    torch.save(saved, path)
    with pytest.raises(FormatError, match=r"no rank has it|too many ranks"):
        open_weights(tmp_path)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"swiglu": False}, "its MLP is not gated"),
        ({"normalization": "LayerNorm"}, "`normalization` is LayerNorm"),
        ({"apply_layernorm_1p": True}, "`apply_layernorm_1p` is set"),
    ],
)
def test_ranks_of_other_models_are_listed(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    save(tmp_path, make_model(), arguments(**changes))
    header = open_weights(tmp_path).header
    assert "mp_rank_00.model.decoder.final_layernorm.weight" in header.tensors
    assert reason in header.notes[0]


def test_an_unknown_tensor_keeps_the_ranks_apart(tmp_path: Path) -> None:
    model = make_model()
    save(tmp_path, model, arguments())
    path = tmp_path / "mp_rank_00" / "model_optim_rng.pt"
    saved = torch.load(path, weights_only=False)
    saved["model"]["decoder.layers.1.mlp.linear_fc2.bias"] = torch.zeros(HIDDEN)
    torch.save(saved, path)
    note = open_weights(tmp_path).header.notes[0]
    assert note.endswith("`mlp.linear_fc2.bias` is not a tensor of a supported family")


def save_core(folder: Path, model: Tensors, args: dict[str, Any], experts: int = 0) -> None:
    """Write a checkpoint as `torch_dist`: the layers are the first axis of each tensor."""
    whole = rank_of(model, 0, 1, experts=experts)
    stacked: Tensors = {"optimizer.state.exp_avg.output_layer.weight": torch.zeros(3)}
    for name, tensor in whole.items():
        if not name.startswith("decoder.layers.0."):
            if not name.startswith("decoder.layers."):
                stacked[name] = tensor
            continue
        own = name.removeprefix("decoder.layers.0.")
        layers = [whole[f"decoder.layers.{layer}.{own}"] for layer in range(LAYERS)]
        stacked[f"decoder.layers.{own}"] = torch.stack(layers)
    for matrix in (1, 2) if experts else ():
        own = f"decoder.layers.mlp.experts.linear_fc{matrix}.weight"
        parts = [stacked.pop(f"{own}{number}") for number in range(experts)]
        stacked[f"decoder.layers.mlp.experts.experts.linear_fc{matrix}.weight"] = torch.stack(
            parts, 1
        )
    distributed_checkpoint.save(stacked, checkpoint_id=folder, no_dist=True)
    torch.save({"args": argparse.Namespace(**args), "iteration": 7}, folder / "common.pt")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("experts", [0, 3])
def test_tensors_of_torch_dist_get_the_names_of_hugging_face(experts: int, tmp_path: Path) -> None:
    model = make_model(experts=experts)
    save_core(tmp_path, model, arguments(num_experts=experts or None), experts)
    tree = open_weights(tmp_path)
    assert_equal(tree, model)
    assert tree.header.notes[-1].endswith(
        "other tensors (1), such as the optimizer's, are left out"
    )


@pytest.mark.filterwarnings("ignore")
def test_torch_dist_without_arguments_keeps_its_names(tmp_path: Path) -> None:
    args = arguments()
    del args["num_layers"]
    save_core(tmp_path, make_model(), args)
    header = open_weights(tmp_path).header
    assert "decoder.layers.self_attention.linear_qkv.weight" in header.tensors
    assert "do not state `num_layers`" in header.notes[-1]
