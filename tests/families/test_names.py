"""What a tensor's name says of it."""

from __future__ import annotations

from each import each
from weightctl.dtype import ENCODINGS
from weightctl.families.names import is_matrix_weight, is_projection, layer, role
from weightctl.weights.info import TensorInfo


@each(
    "name, expected",
    [
        ("output.weight", "output"),
        ("token_embd.weight", "token_embd"),
        ("per_layer_token_embd.weight", "token_embd"),
        ("blk.3.attn_v.weight", "attn_v"),
        ("blk.3.attn_qkv.weight", "attn_v"),
        ("blk.3.attn_kv_b.weight", "attn_v"),
        ("dec.blk.3.cross_attn_v.weight", "attn_v"),
        ("blk.3.attn_k.weight", "attn_k"),
        ("blk.3.attn_q.weight", "attn_q"),
        ("blk.3.attn_output.weight", "attn_output"),
        ("blk.3.ffn_down.weight", "ffn_down"),
        ("blk.3.ffn_down_exps.weight", "ffn_down"),
        ("blk.3.ffn_gate_up_exps.weight", "ffn_gate"),
        ("blk.3.ffn_up_shexp.weight", "ffn_up"),
    ],
)
def test_a_name_of_ggufs_tells_the_role(name: str, expected: str) -> None:
    assert role(name) == expected


@each(
    "name",
    ["blk.3.attn_v.bias", "blk.3.attn_q_a.weight", "output_norm.weight", "cls.output.weight",
     "model.layers.3.self_attn.v_proj.weight"],
)  # fmt: skip
def test_other_names_have_no_role(name: str) -> None:
    assert role(name) is None


def test_the_layer_is_what_a_name_begins_with() -> None:
    assert layer("blk.12.attn_v.weight") == 12
    assert layer("enc.blk.12.attn_v.weight") is None
    assert layer("output.weight") is None


def test_a_number_that_is_not_one_of_layers_is_none() -> None:
    assert layer("blk." + "9" * 5000 + ".attn_v.weight") is None


def is_quantized(name: str, shape: tuple[int, ...] = (256, 256)) -> bool:
    return is_matrix_weight(TensorInfo(name, shape, ENCODINGS["F32"]))


def test_a_matrix_of_one_row_is_a_vector() -> None:
    assert not is_quantized("blk.0.attn_q.weight", (1, 256))
    assert is_quantized("blk.0.ffn_up_exps.weight", (8, 1, 256))


@each("part", ["first", "w1", "decay_w2", "lerp_fused"])
def test_the_small_matrices_of_recurrent_models_stay(part: str) -> None:
    assert not is_quantized(f"blk.0.time_mix_{part}.weight")


@each("part", ["key", "receptance", "value", "output"])
def test_the_large_ones_do_not(part: str) -> None:
    assert is_quantized(f"blk.0.time_mix_{part}.weight")


@each(
    "name, expected",
    [
        ("layers.1.attn.wq_a.weight", True),
        ("layers.1.attn.indexer.wq_b.weight", True),
        ("layers.1.attn.indexer.weights_proj.weight", False),
        ("model.layers.1.self_attn.indexer.weights_proj.weight", False),
        ("layers.1.attn.compressor.wkv.weight", False),
        ("layers.1.attn.indexer.compressor.wgate.weight", False),
        ("layers.1.attn.compressor.ape", False),
        ("blk.1.hc_attn_fn.weight", False),
        ("hc_head.hc_fn", False),
        ("layers.1.ffn.gate.weight", False),
    ],
)
def test_engines_have_some_matrices_only_unquantized(name: str, expected: bool) -> None:
    assert is_projection(TensorInfo(name, (64, 128), ENCODINGS["F32"])) is expected
