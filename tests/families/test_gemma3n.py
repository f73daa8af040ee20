"""Gemma 3n with other sizes than llama.cpp has, and the text model of a multimodal checkpoint."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Gemma3nForCausalLM, Gemma3nTextConfig

from each import each
from family_cases import run_transformers
from runs import executed
from weightctl import convert, open_weights, shard
from weightctl.device import CPU
from weightctl.errors import ArchitectureError
from weightctl.families import recognize
from weightctl.nn.across_ranks import parallel
from weightctl.nn.models import build_network
from weightctl.split import Grid

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

TOKENS = [3, 90, 17, 95, 4, 61, 88, 5, 20, 7]
LOCAL, GLOBAL = "sliding_attention", "full_attention"
SIZES: dict[str, Any] = {
    "vocab_size": 100, "vocab_size_per_layer_input": 80, "hidden_size": 32, "num_hidden_layers": 5,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 4,
    "layer_types": [LOCAL, GLOBAL, LOCAL, LOCAL, GLOBAL], "max_position_embeddings": 64,
}  # fmt: skip
# What llama.cpp has one value of.
OTHER: dict[str, Any] = {
    "altup_num_inputs": 3, "altup_active_idx": 1, "laurel_rank": 12,
    "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 2,
    "intermediate_size": [48, 32, 64, 64, 32],
    "activation_sparsity_pattern": [0.9, 0.5, 0.0, 0.8, 0.0],
}  # fmt: skip
USUAL: dict[str, Any] = {
    "num_kv_shared_layers": 0, "intermediate_size": 64, "activation_sparsity_pattern": [0.95] * 5,
}  # fmt: skip


def make(path: Path, **stated: Any) -> NDArray[np.float32]:
    """Write a checkpoint, in which some tokens have no embeddings for layers; return its logits."""
    config = Gemma3nTextConfig(**SIZES | stated)
    torch.manual_seed(0)
    model = Gemma3nForCausalLM._from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            if parameter.dim() > 1:
                parameter.copy_(noise / parameter.shape[-1] ** 0.5)
            else:
                parameter.copy_((1.0 if name.endswith("norm.weight") else 0.0) + 0.2 * noise)
    model.save_pretrained(path)
    return run_transformers(model, TOKENS)


def run(path: Path, grid: Grid | None = None) -> NDArray[np.float32]:
    found = recognize(open_weights(path))
    network = build_network(found)
    if grid is not None:
        network = parallel(network, [CPU] * grid.ranks, grid=grid)
    (output,) = executed(network.graph(), np.array([TOKENS]), weights=found.weights)
    logits: NDArray[np.float32] = output[0]
    return logits


@each("grid", [None, Grid(2)])
def test_sizes_that_llama_cpp_does_not_have_are_computed_as_transformers_does(
    grid: Grid | None, tmp_path: Path
) -> None:
    expected = make(tmp_path / "model", **OTHER)
    assert np.abs(run(tmp_path / "model", grid) - expected).max() < 1e-4


@each(
    "stated, reason",
    [
        (OTHER, "its `laurel_rank` is 12, and llama.cpp has only 64"),
        (USUAL | {"hidden_size_per_layer_input": 8}, "its `layer_input` is 8"),
        (USUAL | {"altup_active_idx": 1}, "its `active_stream` is 1"),
        (USUAL | {"final_logit_softcapping": 20.0}, "its `softcap` is 20.0"),
        (USUAL | {"activation_sparsity_pattern": [0.0] * 5}, "the sparsity of its activations"),
        (USUAL | {"intermediate_size": [64, 64, 32, 32, 32]}, "MLPs of different widths"),
        (USUAL | {"num_kv_shared_layers": 2}, "in llama.cpp 0 of 5 do"),
    ],
)
def test_what_llama_cpp_would_compute_otherwise_is_not_converted(
    stated: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    make(tmp_path / "model", **stated)
    with pytest.raises(ArchitectureError) as caught:
        convert(tmp_path / "model", tmp_path / "model.gguf", to="gguf")
    assert reason in str(caught.value)


def test_projections_between_streams_are_in_the_stages_that_read_them(tmp_path: Path) -> None:
    make(tmp_path / "model", **OTHER)
    shard(tmp_path / "model", tmp_path / "ranks", pp=2)
    stages = [
        " ".join(name for name, _ in open_weights(tmp_path / "ranks" / f"rank-{rank}").items())
        for rank in range(2)
    ]
    for part, stage in (("altup_projections", 0), ("altup_unembed_projections", 1)):
        assert [f"model.{part}.1.weight" in names for names in stages] == [
            stage == rank for rank in range(2)
        ]


def test_the_text_model_of_a_multimodal_checkpoint_is_the_same_model(tmp_path: Path) -> None:
    expected = make(tmp_path / "model", **USUAL)
    file, config = tmp_path / "model" / "model.safetensors", tmp_path / "model" / "config.json"
    tensors = {
        name.replace("model.", "model.language_model.", 1): tensor
        for name, tensor in load_file(file).items()
    }
    tensors["model.vision_tower.timm_model.conv_stem.conv.weight"] = torch.ones(4, 4)
    tensors["model.embed_audio.embedding.weight"] = torch.ones(4, 4)
    save_file(tensors, file, {"format": "pt"})
    text = json.loads(config.read_text())
    document = {"model_type": "gemma3n", "text_config": text, "vision_config": {}}
    config.write_text(json.dumps(document))
    assert np.abs(run(tmp_path / "model") - expected).max() < 1e-4
    convert(tmp_path / "model", tmp_path / "model.gguf", to="gguf", dtype="f32")
    assert np.abs(run(tmp_path / "model.gguf") - expected).max() < 1e-4


@pytest.mark.long
def test_layers_that_share_keys_have_copies_of_them_in_gguf_only(tmp_path: Path) -> None:
    model, gguf = tmp_path / "model", tmp_path / "model.gguf"
    types = [LOCAL, GLOBAL] * 10 + [GLOBAL, LOCAL]
    shared: dict[str, Any] = {"num_hidden_layers": 22, "layer_types": types,
                              "num_kv_shared_layers": 2, "intermediate_size": 64}  # fmt: skip
    make(model, **shared)
    # Older checkpoints have such tensors, which nothing reads.
    file = model / "model.safetensors"
    unused = {"model.layers.20.self_attn.k_proj.weight": torch.ones(16, 32)}
    save_file(load_file(file) | unused, file, {"format": "pt"})
    convert(model, gguf, to="gguf", dtype="f32")
    stored = open_weights(gguf)
    for layer, source in ((20, 19), (21, 18)):
        for part in ("attn_k", "attn_v", "attn_k_norm"):
            one, other = (
                stored[f"blk.{number}.{part}.weight"].data().to_numpy()
                for number in (layer, source)
            )
            assert np.array_equal(one, other)
    assert np.abs(run(gguf) - run(model)).max() < 1e-4
    convert(gguf, tmp_path / "back", dtype="f32")
    names = {name for name, _ in open_weights(tmp_path / "back").items()}
    assert names == set(load_file(file)) - set(unused)
