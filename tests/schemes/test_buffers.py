"""Which tensors are trained weights, and which are buffers."""

from __future__ import annotations

from each import each
from weightctl.dtype import ENCODINGS
from weightctl.schemes.buffers import is_activation_scale, is_buffer
from weightctl.weights import TensorInfo


@each(
    ("name", "shape"),
    [
        ("model.layers.0.self_attn.rotary_emb.inv_freq", (64,)),
        ("model.layers.0.self_attn.rotary_emb.cos_cached", (1, 1, 2048, 128)),
        ("rope.freqs", (64,)),
        ("freqs_cis", (4096, 64)),
        ("rope_freqs.weight", (64,)),
        ("rope_factors_long.weight", (48,)),
        ("rope_factors_short.weight", (48,)),
        ("h.0.attn.bias", (1, 1, 1024, 1024)),
        ("transformer.h.0.attn.masked_bias", ()),
        ("transformer.h.0.attn.attention.bias", (1, 1, 2048, 2048)),
        ("gpt_neox.layers.0.attention.bias", (1, 1, 2048, 2048)),
        ("gpt_neox.layers.0.attention.masked_bias", ()),
        ("transformer.h.0.attn.causal_mask", (1, 1, 2048, 2048)),
        ("layers.1.blocks.1.attn_mask", (64, 49, 49)),
        ("layers.0.blocks.0.attn.relative_position_index", (49, 49)),
        ("decoder.mask", (448, 448)),
        ("bert.embeddings.position_ids", (1, 512)),
        ("embeddings.token_type_ids", (1, 514)),
        ("layer1.0.bn1.num_batches_tracked", ()),
        ("layer1.0.bn1.running_mean", (64,)),
        ("layer1.0.bn1.running_var", (64,)),
        ("alphas_cumprod", (1000,)),
        ("optimizer.state.0.exp_avg", (64, 64)),
        ("state.17.step", ()),
        ("optimizer_states.0.state.3.momentum_buffer", (64,)),
    ],
)
def test_what_no_optimizer_trains_is_a_buffer(name: str, shape: tuple[int, ...]) -> None:
    assert is_buffer(TensorInfo(name, shape, ENCODINGS["F32"]))


@each(
    ("name", "shape"),
    [
        ("h.0.attn.bias", (768,)),
        ("h.0.attn.c_attn.bias", (2304,)),
        ("visual.blocks.0.attn.qkv.bias", (3456,)),
        ("decoder.0.attn.bias", (1, 12, 64, 64)),
        ("decoder.0.attn.bias", (1, 1, 64, 32)),
        ("stem.conv.bias", (1, 1, 8, 8)),
        ("layer1.0.bn1.weight", (64,)),
        ("layer1.0.bn1.bias", (64,)),
        ("h.0.attn.relative_attention_bias.weight", (32, 12)),
        ("layers.0.blocks.0.attn.relative_position_bias_table", (169, 3)),
        ("bert.embeddings.position_embeddings.weight", (512, 768)),
        ("model.layers.0.mlp.gate.e_score_correction_bias", (256,)),
        ("mask_token", (1, 1, 768)),
        ("encoder.freqs", (64,)),
        ("logit_scale", ()),
        ("model.exp_avg", (64,)),
        ("schedule.step", ()),
        ("weight", (8, 8)),
        ("", ()),
    ],
)
def test_what_is_trained_is_not_a_buffer(name: str, shape: tuple[int, ...]) -> None:
    assert not is_buffer(TensorInfo(name, shape, ENCODINGS["F32"]))


def test_a_scale_of_activations_has_at_most_an_element_for_each_channel_of_a_cache() -> None:
    for size, is_scale in ((1, True), (1 << 14, True), ((1 << 14) + 1, False)):
        found = TensorInfo("model.layers.0.self_attn.k_scale", (size,), ENCODINGS["F32"])
        assert is_activation_scale(found) == is_scale
