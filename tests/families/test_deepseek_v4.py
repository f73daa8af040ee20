"""What is special about DeepSeek-V4's config, its table of experts, and its longer compression."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import transformers

from each import each
from family_cases import make_checkpoint, run_transformers
from weightctl import convert, open_weights
from weightctl.device import CPU
from weightctl.dtype import DType
from weightctl.engine import InferenceSession
from weightctl.errors import ArchitectureError
from weightctl.families import FAMILIES, recognize
from weightctl.families.configs import from_hugging_face
from weightctl.graph import Graph, TensorType
from weightctl.nn.models.compressed_attention import Compressor
from weightctl.nn.models.hyper_connections import HyperConnection
from weightctl.nn.models.network import build_network
from weightctl.nn.positions import KeyValueCache, use_cache
from weightctl.nn.rope import RotaryEmbedding
from weightctl.shape import Dim

if TYPE_CHECKING:
    from pathlib import Path

FAMILY = FAMILIES["deepseek_v4"].load()
YARN = {"factor": 16.0, "original_max_position_embeddings": 65536}


def read(**keys: Any) -> Any:
    return from_hugging_face(FAMILY, {"model_type": "deepseek_v4", **keys}, "here").config


def test_published_and_current_config_files_mean_the_same() -> None:
    published = read(
        num_hidden_layers=3,
        compress_ratios=[0, 4, 128, 0],
        num_hash_layers=1,
        qk_rope_head_dim=64,
        rope_scaling={"type": "yarn", **YARN},
    )
    compress = {"rope_type": "yarn", "rope_theta": 160000.0, "attention_factor": 1.0, **YARN}
    current = read(
        num_hidden_layers=3,
        layer_types=[
            "sliding_attention",
            "compressed_sparse_attention",
            "heavily_compressed_attention",
        ],
        mlp_layer_types=["hash_moe", "moe", "moe"],
        partial_rotary_factor=0.125,
        rope_parameters={"main": {"rope_type": "default"}, "compress": compress},
    )
    assert published == current
    assert current.rope_scaling.amplitude == 1


@each(
    "keys, said",
    [
        ({"compress_ratios": [8] * 43}, "compression other than"),
        ({"compress_ratios": [0]}, "`compress_ratios` has 1 value"),
        ({"compress_rate_csa": 8}, "for one key"),
        ({"layer_types": ["full_attention"] * 43}, "`layer_types`"),
        ({"mlp_layer_types": ["moe", "hash_moe"]}, "`hash_moe` first"),
        ({"o_groups": 7}, "7 groups"),
        ({"qk_rope_head_dim": 63}, "63 rotary dimensions"),
        ({"rope_scaling": {"type": "yarn", "attention_factor": 1.2, **YARN}}, "attention_factor"),
        ({"rope_parameters": [1]}, "not a JSON object"),
    ],
)
def test_what_does_not_fit_is_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ArchitectureError) as caught:
        read(**keys)
    assert said in str(caught.value)


def test_weights_between_streams_are_doubly_stochastic() -> None:
    layer = HyperConnection(2, 3, steps=20, small=1e-6, eps=1e-6)
    rng = np.random.default_rng(0)
    layer.load_state_dict(
        {
            "projection.weight": rng.standard_normal((8, 6)).astype(np.float32),
            "offsets.weight": rng.standard_normal(8).astype(np.float32),
            "scales.weight": np.full(3, 0.2, np.float32),
        }
    )
    with Graph("streams", [TensorType(DType.float32, (1, 4, 6), CPU)]) as graph:
        graph.output(layer(graph.inputs[0])[2])
    x = rng.standard_normal((1, 4, 6)).astype(np.float32)
    (found,) = InferenceSession([CPU]).load(graph, layer.state_dict()).execute(x)
    assert np.allclose(found.to_numpy().sum(-1), 1, atol=1e-3)
    assert np.allclose(found.to_numpy().sum(-2), 1, atol=1e-3)


@each("ratio", [4, 128])
def test_compressed_keys_of_a_text_that_is_read_piece_by_piece_are_the_same(ratio: int) -> None:
    rope = RotaryEmbedding(4)
    layer = Compressor(6, 8, ratio, rotated=4, rope=rope, eps=1e-6, dtype=DType.float32)
    layer.name_weights()
    rng = np.random.default_rng(0)
    layer.load_state_dict({
        name: rng.standard_normal(weight.shape.sizes).astype(np.float32)
        for name, weight in layer.raw_state_dict().items()
    })  # fmt: skip
    kind = TensorType(DType.float32, (1, "seq", 6), CPU)
    with Graph("whole", [kind]) as graph:
        graph.output(layer(graph.inputs[0]))
    whole = InferenceSession([CPU]).load(graph, layer.state_dict())
    kept = TensorType(DType.float32, (1, 1, "past", 2 * layer.width), CPU)
    with Graph("pieces", [kind, kept]) as graph:
        x, before = graph.inputs
        with use_cache(cache := KeyValueCache([before], Dim("past"))):
            graph.output(layer(x), *cache.made)
    pieces = InferenceSession([CPU]).load(graph, layer.state_dict())
    x = rng.standard_normal((1, 2 * ratio + 3, 6)).astype(np.float32)
    state, place = np.zeros((1, 1, 0, 2 * layer.width), np.float32), 0
    for count in (1, ratio - 2, 1, 1, ratio - 1, 1, 1):
        found, made = pieces.execute(x[:, place : place + count], state)
        state, place = made.to_numpy(), place + count
        (expected,) = whole.execute(x[:, :place])
        assert found.shape == (1, 1, place // ratio, 8)
        np.testing.assert_allclose(found.to_numpy(), expected.to_numpy(), atol=1e-5)


@pytest.mark.long
def test_a_table_comes_back_from_gguf_and_long_texts_compute_the_same(
    crossed: Path, tmp_path: Path
) -> None:
    made = make_checkpoint("deepseek_v4", crossed)
    convert(made.path, tmp_path / "model.gguf")
    name = "blk.0.ffn_gate_tid2eid.weight"
    assert open_weights(tmp_path / "model.gguf")[name].info.encoding.name == "I32"
    convert(tmp_path / "model.gguf", tmp_path / "back")
    assert open_weights(tmp_path / "back")["layers.0.ffn.gate.tid2eid"].info.encoding.name == "I64"
    # More tokens than two keys with heavy compression are made of.
    tokens = [(7 * place * place + 3 * place) % 200 + 8 for place in range(300)]
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "back", dtype=torch.float32, attn_implementation="eager"
    )
    found = recognize(open_weights(tmp_path / "model.gguf"))
    graph = build_network(found).graph()
    session = InferenceSession([CPU]).load(graph, found.weights)
    for count in (1, 4, 300):
        (logits,) = session.execute(np.array([tokens[:count]]))
        expected = run_transformers(model, tokens[:count])
        assert np.abs(logits.to_numpy()[0] - expected).max() < 1e-4
