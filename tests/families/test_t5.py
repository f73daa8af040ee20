"""T5: an encoder, and a decoder that reads what the encoder makes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.models.t5.modeling_t5 import T5Attention

from family_cases import make_checkpoint, untie_output
from llama_cpp import ask
from runs import executed
from weightctl import convert, open_weights, shard
from weightctl.device import CPU
from weightctl.dtype import DType
from weightctl.errors import ArchitectureError
from weightctl.families import FAMILIES, recognize
from weightctl.families.configs import from_hugging_face
from weightctl.graph import ops
from weightctl.graph.graph import Graph
from weightctl.nn.models.encoder_decoder import RelativeBias
from weightctl.translate.plans import plan_of
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from pathlib import Path

LENGTH = 300


def config(**changes: object) -> Any:
    document = {"model_type": "t5", "num_heads": 2, "num_layers": 2, **changes}
    return from_hugging_face(FAMILIES["t5"].load(), document, "here").config


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize(("buckets", "farthest"), [(32, 128), (8, 20)])
def test_distances_are_in_the_buckets_that_transformers_has(
    is_causal: bool, buckets: int, farthest: int
) -> None:
    made = config(relative_attention_num_buckets=buckets, relative_attention_max_distance=farthest)
    bias = RelativeBias(made, is_causal=is_causal, dtype=DType.float32)
    bias.name_weights()
    with Graph("bias", []) as graph:
        graph.output(bias(ops.range(LENGTH, device=CPU)))
    table = np.arange(buckets * 2, dtype=np.float32).reshape(buckets, 2)
    (found,) = executed(graph, weights={"weight": table})
    places = torch.arange(LENGTH)
    expected = T5Attention._relative_position_bucket(
        places[None] - places[:, None], not is_causal, buckets, farthest
    )
    assert np.array_equal(found[0, 0], 2 * expected.numpy())


@pytest.mark.long
def test_logits_of_llama_cpp_are_larger_where_the_output_is_the_embedding(crossed: Path) -> None:
    made = make_checkpoint("t5-tied", crossed)
    path = made.path.with_name("for-llama.gguf")
    convert(made.path, path, to="gguf", dtype="f32", force=True)
    (found,) = ask(path, ("logits", made.tokens), context=512)
    hidden = transformers.AutoConfig.from_pretrained(made.path).d_model
    assert np.abs(found * hidden**-0.5 - made.expected).max() < 2e-3


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_note_says_what_llama_cpp_computes_otherwise_where_the_output_is_the_embedding(
    *, is_tied: bool, tmp_path: Path
) -> None:
    save(tmp_path, is_tied=is_tied)
    notes = plan_of(open_weights(tmp_path), "gguf").notes
    expected = (
        "results of llama.cpp differ from transformers: it does not multiply the logits by the "
        "inverse root of the hidden size"
    )
    assert (expected in notes) is is_tied


def test_copies_of_the_embedding_are_left_out(tmp_path: Path) -> None:
    save(tmp_path / "hf", copies=True)
    assert not recognize(open_weights(tmp_path / "hf")).unexpected
    convert(tmp_path / "hf", tmp_path / "model.gguf", dtype="f32")
    names = header_of(open_weights(tmp_path / "model.gguf")).tensors
    assert [name for name in names if name in ("token_embd.weight", "output.weight")] == [
        "token_embd.weight"
    ]


def test_pipeline_stages_hold_the_encoder_before_the_decoder(tmp_path: Path) -> None:
    save(tmp_path / "hf")
    shard(tmp_path / "hf", tmp_path / "ranks", pp=2)
    first, second = (
        set(header_of(open_weights(path)).tensors)
        for path in sorted((tmp_path / "ranks").rglob("*.safetensors"))
    )
    assert not [name for name in first if name.startswith("decoder.block.1.")]
    assert not [name for name in second if name.startswith("encoder.block.1.")]
    assert "encoder.final_layer_norm.weight" in first & second


def test_an_activation_that_llama_cpp_lacks_is_refused() -> None:
    with pytest.raises(ArchitectureError, match=r"`feed_forward_proj` is `'gated-silu'`"):
        config(feed_forward_proj="gated-silu")


def test_distances_that_do_not_fill_the_buckets_are_refused() -> None:
    with pytest.raises(ArchitectureError, match="relative_attention_max_distance` is 8"):
        config(relative_attention_max_distance=8)


def save(path: Path, *, copies: bool = False, is_tied: bool = True) -> None:
    """Save a tiny T5, with the embedding by its other names if asked for."""
    made = transformers.T5Config(
        vocab_size=300, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
        tie_word_embeddings=is_tied,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(made)
    untie_output(model)
    model.save_pretrained(path)
    if not copies:
        return
    tensors = load_file(path / "model.safetensors")
    for name in ("encoder.embed_tokens", "decoder.embed_tokens", "lm_head"):
        tensors[f"{name}.weight"] = tensors["shared.weight"].clone()
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
