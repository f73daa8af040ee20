"""What single families need besides the rows of their files, by the name of the family."""

from __future__ import annotations

import math
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from weightctl.families.configs import is_same_float32
from weightctl.families.decoder_keys import check_decoder
from weightctl.families.delta import find_unlike_delta
from weightctl.families.hybrid import mark_all
from weightctl.families.keys import Key
from weightctl.families.kinds import LAYERS, SIZE, Real, WholeNumber, show_value
from weightctl.families.latent import check_indexer, check_latent, find_difference_of_scaling
from weightctl.families.layer_rope import object_of
from weightctl.families.layers import LayerChoice, every_but
from weightctl.families.multimodal import standard_text, text_of_type
from weightctl.families.rope_keys import standard, standard_of
from weightctl.families.rope_sections import find_empty_sections, with_default_rope
from weightctl.families.row_orders import alternate, group_heads
from weightctl.families.windowed_layers import (
    FLAGS,
    GLOBAL,
    WORDS,
    mark_windowed_layers,
    standard_windows,
    with_layer_types,
)
from weightctl.text.untyped import is_list, is_object, is_sequence

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weightctl.families.keys import Fields
    from weightctl.weights.metadata import MetadataValue

# AFMoE


def find_unlike_afmoe(fields: Fields) -> str | None:
    """Return why llama.cpp would run a different model, None if it would not."""
    if fields["rotated_layers"] != every_but(4)(fields):
        return "its layers with full attention are not exactly every fourth layer"
    return None


# Bailing


def standard_bailingmoe(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json in which the number of KV heads is not 0."""
    # 0 means as many KV heads as query heads.
    heads = document.get("num_key_value_heads") or None
    return standard({**document, "num_key_value_heads": heads})


# CamemBERT


def is_camembert(metadata: Mapping[str, MetadataValue]) -> bool:
    """Whether the unigram tokenizer of a BERT begins with a token of fairseq."""
    model, listed = (metadata.get(f"tokenizer.ggml.{name}") for name in ("model", "tokens"))
    if model is None or listed is None or model.content != "t5":
        return False
    tokens = listed.content
    return is_sequence(tokens) and len(tokens) > 0 and tokens[0] == "<s>NOTUSED"


# Command R and Command R7B

_LAYERS_WITH_NORMS = 64


def find_unlike_cohere(fields: Fields) -> str | None:
    """Return why llama.cpp does not load a model, None if it does.

    llama.cpp infers from the number of layers whether queries and keys are normed.
    """
    if (fields["qk_norm"] is not None) == (fields["layers"] >= _LAYERS_WITH_NORMS):
        return None
    found = "norms" if fields["qk_norm"] else "no norms"
    return (
        f"it has {fields['layers']} layers and {found} of queries and keys, but llama.cpp expects "
        f"these norms in models of {_LAYERS_WITH_NORMS} layers or more, and in no others"
    )


def standard_cohere2(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json in the form of transformers 5: layer types instead of a period."""
    found = standard(document)
    period = document.get("sliding_window_pattern")
    if period is None or document.get("layer_types") is not None:
        return found
    layers = mark_windowed_layers(document.get("num_hidden_layers", 40), SIZE.read(period))
    return {**found, "layer_types": WORDS.write(layers)}


# DeepSeek

_BY_GROUPS = "group_limited_greedy"


def find_difference_of_deepseek_v2(fields: Fields) -> str | None:
    """Return what llama.cpp computes differently from transformers, or None."""
    if fields["expert_method"] == "groups":
        return "it ranks a group of experts by the best two of them in place of the best one"
    return find_difference_of_scaling(fields)


def find_method(fields: Fields) -> str:
    """Return how experts are selected."""
    return "greedy" if fields["expert_groups"] == 1 else "groups"


def standard_deepseek_v2(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json with groups only if they are used: one group is as good as none."""
    found, method = dict(standard(document)), "topk_method"
    if found.get(method) == _BY_GROUPS and found.get("n_group") in (None, 1):  # a list has no hash
        found[method] = "greedy"
    if found.get(method, "greedy") == "greedy":
        found |= {"n_group": 1, "topk_group": 1}
    return found


def standard_deepseek_v32(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json with the number of dense layers that `mlp_layer_types` begins with.

    Raises `ValueError` if there are dense layers after these.
    """
    found = dict(standard(document))
    kinds = found.get("mlp_layer_types")
    if not is_list(kinds):
        return found
    count = kinds.index("sparse") if "sparse" in kinds else len(kinds)
    if any(kind != "dense" for kind in kinds[:count]) or any(
        kind != "sparse" for kind in kinds[count:]
    ):
        raise ValueError("`mlp_layer_types` must list `dense` layers first, and then `sparse` ones")
    return found | {"first_k_dense_replace": count}


# DistilBERT


def find_other_head(fields: Fields) -> str | None:
    """Return what llama.cpp computes differently from transformers, or None."""
    return "it uses tanh in the classifier in place of ReLU" if fields["labels"] else None


# dots.llm1


def standard_dots1(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json with the type of attention of each layer; any window is used."""
    stated = {**standard(document), "use_sliding_window": True}
    return with_layer_types(stated, window=4096, first=62, layers=62)


# ERNIE 4.5, mixtures of experts


def mark_ernie_layers(fields: Fields) -> tuple[bool, ...]:
    """Mark the layers with experts: every `sparse_step` from the first to the last."""
    first, last, step = (fields[name] for name in ("dense_first", "sparse_last", "sparse_step"))
    return tuple(
        first <= layer <= last and (layer + 1) % step == 0 for layer in range(fields["layers"])
    )


def find_last_layer(fields: Fields) -> int:
    """Return the number of the last layer."""
    return int(fields["layers"]) - 1


def standard_ernie4_5_moe(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json in which the number of the last layer with experts is a valid layer."""
    found, key = standard(document), "moe_layer_end_index"
    last = document.get(key, 27)
    layers = LAYERS.read(document.get("num_hidden_layers", 28))
    is_beyond = type(last) is int and (last == -1 or last >= layers)
    return {**found, key: layers - 1 if is_beyond else last}


def find_layers_without_experts(fields: Fields) -> str | None:
    """Return why llama.cpp does not load a model with dense layers after the first ones."""
    if all(fields["sparse_layers"][fields["dense_first"] :]):
        return None
    return f"some layers after the first {fields['dense_first']} have no experts"


# K-EXAONE


def standard_exaone_moe(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json with the number of dense layers that `mlp_layer_types` begins with."""
    types = document.get("mlp_layer_types")
    if not is_list(types):
        return document
    count = len(list(takewhile(lambda word: word == "dense", types)))
    return {**document, "first_k_dense_replace": count}


# GLM-4.5


def find_glm_head(fields: Fields) -> int:
    """Return the size of a head, a usual one if the heads do not divide the hidden size.

    The quotient in transformers' default config would be 42; half of that cannot form pairs.
    """
    hidden, heads = int(fields["hidden"]), int(fields["heads"])
    return 128 if hidden % heads else hidden // heads


# GLM-5

_FULL, _SHARED = "full", "shared"
# Without a key, llama.cpp takes models with at least this context for GLM-5.2.
_LONG_CONTEXT = 1 << 20


def mark_glm_indexers(fields: Fields) -> tuple[bool, ...]:
    """Return the layers with an indexer as llama.cpp assumes them without a key."""
    if fields["context"] < _LONG_CONTEXT:
        return mark_all(fields)
    return tuple(layer < 2 or layer % 4 == 2 for layer in range(fields["layers"]))


GLM_INDEXER_KEYS = (
    Key(field="indexer_layers", kind=LayerChoice(_FULL, _SHARED), default=mark_all,
        hugging_face="indexer_types", written=True),
    Key(field="indexer_layers", kind=FLAGS, gguf_default=mark_glm_indexers,
        gguf="{arch}.attention.indexer.types"),
)  # fmt: skip


def standard_glm_moe_dsa(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json with a word for each layer that states whether it has an indexer."""
    found = dict(standard_deepseek_v32(document))
    if found.get("indexer_types") is not None:
        return found
    pattern = found.get("index_topk_pattern")
    if isinstance(pattern, str):
        return found | {
            "indexer_types": [{"F": _FULL, "S": _SHARED}.get(letter, letter) for letter in pattern]
        }
    period, offset = found.get("index_topk_freq", 1), found.get("index_skip_topk_offset", 2)
    if type(period) is not int or type(offset) is not int:
        raise ValueError("`index_topk_freq` and `index_skip_topk_offset` must be integers")
    layers = LAYERS.read(found.get("num_hidden_layers", 78))
    return found | {
        "indexer_types": [
            _SHARED if max(layer - offset + 1, 0) % max(period, 1) else _FULL
            for layer in range(layers)
        ]
    }


def find_unlike_glm_moe_dsa(fields: Fields) -> str | None:
    """Return why llama.cpp does not run this model, None if it does."""
    if fields["scaling.kind"] is not None:
        return "llama.cpp does not apply RoPE scaling as transformers does in this family"
    return None


def check_glm_moe_dsa(fields: Fields) -> Fields:
    """Return the fields; raises `ValueError` if the first layer has no indexer."""
    if not fields["indexer_layers"][0]:
        raise ValueError("the first layer must have an indexer, whose selection others can share")
    return check_indexer(fields)


# gpt-oss

# The defaults of `GptOssConfig` for RoPE.
_GPT_OSS_ROPE: Mapping[str, Any] = {
    "rope_type": "yarn",
    "factor": 32.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
    "rope_theta": 150000.0,
}


def alternate_gate_and_up(config: Any) -> Sequence[int]:
    """Return the order in which the columns of an expert's gate and up alternate."""
    return alternate(config.expert_intermediate)


def standard_gpt_oss(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json with the usual RoPE if it does not state any."""
    if not document.get("rope_scaling") and not document.get("rope_parameters"):
        document = {**document, "rope_parameters": _GPT_OSS_ROPE}
    return standard(document)


# Granite 4, dense models


def is_dense_granite(document: Mapping[str, Any]) -> bool:
    """Whether a Granite 4 has neither experts nor state space models."""
    words = document.get("layer_types")
    has_states = not is_list(words) or any(
        word not in ("attention", "full_attention") for word in words
    )
    return document.get("num_local_experts", 8) == 0 and not has_states


# Hunyuan


def standard_hunyuan(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json with a larger base of RoPE in place of the type `dynamic`."""
    made = standard(document)
    rope: Any = made["rope_parameters"]
    if not is_object(rope) or rope.get("rope_type") != "dynamic" or not rope.get("alpha"):
        return made
    size: Any = document.get("head_dim")
    if size is None:
        size = document.get("hidden_size", 4096) // document.get("num_attention_heads", 32)
    base, alpha = rope.get("rope_theta", 10000.0), rope["alpha"]
    for name, value, least in (("alpha", alpha, 0), ("rope_theta", base, 0), ("head_dim", size, 2)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > least:
            raise ValueError(f"`{name}` is {value!r}; it must be a number above {least}")
    return {**made, "rope_parameters": {"rope_theta": base * alpha ** (size / (size - 2))}}


# LFM2


def standard_lfm2(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json in transformers' current form, with the width that the MLP has."""
    found = dict(standard(document))
    for old, new in {"tie_embedding": "tie_word_embeddings", "block_ff_dim": "intermediate_size",
                     "theta": "rope_theta"}.items():  # fmt: skip
        if found.get(old) is not None:
            found[new] = found[old]
    layers, attended = found.get("num_hidden_layers", 32), found.get("full_attn_idxs")
    if found.get("layer_types") is None and is_list(attended) and isinstance(layers, int):
        found["layer_types"] = [
            GLOBAL if number in attended else "conv" for number in range(min(layers, 1 << 16))
        ]
    return found


def adjust_lfm2_width(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json with the width of the MLP that transformers computes from its keys."""
    found = dict(standard_lfm2(document))
    width = found.get("intermediate_size", 12288)
    multiple, factor = found.get("block_multiple_of", 256), found.get("block_ffn_dim_multiplier", 1)
    if not found.get("block_auto_adjust_ff_dim", True):
        return found
    if type(width) is not int or type(multiple) is not int or multiple < 1:
        raise ValueError("`intermediate_size` and `block_multiple_of` must be positive integers")
    width = int(2 * width / 3)
    if factor is not None:
        if type(factor) not in {int, float} or not 0 < factor < math.inf:
            raise ValueError("`block_ffn_dim_multiplier` must be a positive number")
        width = -(-int(factor * width) // multiple) * multiple
    return found | {"intermediate_size": width, "block_auto_adjust_ff_dim": False}


def complete_lfm2(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json that states that its `intermediate_size` is that of the MLP."""
    return {**document, "block_auto_adjust_ff_dim": False}


# Llama

# The type of the text model in multimodal models of these types.
_TEXTS = {
    "idefics3": "llama",
    "smolvlm": "llama",
    "llava": "mistral",
    "internvl": "llama",
    "voxtral": "llama",
}
# The names in InternLM's own code.
_usual_standard = standard_of({"attention_bias": "qkv_bias", "mlp_bias": "bias"})


def standard_llama(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the standard config.json of the text model, which multimodal models contain."""
    usual = _TEXTS.get(document["model_type"])
    if usual is None:
        return _usual_standard(document)
    return _usual_standard(text_of_type(document, usual))


# MiniCPM

_FACTOR = Real(0, 1e9)


def _share(fields: Fields) -> float:
    return float(fields["depth_scale"] / fields["layers"] ** 0.5)


def _find_depth_scale(fields: Fields) -> float:
    """Return the shortest `scale_depth` that gives the same residual scale in float32."""
    share, root = fields["residual_scale"], fields["layers"] ** 0.5
    rounded = (float(f"{share * root:.{digits}g}") for digits in range(1, 17))
    same = (each for each in rounded if is_same_float32(each / root, share))
    return next(same, float(share * root))


def _find_base(fields: Fields) -> int:
    hidden, divisor = float(fields["hidden"]), float(fields["logit_divisor"])
    return round(hidden / divisor)


# GGUF's keys, then those of config.json, each computed from those of the other.
MINICPM_FACTORS = (
    Key(field="embedding_scale", kind=_FACTOR, default=1.0, gguf_default=12.0,
        gguf="{arch}.embedding_scale", hugging_face="scale_emb"),
    # Files without these keys are from the first models.
    Key(field="residual_scale", kind=_FACTOR, gguf="{arch}.residual_scale",
        gguf_default=lambda fields: 1.4 / fields["layers"] ** 0.5),
    Key(field="depth_scale", kind=_FACTOR, default=1.0, gguf_default=_find_depth_scale,
        hugging_face="scale_depth", written=True),
    Key(field="residual_scale", kind=_FACTOR, default=_share),
    Key(field="logit_divisor", kind=_FACTOR, gguf="{arch}.logit_scale",
        gguf_default=lambda fields: fields["hidden"] / 256),
    Key(field="base_size", kind=SIZE, default=1, gguf_default=_find_base,
        hugging_face="dim_model_base", written=True),
    Key(field="logit_divisor", kind=_FACTOR,
        default=lambda fields: fields["hidden"] / fields["base_size"]),
)  # fmt: skip


# MiniCPM3


def check_minicpm3(fields: Fields) -> Fields:
    """Return the fields as `DecoderConfig` has them, with the factors of the published model."""
    return {
        **check_latent(fields),
        "residual_scale": 1.4 / fields["layers"] ** 0.5,
        "logit_divisor": fields["hidden"] / 256,
    }


# MiniMax-M2


def standard_minimax_m2(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json with the `rotary_dim` of the first checkpoints in `rope_parameters`."""
    rotated, head_dim = document.get("rotary_dim"), document.get("head_dim", 128)
    if type(rotated) is int and type(head_dim) is int and head_dim > 0:
        document = {"partial_rotary_factor": rotated / head_dim, **document}
    return standard(document)


# Mistral 3 and 4

# transformers' defaults if config.json does not have RoPE keys.
_MISTRAL4_ROPE: Mapping[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 128.0,
    "original_max_position_embeddings": 8192,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
_MISTRAL3_ROPE: Mapping[str, Any] = {
    **_MISTRAL4_ROPE,
    "rope_theta": 1000000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
}
# Its defaults for a text model of type `mistral`.
_MISTRAL: Mapping[str, Any] = {
    "vocab_size": 32000,
    "max_position_embeddings": 131072,
    "num_hidden_layers": 32,
    "rms_norm_eps": 1e-6,
    "sliding_window": 4096,
    "head_dim": None,
    "rope_theta": 10000.0,
}


def _standard_mistral(document: Mapping[str, Any], rope: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the standard config.json of a text model, with `rope` if it does not state RoPE.

    A multimodal model has it as `text_config`.
    """
    if document["model_type"] == "mistral3":
        text = object_of(document, "text_config")
        if text.get("model_type", "mistral") == "mistral":
            rope, text = {}, {**_MISTRAL, **text}
        tied = "tie_word_embeddings"
        document = {**text, tied: document[tied]} if tied in document else text
    if not document.get("rope_scaling") and not document.get("rope_parameters"):
        document = {**document, "rope_parameters": rope}
    return standard(document)


standard_mistral3 = partial(_standard_mistral, rope=_MISTRAL3_ROPE)
standard_mistral4 = partial(_standard_mistral, rope=_MISTRAL4_ROPE)


def _check_temperature(fields: Fields) -> Fields:
    """Return the fields; raises `ValueError` for a temperature that llama.cpp does not support."""
    if fields["temperature_scale"] and fields["scaling.kind"] != "yarn":
        raise ValueError("`llama_4_scaling_beta` is only supported with `yarn` scaling")
    return fields


def check_mistral3(fields: Fields) -> Fields:
    """Return the fields as `DecoderConfig` has them; raises `ValueError` if they contradict."""
    return check_decoder(_check_temperature(fields))


def check_mistral4(fields: Fields) -> Fields:
    """Return the fields as `DecoderConfig` has them; raises `ValueError` if they contradict."""
    return check_latent(_check_temperature(fields))


def find_difference_of_mistral4(fields: Fields) -> str | None:
    """Return what llama.cpp computes differently from transformers, or None."""
    if fields["scaling.kind"] == "yarn" and fields["scaling.mscale_all_dim"] != 1:
        return "it always uses 1 for `mscale` and `mscale_all_dim`"
    return find_difference_of_scaling(fields)


# Nomic

# The keys of Nomic's own code, which the published models have.
_CALLED = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
    "rotary_emb_base": "rope_theta",
}
# The other keys of Nomic's code that change what is computed, and their only supported values.
_ONLY: dict[str, tuple[Any, ...]] = {
    "activation_function": ("swiglu",),
    "rotary_emb_fraction": (1.0,),
    "rotary_emb_scale_base": (None,),
    "moe_every_n_layers": (None, 0),
    **dict.fromkeys(
        ("causal", "prenorm", "parallel_block", "use_rms_norm", "qkv_proj_bias", "mlp_fc1_bias",
         "mlp_fc2_bias", "rotary_emb_interleaved"),
        (False, None),
    ),
}  # fmt: skip


def standard_nomic_bert(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json in the form of transformers 5, also that of Nomic's own code.

    Nomic's code scales RoPE only for texts longer than `max_trained_positions`, as llama.cpp's
    converter assumes, too.
    """
    if "n_embd" not in document:
        return standard(document)
    for key, values in _ONLY.items():
        if document.get(key, values[0]) not in values:
            raise ValueError(f"`{key}` is {show_value(document[key])}, which is not supported")
    made = dict(document) | {new: document[old] for old, new in _CALLED.items() if old in document}
    if made.get("intermediate_size") is None and type(made["hidden_size"]) is int:
        made["intermediate_size"] = 4 * made["hidden_size"]
    trained, given = document.get("max_trained_positions"), made.get("max_position_embeddings")
    if type(trained) is int and type(given) is int:
        made["max_position_embeddings"] = min(trained, given)
    return standard(made)


# Phi-3.5-MoE


def check_phimoe(fields: Fields) -> Fields:
    """Return the fields; raises `ValueError` if the amplitudes of LongRoPE differ.

    transformers requires one for short contexts and one for long ones.
    """
    long, kind = fields["scaling.long_amplitude"], fields["scaling.kind"]
    if kind == "longrope" and fields.get("scaling.attention_factor", long) != long:
        raise ValueError("`short_mscale` and `long_mscale` of its RoPE scaling differ")
    return check_decoder(fields)


# Qwen3, mixtures of experts


def standard_qwen3moe(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json with the keys of transformers 5 under the names of older versions."""
    found = {"sliding_window": 4096, **standard(document)}
    if found.get("num_experts") is None:
        found["num_experts"] = found.get("num_local_experts")
    if not found.get("use_sliding_window"):
        found["sliding_window"] = None
    return found


# Qwen3-VL: the image encoder also returns vectors that are added after the first layers.

_COUNT = WholeNumber(0, 1024)
# The image encoder's layers whose output is added, as transformers' default config lists them.
_USUAL = 3
_DEEPSTACK = "deepstack_layers"


def _find_deepstack(fields: Fields) -> int:
    return int(fields.get("listed_layers", 0))


DEEPSTACK_KEYS = (
    Key(field="listed_layers", kind=_COUNT, default=0, hugging_face=_DEEPSTACK, written=False),
    Key(field=_DEEPSTACK, kind=_COUNT, gguf_default=_find_deepstack,
        gguf="{arch}.n_deepstack_layers"),
)  # fmt: skip


def standard_vision_text(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the standard config.json of the text model of a multimodal model."""
    vision, found = document.get("vision_config"), dict(with_default_rope(standard_text(document)))
    if is_object(vision):
        listed = vision.get("deepstack_visual_indexes")
        found[_DEEPSTACK] = len(listed) if is_list(listed) else _USUAL
    return standard_windows({"use_sliding_window": False, **found})


# Qwen3-Next and Qwen3.5


def order_by_key_head(config: Any) -> Sequence[int]:
    """Return the order by key heads: each has its query, key, values and gates."""
    group = config.delta_heads // config.delta_key_heads
    keys, values = config.delta_key_size, config.delta_value_size * group
    return group_heads(config.delta_key_heads, (keys, keys, values, values))


def order_by_group(config: Any) -> Sequence[int]:
    """Return the order by key heads: each has its shares and fadings."""
    group = config.delta_heads // config.delta_key_heads
    return group_heads(config.delta_key_heads, (group, group))


def find_unlike_qwen35(fields: Fields) -> str | None:
    """Return why llama.cpp does not load or run a model, None if it does."""
    return find_empty_sections(fields) or find_unlike_delta(fields)


# RoBERTa


def find_context(fields: Fields) -> int:
    """Return the number of positions: the rows of the position table after those for padding."""
    found: int = fields["table_rows"] - fields["padding"] - 1
    if found < 1:
        raise ValueError(
            f"(the number of positions) would be {found}: the table of position embeddings has "
            f"{fields['table_rows']} rows (`max_position_embeddings`), and the first "
            f"{fields['padding'] + 1} rows (up to row `pad_token_id`) are reserved"
        )
    return found


def find_rows(fields: Fields) -> int:
    """Return the number of rows of the position table."""
    return int(fields["context"] + fields["padding"] + 1)
