"""Gemma 2 and 3 say what transformers' do, from either naming convention."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import torch

import small_models
from each import each
from runs import executed
from small_models import logits, tokens_below
from weightctl import DType, open_weights
from weightctl.families import recognize
from weightctl.graph import Graph
from weightctl.nn.models import build_network
from weightctl.system.registry import load

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from weightctl.families import RecognizedModel

    Floats = NDArray[np.float32]

# Longer than the windows.
TOKENS = tokens_below(96, 2, 40)
ARCHS = {"gemma2": gguf.MODEL_ARCH.GEMMA2, "gemma3": gguf.MODEL_ARCH.GEMMA3}


def run(checkpoint: RecognizedModel, **changes: Any) -> Floats:
    """Return the logits of a checkpoint, or of what it would be with another config."""
    config: Any = checkpoint.config
    module = load(checkpoint.family.module)(replace(config, **changes), DType.float32)
    (output,) = executed(module.graph(), TOKENS, weights=checkpoint.weights)
    return output


@cache
def usual_logits(name: str) -> tuple[RecognizedModel, Floats]:
    """Return a checkpoint of a family and its logits."""
    checkpoint = small_models.checkpoint(getattr(small_models, name)())
    return checkpoint, run(checkpoint)


def distance(found: Floats, expected: Floats) -> float:
    assert found.shape == expected.shape
    return float(np.abs(found - expected).max())


def write(path: Path, name: str, model: Any) -> None:
    """Write a model as llama.cpp's `conversion/gemma.py` does."""
    config, writer = model.config, gguf.GGUFWriter(path, name)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_sliding_window(config.sliding_window)
    if name == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    else:
        rope = config.rope_parameters["full_attention"]
        writer.add_rope_freq_base(rope["rope_theta"])
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    table = gguf.get_tensor_name_map(ARCHS[name], config.num_hidden_layers)
    for given, array in small_models.arrays(model).items():
        renamed = table.get_name(given, (".weight",))
        assert renamed is not None
        writer.add_tensor(renamed, array + 1 if given.endswith("norm.weight") else array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def as_llama_cpp_has_it(name: str) -> Any:
    """Return a model that needs no key that llama.cpp's script does not write."""
    if name == "gemma2":
        return small_models.gemma2()
    rope = {
        "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 50000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    }
    return small_models.gemma3(rope_parameters=rope, sliding_window_pattern=6, num_hidden_layers=7)


@each("name", ARCHS)
def test_a_checkpoint_of_transformers_says_what_it_says_there(name: str) -> None:
    model = getattr(small_models, name)()
    checkpoint = small_models.checkpoint(model)
    assert (checkpoint.missing, checkpoint.unexpected) == ([], [])
    assert distance(run(checkpoint), logits(model, TOKENS)) < 1e-4


@each("name", ARCHS)
def test_a_gguf_with_the_keys_of_llama_cpps_script_says_the_same(name: str, tmp_path: Path) -> None:
    model = as_llama_cpp_has_it(name)
    write(tmp_path / "model.gguf", name, model)
    checkpoint = recognize(open_weights(tmp_path / "model.gguf"))
    assert (checkpoint.family.name, checkpoint.convention) == (name, "gguf")
    assert (checkpoint.missing, checkpoint.unexpected) == ([], [])
    assert distance(run(checkpoint), logits(model, TOKENS)) < 1e-4


@each(
    "name, changes",
    [
        ("gemma2", {"query_pre_attn_scalar": 20}),
        ("gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
        ("gemma2", {"layer_types": ["full_attention", *3 * ["sliding_attention"]]}),
        ("gemma2", {"tie_word_embeddings": False}),
        ("gemma3", {"query_pre_attn_scalar": 20, "final_logit_softcapping": 1.0}),
        ("gemma3", {"sliding_window_pattern": 1}),
        ("gemma3", {"tie_word_embeddings": False, "num_key_value_heads": 1}),
    ],
    ids=str,
)
def test_what_a_config_may_change_changes_the_logits_alike(
    name: str, changes: dict[str, Any]
) -> None:
    model = getattr(small_models, name)(**changes)
    assert distance(run(small_models.checkpoint(model)), logits(model, TOKENS)) < 1e-4


@each(
    "name, changes",
    [
        ("gemma2", {"attention_softcap": None}),
        ("gemma2", {"softcap": None}),
        ("gemma2", {"query_scalar": 64}),
        ("gemma2", {"sliding_window": 9}),
        ("gemma2", {"windowed_layers": (False, True, False, True)}),
        ("gemma2", {"norm_offset": 0.0}),
        ("gemma3", {"local_rope_base": 50000.0}),
        ("gemma3", {"rope_scaling": None}),
        ("gemma3", {"sliding_window": 9}),
        ("gemma3", {"norm_offset": 0.0}),
    ],
    ids=str,
)
def test_each_part_of_the_config_is_felt(name: str, changes: dict[str, Any]) -> None:
    checkpoint, usual = usual_logits(name)
    assert distance(run(checkpoint, **changes), usual) > 1e-3


@each("name", ARCHS)
def test_embeddings_are_scaled_by_a_number_of_the_activations_dtype(name: str) -> None:
    # The root of 80 is 8.944, and 8.9375 in bfloat16.
    model = getattr(small_models, name)(hidden_size=80, num_hidden_layers=1).to(torch.bfloat16)
    checkpoint = small_models.checkpoint(model)
    module: Any = build_network(checkpoint, DType.bfloat16)
    module.name_weights()
    with Graph("embedded", module.input_types()) as graph:
        graph.output(module.begin(*graph.inputs)[0])
    (found,) = executed(graph, TOKENS, weights=checkpoint.weights)
    with torch.inference_mode():
        expected = model.model.embed_tokens(torch.from_numpy(TOKENS)).float().numpy()
    assert (found.astype(np.float32) == expected).all()
