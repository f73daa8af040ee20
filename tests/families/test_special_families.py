"""What is special about single families: what llama.cpp takes for granted, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import tiny
from config_documents import described
from each import each
from family_cases import make_checkpoint, run_transformers
from family_variants import draw_variant, make_variant
from lazy import torch, transformers
from runs import executed, run
from small_models import logits, tokens_below
from weightctl import DType, WeightData, convert, open_weights
from weightctl.device import CPU
from weightctl.engine import InferenceSession
from weightctl.errors import ArchitectureError
from weightctl.families import FAMILIES, recognize
from weightctl.families.config_writing import to_gguf, to_hugging_face
from weightctl.families.configs import from_gguf, from_hugging_face
from weightctl.families.mtp import with_mtp_layers
from weightctl.families.rope import find_rotated_share
from weightctl.families.rope_factors import padded_factors, with_padded_llama3
from weightctl.graph import Graph, TensorType
from weightctl.nn.across_ranks import parallel
from weightctl.nn.models import build_network
from weightctl.nn.models.compressed_decoder import Compressor
from weightctl.nn.models.hyper_connections import HyperConnection
from weightctl.nn.positions import KeyValueCache, Temperature, use_cache
from weightctl.nn.rope import RotaryEmbedding
from weightctl.shape import Dim
from weightctl.sharding.planning import shard_plan
from weightctl.split import Grid
from weightctl.weights.from_arrays import as_checkpoint
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray


@each(
    "changes, message",
    [
        ({"mup_enabled": False}, "`embedding_by_root` is `False`, but llama.cpp would read"),
        (
            {"layer_types": ["sliding_attention", "full_attention"] * 16},
            "its layers with full attention are not exactly every fourth layer",
        ),
        (
            {"global_attn_every_n_layers": 3},
            "its layers with full attention are not exactly every fourth layer",
        ),
    ],
)
def test_what_llama_cpp_would_take_for_another_model_is_refused(
    changes: dict[str, Any], message: str
) -> None:
    document = {"model_type": "afmoe", "mup_enabled": True, **changes}
    family = FAMILIES["afmoe"].load()
    with pytest.raises(ArchitectureError, match=message):
        to_gguf(family, from_hugging_face(family, document, "here").fields)


# The scalars of releases, which round numbers do not stand for.

MIMO_V2_FLASH = {
    "model_type": "mimo_v2_flash", "head_dim": 192, "v_head_dim": 128, "swa_head_dim": 192,
    "swa_v_head_dim": 128, "hidden_size": 4096, "num_attention_heads": 64,
    "swa_num_attention_heads": 64, "num_key_value_heads": 4, "swa_num_key_value_heads": 8,
    "num_hidden_layers": 3, "partial_rotary_factor": 0.334, "rope_theta": 5000000,
    "swa_rope_theta": 10000, "hybrid_layer_pattern": [0, 1, 1], "moe_layer_freq": [0, 1, 1],
    "sliding_window": 128, "sliding_window_size": 128, "attention_value_scale": 0.707,
    "add_swa_attention_sink_bias": True, "add_full_attention_sink_bias": False,
    "layernorm_epsilon": 1e-5, "routed_scaling_factor": None, "norm_topk_prob": True,
    "n_group": 1, "topk_group": 1, "scoring_func": "sigmoid", "n_shared_experts": None,
    "tie_word_embeddings": False, "attention_bias": False, "max_position_embeddings": 262144,
    "vocab_size": 152576, "intermediate_size": 16384, "moe_intermediate_size": 2048,
}  # fmt: skip
NOMIC_EMBED = {
    "model_type": "nomic_bert", "activation_function": "swiglu", "causal": False, "n_embd": 768,
    "n_head": 12, "n_inner": 3072, "n_layer": 12, "n_positions": 8192, "vocab_size": 30528,
    "max_trained_positions": 2048, "layer_norm_epsilon": 1e-12, "mlp_fc1_bias": False,
    "mlp_fc2_bias": False, "qkv_proj_bias": False, "prenorm": False, "parallel_block": False,
    "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None, "rotary_scaling_factor": 2, "type_vocab_size": 2,
    "use_rms_norm": False,
}  # fmt: skip


def test_the_factor_of_mimo_means_64_of_192_elements_in_gguf_and_back() -> None:
    family = FAMILIES["mimo2"].load()
    fields = from_hugging_face(family, MIMO_V2_FLASH, "here").fields
    metadata = described(family, fields)
    assert metadata["mimo2.rope.dimension_count"].content == 64
    made = from_gguf(family, metadata, {}, "here").fields
    document = to_hugging_face(family, {**fields, **made}, "mimo_v2_flash")
    ropes = document["rope_parameters"].values()
    assert [int(192 * rope["partial_rotary_factor"]) for rope in ropes] == [64, 64]
    wrong = {"sliding_attention": {"partial_rotary_factor": 0.5}, "rope_theta": 1e4}
    with pytest.raises(ArchitectureError, match="must have the rotary dimensions"):
        from_hugging_face(family, {**MIMO_V2_FLASH, "rope_parameters": wrong}, "here")


def test_every_share_of_a_head_is_written_so_that_the_same_dimension_is_read() -> None:
    """Transformers rounds the product of the share and the size down."""
    sizes = [(part, size) for size in range(16, 520, 2) for part in range(2, size + 1, 2)]
    shares = [find_rotated_share({"rope_dimensions": a, "head_dim": b}) for a, b in sizes]
    assert [int(b * share) for (_, b), share in zip(sizes, shares, strict=True)] == [
        part for part, _ in sizes
    ]
    assert max(shares) == 1


@each("changes", [{}, {"rotary_scaling_factor": None}, {"n_inner": None}])
def test_the_keys_of_nomics_own_code_are_read(changes: dict[str, Any]) -> None:
    """NomicBertConfig of transformers 5 has the sizes of the release as its defaults."""
    family, usual = FAMILIES["nomic_bert"].load(), transformers.NomicBertConfig().to_dict()
    read = from_hugging_face(family, NOMIC_EMBED | changes, "here")
    made = to_hugging_face(family, read.fields, "nomic_bert")
    known = {name: value for name, value in made.items() if name in usual}
    assert len(known) > 10
    theirs = transformers.NomicBertConfig(**made).to_dict()
    unlike = {name for name in usual if theirs[name] != usual[name]}
    assert unlike <= {"architectures", "rope_parameters"}
    assert theirs["rope_parameters"]["rope_theta"] == usual["rope_parameters"]["rope_theta"] == 1000
    assert to_gguf(family, read.fields)["nomic-bert.context_length"].content == 2048


@each("changes, message", [
    ({"activation_function": "gelu"}, "`activation_function` is `'gelu'`, which is not supported"),
    ({"moe_every_n_layers": 2}, "`moe_every_n_layers` is `2`"),
    ({"qkv_proj_bias": True}, "`qkv_proj_bias` is `True`"),
    ({"causal": True}, "`causal` is `True`"),
])  # fmt: skip
def test_what_else_nomics_code_can_do_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ArchitectureError, match=message):
        from_hugging_face(FAMILIES["nomic_bert"].load(), NOMIC_EMBED | changes, "here")


def draw_model(kind: Any, config: Any) -> Any:
    """Return a model of transformers whose weights, also those of norms, are random."""
    torch.manual_seed(0)
    model = kind._from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * (0.5 if parameter.dim() > 1 else 1))
    return model


def test_olmoe_bounds_what_is_normed_and_llama_cpp_does_not(tmp_path: Path) -> None:
    config = transformers.OlmoeConfig(
        vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_experts=4,
        num_experts_per_tok=2, num_attention_heads=4, max_position_embeddings=64, clip_qkv=0.5,
        pad_token_id=0, eos_token_id=2,
    )  # fmt: skip
    model = draw_model(transformers.OlmoeForCausalLM, config)
    model.save_pretrained(tmp_path)
    found = recognize(open_weights(tmp_path))
    tokens = tokens_below(96, 1, 20)
    (output,) = executed(build_network(found).graph(), tokens, weights=found.weights)
    assert np.abs(output - logits(model, tokens)).max() < 1e-4
    with pytest.raises(ArchitectureError, match=r"`query_clamp` is `0\.5`, but llama\.cpp"):
        to_gguf(found.family, found.fields)


def test_factors_are_not_taken_for_values_of_as_many_layers() -> None:
    """Three factors of attention and two of MLPs are no settings of three or two layers."""
    for layers in (2, 3):
        model = tiny.make("glm4_moe", num_hidden_layers=layers)
        fields = {**model.fields, "mtp_layers": 1}
        config: Any = with_mtp_layers(model.family, model.config, fields, {"mtp_layers": 1})
        assert config.attention_scales == (1.0, 1.0, 1.0)
        assert config.mlp_scales == (1.0, 1.0)


# BitNet: what llama.cpp would compute otherwise, and what is not supported.


@each(
    "changes, message",
    [
        ({"hidden_act": "relu2"}, "`activation` is `'relu2'`, but llama.cpp would read `'silu'`"),
        (
            {"quantization_config": {"quantization_mode": "online"}},
            "weights that are quantized when they are loaded are not supported",
        ),
    ],
)
def test_a_model_that_llama_cpp_would_compute_otherwise_is_refused(
    changes: dict[str, Any], message: str
) -> None:
    usual = {"model_type": "bitnet", "hidden_act": "silu", "tie_word_embeddings": True}
    family = FAMILIES["bitnet"].load()
    with pytest.raises(ArchitectureError, match=message):
        to_gguf(family, from_hugging_face(family, {**usual, **changes}, "here").fields)


# Command R+: norms of queries and keys in which each head has weights of its own.


@each("ranks", [1, 2])
def test_each_head_is_normed_by_its_own_weights(ranks: int, tmp_path: Path) -> None:
    config = transformers.CohereConfig(
        vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
        use_qk_norm=True, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    model = draw_model(transformers.CohereForCausalLM, config)
    model.save_pretrained(tmp_path)
    found = recognize(open_weights(tmp_path))
    found.check()
    network = build_network(found)
    if ranks > 1:
        network = parallel(network, [CPU] * ranks, grid=Grid(ranks))
    tokens = tokens_below(96, 1, 20)
    (output,) = executed(network.graph(), tokens, weights=found.weights)
    assert np.abs(output - logits(model, tokens)).max() < 1e-4


@each("layers, has_norms", [(64, False), (63, True)])
def test_norms_that_llama_cpp_does_not_expect_are_refused(layers: int, *, has_norms: bool) -> None:
    document = {"model_type": "cohere", "num_hidden_layers": layers, "use_qk_norm": has_norms}
    fields = from_hugging_face(FAMILIES["cohere"].load(), document, "here").fields
    with pytest.raises(ArchitectureError, match=f"it has {layers} layers and"):
        to_gguf(FAMILIES["cohere"].load(), fields)


# Kimi Linear and Qwen3.5: dimensions of 1 that differ, and configs of older versions.


TYPE = {"model_type": "kimi_linear"}


def read(**stated: Any) -> Any:
    return from_hugging_face(FAMILIES["kimi_linear"].load(), TYPE | stated, "here").config


# As llama.cpp's script writes tensors, before its quantization leaves these dimensions out.
LONGER = {"kimi_linear": {"ssm_conv1d_": 1, "ssm_a": 2}, "qwen35moe": {"ffn_gate_inp_shexp": 1}}


@each("family", LONGER)
def test_dimensions_of_1_before_others_mean_nothing(family: str, tmp_path: Path) -> None:
    sizes = {"num_attention_heads": 4, "num_key_value_heads": 4, "hidden_size": 32}
    variant = draw_variant(family, 1, **sizes)._replace(dtype="f32", parts=1, is_old=False)
    make_variant(variant, tmp_path / "model")
    convert(tmp_path / "model", tmp_path / "model.gguf", to="gguf")
    own = open_weights(tmp_path / "model.gguf")
    arrays = {name: node.data().to_numpy() for name, node in own.items()}
    given: dict[str, Any] = {}
    for name, array in arrays.items():
        more = next((count for part, count in LONGER[family].items() if part in name), 0)
        given[name] = array.reshape((1,) * more + array.shape)
    tree = as_checkpoint(
        {name: WeightData.from_numpy(array, name) for name, array in given.items()},
        header_of(own).metadata,
    )
    found, expected = recognize(tree), recognize(own)
    found.check()
    for name, tensor in expected.weights.items():
        other = found.weights[name].data().to_numpy()
        assert np.array_equal(other, tensor.data().to_numpy()), name
    if family == "kimi_linear":
        sharding = shard_plan(tree, Grid(2)).shardings["blk.0.ssm_a"]
        assert [sharding.shape((1, 1, 4, 1), rank) for rank in (0, 1)] == [(1, 1, 2, 1)] * 2


def test_older_configs_count_layers_from_1() -> None:
    delta = {
        "full_attn_layers": [2, 4],
        "head_dim": 64,
        "num_heads": 8,
        "short_conv_kernel_size": 3,
    }
    found = read(num_hidden_layers=4, linear_attn_config=delta, first_k_dense_replace=2)
    assert found.delta_layers == (True, False, True, False)
    assert found.sparse_layers == (False, False, True, True)
    assert (found.delta_heads, found.delta_key_size, found.convolution_length) == (8, 64, 3)


def test_heads_that_share_keys_are_refused() -> None:
    with pytest.raises(Exception, match="32 query heads and 8 KV heads"):
        read(num_key_value_heads=8)


# Llama 4: chunks of positions, the attention temperature, and what llama.cpp has no keys for.


SIZES: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 32, "intermediate_size_mlp": 96,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "num_local_experts": 4, "max_position_embeddings": 64,
}  # fmt: skip


def to_metadata(**changes: Any) -> Any:
    document = {"model_type": "llama4_text", **SIZES, **changes}
    family = FAMILIES["llama4"].load()
    return to_gguf(family, from_hugging_face(family, document, "here").fields)


def test_positions_see_their_own_chunk_and_queries_far_into_a_text_are_multiplied(
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    config = transformers.Llama4TextConfig(
        **SIZES, attention_chunk_size=8, floor_scale=4, attn_scale=0.5, moe_layers=[1, 2]
    )
    model = transformers.Llama4ForCausalLM._from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * (0.3 if parameter.dim() > 1 else 1))
    model.save_pretrained(tmp_path)
    tokens = np.arange(40).reshape(1, 40) % 64
    with torch.inference_mode():
        expected = model(torch.tensor(tokens)).logits.numpy()
    found = recognize(open_weights(tmp_path))
    found.check()
    (output,) = executed(build_network(found).graph(), tokens, weights=found.weights)
    assert np.abs(output - expected).max() < 1e-3 * np.abs(expected).max()


@each(
    "changes, message",
    [
        ({"attention_chunk_size": 32}, "`attention_chunk` is `32`, but llama.cpp would read"),
        ({"floor_scale": 4}, "`temperature_length` is `4`"),
        ({"attn_temperature_tuning": False}, "`has_temperature` is `False`"),
        ({"use_qk_norm": False}, "`has_qk_norm` is `False`"),
        ({"num_local_experts": 128}, "`has_qk_norm` is `True`"),
        (
            {"moe_layers": [1]},
            "layers with experts are not those that `interleave_moe_layer_step` selects",
        ),
        ({"no_rope_layers": [1, 1, 0, 1]}, "layers without RoPE and chunked attention are not"),
        ({"num_hidden_layers": 3}, "fewer than 4 layers"),
    ],
)
def test_what_llama_cpp_would_compute_otherwise_in_llama_4_is_refused(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArchitectureError, match=message):
        to_metadata(**changes)


def test_a_model_of_128_experts_has_no_norms_of_queries_and_keys_to_llama_cpp() -> None:
    assert to_metadata(num_local_experts=128, use_qk_norm=False)["llama4.expert_count"].content


def test_the_text_model_of_a_multimodal_config_is_read() -> None:
    document = {"model_type": "llama4", "text_config": {**SIZES, "attn_temperature_tuning": 4}}
    fields = from_hugging_face(FAMILIES["llama4"].load(), document, "here").fields
    assert (fields["experts"], fields["has_temperature"]) == (4, True)


# The text models of Mistral's multimodal checkpoints, and the attention temperature.


TOKENS = list(range(40))
MISTRAL3 = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
         "num_attention_heads": 4, "max_position_embeddings": 512}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "mscale": 1.0,
        "mscale_all_dim": 1.0, "original_max_position_embeddings": 8,
        "llama_4_scaling_beta": 0.5}  # fmt: skip
LATENT = {"num_key_value_heads": 4, "kv_lora_rank": 32, "q_lora_rank": 32, "qk_nope_head_dim": 16,
          "qk_rope_head_dim": 16, "v_head_dim": 16, "n_routed_experts": 4, "num_experts_per_tok": 2,
          "moe_intermediate_size": 32}  # fmt: skip
TEXTS: dict[str, dict[str, Any]] = {
    "mistral": MISTRAL3 | {"num_key_value_heads": 2},
    "ministral3": MISTRAL3
    | {"num_key_value_heads": 2, "head_dim": 16, "rope_parameters": dict(YARN)},
    "mistral4": MISTRAL3 | LATENT | {"rope_parameters": dict(YARN)},
}
VISION = {"model_type": "pixtral", "hidden_size": 32, "intermediate_size": 32, "head_dim": 16,
          "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 32,
          "patch_size": 16}  # fmt: skip


def save_multimodal(kind: str, into: Path) -> NDArray[Any]:
    """Save a multimodal model with a text model of a type, and return its logits."""
    torch.manual_seed(0)
    config = transformers.Mistral3Config(
        text_config=TEXTS[kind] | {"model_type": kind},
        vision_config=VISION,
        tie_word_embeddings=False,
    )
    model = transformers.Mistral3ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        expected = model(torch.tensor([TOKENS])).logits[0].numpy()
    model.save_pretrained(into)
    return np.asarray(expected)


@each("kind", TEXTS)
def test_the_text_model_of_a_multimodal_checkpoint_is_run(kind: str, tmp_path: Path) -> None:
    expected = save_multimodal(kind, tmp_path)
    model = recognize(open_weights(tmp_path))
    network = build_network(model)
    (found,) = executed(network.graph(), np.array([TOKENS]), weights=model.weights)
    assert np.abs(found[0] - expected).max() < 1e-3
    assert model.family.name == ("mistral4" if kind == "mistral4" else "mistral3")


def test_the_text_model_of_exaone_4_5_is_run_and_converted(tmp_path: Path) -> None:
    # The releases have another type of the text model than transformers writes now.
    config = transformers.CONFIG_MAPPING["exaone4_5"](
        text_config=TEXTS["mistral"] | {"model_type": "exaone4_5_text", "sliding_window": 8},
        vision_config={"hidden_size": 32, "intermediate_size": 32, "depth": 1, "num_heads": 2,
                       "num_key_value_heads": 2, "out_hidden_size": 64},
        image_token_id=60, video_token_id=61,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.Exaone4_5_ForConditionalGeneration(config).eval()
    with torch.no_grad():
        expected = model(torch.tensor([TOKENS])).logits[0].numpy()
    model.save_pretrained(tmp_path / "hf")
    config_file = tmp_path / "hf" / "config.json"
    document = json.loads(config_file.read_text())
    assert document["text_config"]["model_type"] == "exaone4"
    document["text_config"]["model_type"] = "exaone4_5_text"
    config_file.write_text(json.dumps(document))
    convert(tmp_path / "hf", tmp_path / "text.gguf", to="gguf", dtype="f32")
    for path in (tmp_path / "hf", tmp_path / "text.gguf"):
        found = recognize(open_weights(path))
        network = build_network(found)
        (made,) = executed(network.graph(), np.array([TOKENS]), weights=found.weights)
        assert np.abs(made[0] - expected).max() < 1e-4
    assert found.family.name == "exaone4"


@each("kind", ["kimi_k25", "kimi_vl"])
def test_the_text_model_of_kimi_k2_5_is_run_and_converted(kind: str, tmp_path: Path) -> None:
    # The releases have another type of the text model than transformers writes, and transformers
    # renames their `layers`. Kimi-VL, which it lacks, has the names of these releases.
    config = transformers.CONFIG_MAPPING["kimi_k25"](
        text_config=MISTRAL3 | LATENT | {
            "model_type": "deepseek_v3", "moe_intermediate_size": 32, "n_group": 1, "topk_group": 1,
            "first_k_dense_replace": 1, "rope_parameters": YARN | {"mscale_all_dim": 1.0},
        },
        vision_config={"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
                       "num_attention_heads": 2, "pos_emb_height": 4, "pos_emb_width": 4},
        projection_hidden_size=32, image_token_id=60, video_token_id=61, tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.Kimi_K25ForConditionalGeneration(config).eval()
    with torch.no_grad():
        expected = model(torch.tensor([TOKENS])).logits[0].numpy()
    model.save_pretrained(tmp_path / "hf")
    config_file = tmp_path / "hf" / "config.json"
    document = json.loads(config_file.read_text())
    document["model_type"] = kind
    if kind == "kimi_k25":
        document["text_config"]["model_type"] = "kimi_k2"
        document["architectures"] = ["KimiK25ForConditionalGeneration"]
    config_file.write_text(json.dumps(document))
    tensors = load_file(tmp_path / "hf" / "model.safetensors")
    tensors = {
        name.replace("model.blocks.", "model.layers."): each for name, each in tensors.items()
    }
    save_file(tensors, tmp_path / "hf" / "model.safetensors", {"format": "pt"})
    convert(tmp_path / "hf", tmp_path / "text.gguf", to="gguf", dtype="f32")
    for path in (tmp_path / "hf", tmp_path / "text.gguf"):
        found = recognize(open_weights(path))
        network = build_network(found)
        (made,) = executed(network.graph(), np.array([TOKENS]), weights=found.weights)
        assert np.abs(made[0] - expected).max() < 1e-4
    assert found.family.name == "deepseek_v3"


STEP = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
        "num_attention_heads": 2, "num_attention_groups": 2, "head_dim": 16, "moe_num_experts": 4,
        "moe_top_k": 2, "moe_intermediate_size": 32, "share_expert_dim": 32, "sliding_window": 4,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention",
                        "sliding_attention"],
        "num_nextn_predict_layers": 1, "moe_layers_enum": "1,2", "pad_token_id": 0,
        "rope_theta": [5e6, 1e4, 1e4, 1e4], "partial_rotary_factors": [0.5, 1.0, 1.0, 1.0],
        "rope_scaling": {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0,
                         "high_freq_factor": 32.0, "original_max_position_embeddings": 32},
        "attention_other_setting": {"num_attention_heads": 4, "num_attention_groups": 2},
        "swiglu_limits": [None, 0.0, 0.1, 0.0], "swiglu_limits_shared": [0.2, 0.0, 0.1, 0.0],
        "model_type": "step3p5"}  # fmt: skip


def test_the_text_model_of_step_3_7_is_run_and_converted(tmp_path: Path) -> None:
    # transformers writes its own keys, and the names of the release.
    config = transformers.CONFIG_MAPPING["step3p7"](
        text_config=dict(STEP),
        vision_config={"width": 32, "layers": 1, "heads": 2, "image_size": 56, "mlp_ratio": 2.0},
    )
    torch.manual_seed(0)
    model = transformers.Step3p7ForConditionalGeneration(config).eval()
    with torch.no_grad():
        expected = model(torch.tensor([TOKENS])).logits[0].numpy()
    model.save_pretrained(tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "text.gguf", to="gguf", dtype="f32")
    for path in (tmp_path / "hf", tmp_path / "text.gguf"):
        found = recognize(open_weights(path))
        (made,) = executed(build_network(found).graph(), np.array([TOKENS]), weights=found.weights)
        assert np.abs(made[0] - expected).max() < 1e-4
    assert found.family.name == "step35"


def read_step(document: Mapping[str, Any]) -> Any:
    return from_hugging_face(FAMILIES["step35"].load(), document, "here").config


def test_the_keys_of_step_3_5_mean_what_transformers_reads() -> None:
    theirs = transformers.CONFIG_MAPPING["step3p5"](**STEP).to_dict()
    assert read_step(STEP) == read_step(json.loads(json.dumps(theirs)))
    assert read_step(STEP).layer_heads == (2, 4, 4)
    assert read_step(STEP).expert_limits == (0.0, 0.0, 0.1)
    default = transformers.CONFIG_MAPPING["step3p5"]().to_dict()
    assert read_step({"model_type": "step3p5"}) == read_step(json.loads(json.dumps(default)))


@each(
    "change, reason",
    [
        ({"layer_types": ["sliding_attention"] * 3 + ["full_attention"]}, "multi-token prediction"),
        ({"attention_other_setting": {"head_dim": 8}}, "another `head_dim`"),
        ({"num_sliding_attention_heads": 2}, "the number of heads with a window differs"),
        ({"rope_theta": [5e6, 1e4, 1e3, 1e4]}, "`rope_theta` of `sliding_attention` differs"),
        ({"zero_centered": False}, "norms add 1"),
    ],
)
def test_a_step_3_5_with_other_layers_is_refused(change: Mapping[str, Any], reason: str) -> None:
    with pytest.raises(ArchitectureError, match=reason):
        read_step(STEP | change)


def test_factors_of_step_3_5_by_llama_cpps_converter_are_read() -> None:
    # It computes them for whole heads, of which half are rotated.
    family = FAMILIES["step35"].load()
    read = from_hugging_face(family, STEP, "here")
    written = padded_factors(read.config)
    assert written is not None
    theirs = padded_factors(replace(read.config, rope_dimensions=16))
    assert theirs is not None
    assert written.shape == theirs.shape == (8,)
    for factors in (written, theirs):
        fields = with_padded_llama3({**read.fields, "scaling.kind": None}, factors)
        assert fields["scaling.kind"] == "llama3"
        assert fields["scaling.original_context"] == 32
        assert fields["rope_dimensions"] == 8


def test_the_text_model_of_minimax_m3_is_run_and_converted(tmp_path: Path) -> None:
    # transformers saves the names of the release, which has all experts and gates apart.
    sparse = {"sparse_num_index_heads": 2, "sparse_index_dim": 16, "sparse_block_size": 4,
              "sparse_topk_blocks": 2, "sparse_local_block": 1,
              "sparse_attention_freq": [0, 1, 1]}  # fmt: skip
    text = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 3,
            "dense_intermediate_size": 96, "shared_intermediate_size": 32, "head_dim": 16,
            "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4,
            "num_experts_per_tok": 2, "moe_layer_freq": [0, 1, 1], "bos_token_id": 1,
            "eos_token_id": 2, "partial_rotary_factor": 0.5, "rope_theta": 1e4,
            "sparse_attention_config": sparse, "model_type": "minimax_m3_vl_text"}  # fmt: skip
    config = transformers.CONFIG_MAPPING["minimax_m3_vl"](
        text_config=dict(text), image_token_index=60, video_token_index=61,
        projector_hidden_size=64,
        vision_config={"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
                       "num_attention_heads": 2, "image_size": 28},
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.MiniMaxM3SparseForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
        expected = model(torch.tensor([TOKENS])).logits[0].numpy()
    model.save_pretrained(tmp_path / "hf")
    config_file = tmp_path / "hf" / "config.json"
    document = json.loads(config_file.read_text())
    released = document | {"text_config": text | {"model_type": "minimax_m3"}}
    config_file.write_text(json.dumps(released))
    names = load_file(tmp_path / "hf" / "model.safetensors").keys()
    assert "language_model.model.layers.1.block_sparse_moe.experts.0.w1.weight" in names
    convert(tmp_path / "hf", tmp_path / "text.gguf", to="gguf", dtype="f32")
    family = FAMILIES["minimax_m3"].load()
    configs = [from_hugging_face(family, each, "here").config for each in (document, released)]
    assert configs[0] == configs[1]
    for path in (tmp_path / "hf", tmp_path / "text.gguf"):
        found = recognize(open_weights(path))
        (made,) = executed(build_network(found).graph(), np.array([TOKENS]), weights=found.weights)
        assert np.abs(made[0] - expected).max() < 1e-4
    other = text | {"sparse_attention_config": sparse | {"sparse_score_type": "mean"}}
    with pytest.raises(ArchitectureError, match="a block is the largest of its keys"):
        from_hugging_face(family, other, "here")


def test_the_rope_of_paddleocr_is_read_where_its_releases_state_it() -> None:
    family = FAMILIES["paddleocr"].load()
    document = {"model_type": "paddleocr_vl", "rope_theta": 1000000,
                "rope_scaling": {"type": "default", "mrope_section": [8, 12, 12]}}  # fmt: skip
    fields = from_hugging_face(family, document, "here").fields
    assert (fields["rope_base"], [*fields["rope_sections"]]) == (1000000.0, [8, 12, 12])


def test_what_a_multimodal_checkpoint_sees_with_is_left_out(tmp_path: Path) -> None:
    save_multimodal("ministral3", tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "text.gguf")
    names = header_of(open_weights(tmp_path / "text.gguf")).tensors
    assert "blk.1.attn_q.weight" in names
    assert not [name for name in names if "vision" in name or "projector" in name]


def test_gates_of_experts_that_gguf_has_with_what_they_gate_are_read(tmp_path: Path) -> None:
    # As llama.cpp's converter writes them.
    save_multimodal("mistral4", tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "apart.gguf")
    apart = open_weights(tmp_path / "apart.gguf")
    arrays = {name: np.array(apart[name].data().to_numpy()) for name in header_of(apart).tensors}
    for layer in range(2):
        gate, up = (f"blk.{layer}.ffn_{part}_exps.weight" for part in ("gate", "up"))
        both = np.concatenate([arrays.pop(gate), arrays.pop(up)], axis=1)
        arrays[f"blk.{layer}.ffn_gate_up_exps.weight"] = both
    data = {name: WeightData.from_numpy(array, name) for name, array in arrays.items()}
    joined = as_checkpoint(data, header_of(apart).metadata)
    outputs = [
        executed(build_network(found).graph(), np.array([TOKENS]), weights=found.weights)[0]
        for found in (recognize(apart), recognize(joined))
    ]
    assert np.array_equal(*outputs)


def test_queries_far_into_a_text_are_multiplied_by_more() -> None:
    queries = np.ones((1, 2, 6, 4), np.float32)
    found = run(Temperature(0.5, 2), queries)
    expected = 1 + 0.5 * np.log(1 + np.floor(np.arange(6) / 2))
    assert np.allclose(found[0, 1, :, 3], expected)


def test_the_offset_of_a_temperature_is_added_to_positions() -> None:
    queries = np.ones((1, 2, 6, 4), np.float32)
    found = run(Temperature(0.5, 2, offset=1), queries)
    expected = 1 + 0.5 * np.log(1 + np.floor((np.arange(6) + 1) / 2))
    assert np.allclose(found[0, 1, :, 3], expected)


def test_a_temperature_without_yarn_is_refused() -> None:
    rope = {"rope_type": "default", "rope_theta": 1e4, "llama_4_scaling_beta": 0.1}
    document = {"model_type": "ministral3", "rope_parameters": rope}
    with pytest.raises(ArchitectureError, match="`llama_4_scaling_beta` is only supported with"):
        from_hugging_face(FAMILIES["mistral3"].load(), document, "here")


# GGUF files of PLaMo 2 have the number of query heads once, or for each layer.


COUNTS: Any = next(key for key in FAMILIES["plamo2"].load().keys if key.field == "heads").kind


@each("content", [4, [0, 4, 0, 4], [4, 4]])
def test_the_number_of_heads_is_that_of_the_layers_with_attention(content: Any) -> None:
    assert COUNTS.read(content) == 4


@each("content", [[], [0, 0], [0, 4, 0, 2], "4", [0, "4"]])
def test_other_numbers_are_refused(content: Any) -> None:
    with pytest.raises(ValueError, match=r"must be|must have|is "):
        COUNTS.read(content)


def test_it_is_written_as_one_number() -> None:
    assert COUNTS.write(4) == 4


# What is special about DeepSeek-V4's config, its table of experts, and its longer compression.


DEEPSEEK_V4 = FAMILIES["deepseek_v4"].load()
STRETCHED = {"factor": 16.0, "original_max_position_embeddings": 65536}


def read_v4(**keys: Any) -> Any:
    return from_hugging_face(DEEPSEEK_V4, {"model_type": "deepseek_v4", **keys}, "here").config


def test_published_and_current_config_files_mean_the_same() -> None:
    published = read_v4(
        num_hidden_layers=3,
        compress_ratios=[0, 4, 128, 0],
        num_hash_layers=1,
        qk_rope_head_dim=64,
        rope_scaling={"type": "yarn", **STRETCHED},
    )
    compress = {
        "rope_type": "yarn",
        "rope_theta": 160000.0,
        "attention_factor": 1.0,
        **STRETCHED,
    }
    current = read_v4(
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
        (
            {"rope_scaling": {"type": "yarn", "attention_factor": 1.2, **STRETCHED}},
            "attention_factor",
        ),
        ({"rope_parameters": [1]}, "not a JSON object"),
        ({"rope_scaling": {"type": "llama3", **STRETCHED}}, "one of `default`, `linear`, `yarn`"),
    ],
)
def test_what_does_not_fit_is_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ArchitectureError) as caught:
        read_v4(**keys)
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
