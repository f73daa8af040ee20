"""What single families need besides the rows of their files, by the name of the family."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Any

from weightctl.families.configs import is_same_float32
from weightctl.families.decoder_keys import check_decoder
from weightctl.families.keys import Key
from weightctl.families.kinds import LAYERS, SIZE, Real, WholeNumber, show_value
from weightctl.families.latent import check_latent
from weightctl.families.multimodal import standard_text, text_of_type
from weightctl.families.rope_keys import standard, standard_of
from weightctl.families.rope_sections import with_default_rope
from weightctl.families.windowed_layers import (
    WORDS,
    mark_windowed_layers,
    standard_windows,
    with_layer_types,
)
from weightctl.text.untyped import is_list, is_object, is_sequence

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.keys import Fields
    from weightctl.weights.metadata import MetadataValue

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
