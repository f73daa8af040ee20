"""What single families need besides the rows of their files, by the name of the family."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from itertools import cycle, islice, takewhile
from math import frexp, ldexp
from typing import TYPE_CHECKING, Any

from weightctl.families.config_keys import GLOBAL, LOCAL, Key, LayersWith
from weightctl.families.config_values import LAYERS, SIZE, Real, WholeNumber, show_value
from weightctl.families.configs import is_same_float32
from weightctl.families.decoder_keys import check_decoder
from weightctl.families.delta import find_unlike_delta
from weightctl.families.experts import checking_experts, find_shared_heads
from weightctl.families.heads import check_head, reading_head
from weightctl.families.hybrid import check_kv_heads, mark_all, mark_none
from weightctl.families.latent import check_indexer, check_latent, find_difference_of_scaling
from weightctl.families.layers import (
    FLAGS,
    NUMBERS,
    ONES,
    WORDS,
    LayerChoice,
    every_but,
    mark_windowed_layers,
    pattern_keys,
    standard_windows,
    with_layer_types,
)
from weightctl.families.modules import Change
from weightctl.families.multimodal import (
    open_thinker,
    standard_llama,
    standard_text,
    take_text,
)
from weightctl.families.rope import (
    GEMMA_ROPE,
    find_empty_sections,
    keys_of_global_layers,
    rope_by_layer,
    standard,
    with_default_rope,
)
from weightctl.families.state_space import check_heads_of_states, without_auto
from weightctl.families.steps import alternate, group_heads, scaled_queries
from weightctl.text.untyped import is_list, is_object, is_sequence, object_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from weightctl.families.config_keys import Fields
    from weightctl.weights.metadata import MetadataValue

# AFMoE


def find_unlike_afmoe(fields: Fields) -> str | None:
    """Return why llama.cpp would run a different model, None if it would not."""
    if fields["rotated_layers"] != every_but(4)(fields):
        return "its layers with full attention are not exactly every fourth layer"
    return None


# Baichuan

_POSITIONS = {32: "rope", 40: "alibi"}


def find_baichuan_positions(fields: Fields) -> str:
    """Return how positions are encoded, which follows from the number of layers only."""
    found = _POSITIONS.get(fields["layers"])
    if found is None:
        raise ValueError(
            f"(the encoding of positions) is not known for {fields['layers']} layers: models of 32 "
            "layers have RoPE, and those of 40 layers ALiBi"
        )
    return found


def normalize_rows(vocabulary: int) -> Change:
    """Return the change of an output whose rows are normalized in models with this vocabulary.

    The code of Baichuan 2 does this, and that of Baichuan does not; config.json does not say so.
    """
    from weightctl.weights.steps.numbers import UnitRows

    return Change(
        lambda config: UnitRows() if config.vocabulary == vocabulary else None,
        lambda _: None,
        runs_as="gguf",
    )


# Bailing


def standard_bailing_hybrid(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json in Kimi Linear's form, with the type of attention of each layer.

    By default, the last layer of each group has full attention.
    """
    from weightctl.families.kimi_linear import standard_kimi_linear

    found = dict(standard_kimi_linear(document))
    # transformers saves these two keys with names of its own.
    for name, own in (
        ("head_dim", "linear_head_dim"), ("short_conv_kernel_size", "linear_conv_kernel_dim")
    ):  # fmt: skip
        found |= {name: found[own]} if own in found else {}
    if found.get("layer_types") is None:
        layers = LAYERS.read(found.get("num_hidden_layers", 42))
        group = WholeNumber(1, LAYERS.most).read(found.get("layer_group_size", 6))
        found["layer_types"] = [
            "linear_attention" if (layer + 1) % group else GLOBAL for layer in range(layers)
        ]
    return standard(found)


def standard_bailingmoe(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json in which the number of KV heads is not 0."""
    # 0 means as many KV heads as query heads.
    heads = document.get("num_key_value_heads") or None
    return standard({**document, "num_key_value_heads": heads})


# Bamba


def list_indices(fields: Fields) -> tuple[int, ...]:
    """Return the numbers of the layers with attention."""
    return tuple(number for number, has in enumerate(fields["attention_layers"]) if has)


def list_no_indices(fields: Fields) -> tuple[int, ...]:
    del fields
    return ()


def mark_indices(fields: Fields) -> tuple[bool, ...]:
    """Mark the layers with attention by their numbers."""
    return tuple(number in fields["attention_indices"] for number in range(fields["layers"]))


def standard_bamba(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json in transformers' current form.

    Half of each head is rotated, whatever the key `partial_rotary_factor` of older configs is.
    """
    found = dict(without_auto(standard(document)))
    rope, stated = (each.get("rope_parameters", {}) for each in (found, document))
    if is_object(rope):
        share = stated.get("partial_rotary_factor", 0.5) if is_object(stated) else 0.5
        found["rope_parameters"] = {**rope, "partial_rotary_factor": share}
    return found


def check_states(fields: Fields) -> Fields:
    """Return the fields as `DecoderConfig` has them; raises `ValueError` if they contradict."""
    check_kv_heads(fields)
    check_heads_of_states(fields)
    return check_decoder(fields)


# CamemBERT


def is_camembert(metadata: Mapping[str, MetadataValue]) -> bool:
    """Whether the unigram tokenizer of a BERT begins with a token of fairseq."""
    model, listed = (metadata.get(f"tokenizer.ggml.{name}") for name in ("model", "tokens"))
    if model is None or listed is None or model.content != "t5":
        return False
    tokens = listed.content
    return is_sequence(tokens) and len(tokens) > 0 and tokens[0] == "<s>NOTUSED"


def is_xlm_roberta(metadata: Mapping[str, MetadataValue]) -> bool:
    """Whether a BERT has a unigram tokenizer of another kind."""
    model = metadata.get("tokenizer.ggml.model")
    return model is not None and model.content == "t5" and not is_camembert(metadata)


# CodeShell


def copy_tied_output(config: Any) -> Mapping[str, str]:
    """Return the output of a tied model as a copy of the embedding, which llama.cpp requires."""
    return {"output.weight": "token_embd.weight"} if config.tied else {}


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


# Command A+


def standard_cohere2_moe(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json with one epsilon and the kind of its norm, and with types of layers."""
    found = dict(standard_exaone_moe(document))
    epsilon = found.get("rms_norm_eps")
    kind, usual = (
        ("layer", found.get("layer_norm_eps", 1e-5)) if epsilon is None else ("rms", epsilon)
    )
    found |= {"norm_kind": kind, "norm_eps": usual}
    if found.get("expert_selection_fn", "softmax") == "softmax":
        # The scores of the selected experts always add up to 1.
        found["norm_topk_prob"] = True
    if found.get("prefix_dense_intermediate_size") is None:
        found.pop("prefix_dense_intermediate_size", None)
    if found.get("layer_types") is None:
        dense = LAYERS.read(found.get("first_k_dense_replace", 0) + 1) - 1
        rest = LAYERS.read(found.get("num_hidden_layers", 40)) - dense
        parts = (
            (dense, "prefix_dense_sliding_window_pattern", 1),
            (rest, "sliding_window_pattern", 4),
        )
        found["layer_types"] = [
            word
            for count, key, period in parts
            for word in WORDS.write(mark_windowed_layers(count, SIZE.read(found.get(key, period))))
        ]
    return found


def complete_cohere2_moe(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json with the epsilon under the name of its norm."""
    found = dict(document)
    kind, epsilon = found.pop("norm_kind"), found.pop("norm_eps")
    found.pop("first_k_dense_replace", None)
    return found | {"rms_norm_eps" if kind == "rms" else "layer_norm_eps": epsilon}


def find_shared_share(fields: Fields) -> float:
    """Return the factor of experts and of the shared MLP: a half if their mean is added."""
    is_mean = fields["shared_strategy"] == "average" and fields["shared_count"] > 0
    return 0.5 if is_mean else 1.0


def mark_windowed_or_dense(fields: Fields) -> tuple[bool, ...]:
    """Mark the layers with a window, and those without experts if these have no windows."""
    has_all = fields["prefix_period"] == 1
    pairs = zip(fields["windowed_layers"], fields["sparse_layers"], strict=False)
    return tuple(has_window or (has_all and not has_experts) for has_window, has_experts in pairs)


# DeepSeek

_BY_GROUPS = "group_limited_greedy"


def find_difference_of_deepseek_v2(fields: Fields) -> str | None:
    """Return what llama.cpp computes differently from transformers, or None."""
    if fields["expert_method"] == "groups":
        return "it ranks a group of experts by the best two of them in place of the best one"
    return find_difference_of_scaling(fields)


def is_deepseek_v2(metadata: Mapping[str, MetadataValue]) -> bool:
    """Whether a deepseek2 has experts whose scores are not sigmoids."""
    gating = metadata.get("deepseek2.expert_gating_func")
    has_sigmoids = gating is not None and gating.content == 2
    return "deepseek2.expert_count" in metadata and not has_sigmoids


def find_method(fields: Fields) -> str:
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


# DeepSeek-OCR


def find_unlike_deepseek_ocr(fields: Fields) -> str | None:
    """Return why llama.cpp does not run a model, None if it does: it does not read keys of RoPE."""
    if fields["rope_base"] != 10000 or fields["scaling.kind"] is not None:
        return "its RoPE has another base than 10000, or scaling"
    return find_shared_heads(fields)


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


# EXAONE 4

_PERIOD, _WINDOW, _LAYERS_OF_32B = 4, 4096, 64


def find_exaone4_window(fields: Fields) -> int | None:
    """Return the size of windows, which llama.cpp uses in models with 64 layers only."""
    return _WINDOW if fields["layers"] == _LAYERS_OF_32B else None


def mark_exaone4_windows(fields: Fields) -> tuple[bool, ...]:
    """Mark the layers with a window."""
    if fields["sliding_window"] is None:
        return (False,) * int(fields["layers"])
    return every_but(_PERIOD)(fields)


_PATTERN, _FLAGS = pattern_keys(_PERIOD, is_stated=False)


def _find_pattern(fields: Fields) -> Any:
    """Return what GGUF states in place of the usual period: None if there is no window."""
    find: Any = _PATTERN.gguf_default
    return None if fields["sliding_window"] is None else find(fields)


def _spread_pattern(fields: Fields) -> Any:
    spread: Any = _FLAGS.gguf_default
    return mark_exaone4_windows(fields) if fields["window_pattern"] is None else spread(fields)


EXAONE4_PATTERN = (
    replace(_PATTERN, gguf_default=_find_pattern),
    replace(_FLAGS, gguf_default=_spread_pattern),
)


def mark_exaone4_rope(fields: Fields) -> tuple[bool, ...] | None:
    """Mark the layers with RoPE, None for all."""
    windowed: tuple[bool, ...] = fields["windowed_layers"]
    return None if fields["sliding_window"] is None else windowed


def find_other_windows(fields: Fields) -> str | None:
    """Return what llama.cpp computes differently from transformers, or None."""
    has_window, layers = fields["sliding_window"] is not None, fields["layers"]
    if has_window != (layers == _LAYERS_OF_32B):
        return f"it uses a sliding window in models of {_LAYERS_OF_32B} layers and in no others"
    return None


def check_exaone4(fields: Fields) -> Fields:
    """Return the fields as `DecoderConfig` has them; raises `ValueError` if they contradict."""
    if fields["sliding_window"] is None and any(fields["windowed_layers"]):
        raise ValueError(f"some layers are `{LOCAL}`, but there is no `sliding_window`")
    return check_decoder(fields)


# K-EXAONE


def standard_exaone_moe(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json with the number of dense layers that `mlp_layer_types` begins with."""
    types = document.get("mlp_layer_types")
    if not is_list(types):
        return document
    count = len(list(takewhile(lambda word: word == "dense", types)))
    return {**document, "first_k_dense_replace": count}


# Gemma 2 and 3


def _query_scalar(layers_of_27b: int) -> Callable[[Fields], int]:
    """Return the default of `query_scalar` in llama.cpp: its root divides the attention scores."""

    def scalar(fields: Fields) -> int:
        if fields["layers"] == layers_of_27b:
            return int(fields["hidden"] // fields["heads"])
        return int(fields["head_dim"])

    return scalar


scalar_of_gemma2, scalar_of_gemma3 = _query_scalar(46), _query_scalar(62)


def scale_queries(layers_of_27b: int, part: str = "") -> Change:
    """Return the change of queries by llama.cpp's scale, of a norm of them if `part` is `norm`."""
    return scaled_queries(_query_scalar(layers_of_27b), is_norm=part == "norm")


def check_gemma2(fields: Fields) -> Fields:
    """Return the fields as `DecoderConfig` has them; raises `ValueError` if they contradict."""
    if fields.get("local_rope_base", fields["rope_base"]) != fields["rope_base"]:
        raise ValueError("separate RoPE settings for sliding window layers are not supported")
    # All layers have the same base.
    return {**check_decoder(fields), "local_rope_base": None}


def find_stated_window(fields: Fields) -> int | None:
    """Return the window that GGUF states, None if no layer has one."""
    window: int | None = fields.get("sliding_window")
    return window if any(fields.get("windowed_layers", ())) else None


def find_gemma3_window(fields: Fields) -> int:
    """Return the size of windows, the usual one if no layer has any."""
    return int(fields["stated_window"] or 4096)


_GEMMA3_PATTERN, _GEMMA3_FLAGS = pattern_keys(6)


def _mark_gemma3_windows(fields: Fields) -> Any:
    """Return which layers have a window: none if GGUF does not state its size."""
    spread: Any = _GEMMA3_FLAGS.gguf_default
    windowed = spread(fields)
    return windowed if fields["stated_window"] is not None else (False,) * len(windowed)


GEMMA3_PATTERN = (_GEMMA3_PATTERN, replace(_GEMMA3_FLAGS, gguf_default=_mark_gemma3_windows))
GEMMA3_ROPE = keys_of_global_layers(GEMMA_ROPE, 1_000_000.0)


def standard_gemma3(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config of the text model in the form of transformers 5."""
    text = take_text(document) if document.get("model_type") == "gemma3" else document
    kinds = text.get("layer_types")
    if kinds is None:
        kinds = _list_types(text)
    found = {**text, "layer_types": kinds, **rope_by_layer(text)}
    # A window has no meaning if no layer uses it.
    has_window = not is_list(kinds) or LOCAL in kinds
    return found if has_window else {**found, "sliding_window": 4096}


def _list_types(text: Mapping[str, Any]) -> list[str]:
    """Return the layer types, which older versions of transformers stated as a period."""
    layers = LAYERS.read(text.get("num_hidden_layers", 26))
    pattern = text.get("sliding_window_pattern")
    period = 6 if pattern is None else SIZE.read(pattern)
    return WORDS.write(mark_windowed_layers(layers, period))


def check_gemma3(fields: Fields) -> Fields:
    """Return the fields as `DecoderConfig` has them; raises `ValueError` if they contradict."""
    made = check_decoder(fields)
    if fields["scaling.kind"] == "yarn" and any(fields["windowed_layers"]):
        # llama.cpp would partly apply the scaling in layers with a window, too.
        raise ValueError("`yarn` scaling in a model with sliding window layers is not supported")
    return made


def is_bidirectional(document: Mapping[str, Any]) -> bool:
    """Whether config.json is that of a Gemma 3 without an output that attends to later tokens, too.

    A model with an output is refused, since llama.cpp has no architecture for it.
    """
    has_output = any(str(each).endswith("ForCausalLM") for each in _list_classes(document))
    return document.get("use_bidirectional_attention") is True and not has_output


def _list_classes(document: Mapping[str, Any]) -> Sequence[Any]:
    """Return the classes that config.json states; none if it states no list of them."""
    stated = document.get("architectures")
    return stated if is_list(stated) else ()


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


# Hunyuan 4


def mark_hy4_indexers(fields: Fields) -> tuple[bool, ...]:
    """Return transformers' default: the first two layers with an indexer, then every fourth."""
    return tuple(not layer or layer % 4 == 1 for layer in range(fields["layers"]))


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


# Granite 4, hybrid models

# transformers' words for layers before version 5, which newer versions and llama.cpp also read.
_GRANITE_WORDS = {"full_attention": "attention", "linear_attention": "mamba"}


def standard_granitehybrid(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json with the older words for layers, and the width of its MLP.

    Without experts, the MLP has the width that is stated for a shared one.
    """
    found = dict(without_auto(standard_llama(document)))
    words = found.get("layer_types") or found.get("layers_block_type")
    if is_list(words):
        found["layer_types"] = [
            _GRANITE_WORDS.get(word, word) if isinstance(word, str) else word for word in words
        ]
    if found.get("num_local_experts") == 0:
        found["intermediate_size"] = found.get("shared_intermediate_size", 1024)
        found["num_experts_per_tok"] = 0
    return found


def mark_granite_layers(fields: Fields) -> tuple[bool, ...]:
    """Mark all layers if the model has experts."""
    count: int = fields["layers"]
    return (fields["experts"] > 0,) * count


def check_granitehybrid(fields: Fields) -> Fields:
    """Return the fields as `DecoderConfig` has them; raises `ValueError` if they contradict."""
    return checking_experts(check_states)(fields) if fields["experts"] else check_states(fields)


# Granite with sliding windows

_BASES, _ROPE, _BASE = "layer_rope_theta", "rope_parameters", "rope_theta"


def standard_layer_bases(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json with 1 for each layer with RoPE, in place of its base, and else 0.

    Raises `ValueError` if layers have different bases.
    """
    bases = document.get(_BASES)
    if not is_list(bases):
        return document
    if not all(type(base) in {int, float} for base in bases):
        raise ValueError(f"`{_BASES}` has an element that is not a number")
    found = {base for base in bases if base}
    if len(found) > 1:
        raise ValueError(f"`{_BASES}` has {len(found)} bases; only one is supported")
    rope = {**document[_ROPE], _BASE: next(iter(found))} if found else document[_ROPE]
    return {**document, _ROPE: rope, _BASES: [1 if base else 0 for base in bases]}


def complete_layer_bases(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the opposite: the base of each layer."""
    base = document[_ROPE][_BASE]
    return {**document, _BASES: [base if is_rotated else 0 for is_rotated in document[_BASES]]}


# HyperCLOVA X


def find_head_scale(fields: Fields) -> float:
    """Return the usual factor of attention scores."""
    return float(fields["head_dim"] ** -0.5)


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


# Jamba

_STEPS, _OFFSETS = WholeNumber(1, 1 << 16), WholeNumber(0, 1 << 16)


def _find_period(flags: str) -> Callable[[Fields], int]:
    """Return a default: of how many layers one has a property, in every such run of layers."""

    def find(fields: Fields) -> int:
        places = [place for place, has in enumerate(fields[flags]) if has]
        count = len(fields[flags])
        if not places:
            return count + 1
        if len(places) == 1:
            return max(places[0] + 1, count - places[0])
        period = places[1] - places[0]
        if places[0] >= period or places != list(range(places[0], count, period)):
            raise ValueError("has layers at other than regular distances")
        return int(period)

    return find


def _find_offset(flags: str) -> Callable[[Fields], int]:
    """Return a default: the number of the first layer that has a property."""

    def find(fields: Fields) -> int:
        given = list(fields[flags])
        return given.index(True) if True in given else len(given)

    return find


def _mark_period(name: str) -> Callable[[Fields], tuple[bool, ...]]:
    """Return a default that marks a layer in each period."""
    return lambda fields: tuple(
        layer % fields[f"{name}_period"] == fields[f"{name}_offset"]
        for layer in range(fields["layers"])
    )


def _mark_jamba_experts(fields: Fields) -> tuple[bool, ...]:
    marked = _mark_period("expert")(fields)
    return tuple(each and fields["experts"] > 1 for each in marked)


def _period_keys(name: str, prefix: str, flags: str, period: int, offset: int) -> tuple[Key, ...]:
    return (
        Key(field=f"{name}_period", kind=_STEPS, default=period, written=True, is_in_weights=True,
            gguf_default=_find_period(flags), hugging_face=f"{prefix}_layer_period"),
        Key(field=f"{name}_offset", kind=_OFFSETS, default=offset, written=True, is_in_weights=True,
            gguf_default=_find_offset(flags), hugging_face=f"{prefix}_layer_offset"),
    )  # fmt: skip


JAMBA_ATTENTION_KEYS = (
    *_period_keys("attention", "attn", "attention_layers", 8, 4),
    Key(field="attention_layers", kind=ONES, default=_mark_period("attention")),
)
JAMBA_EXPERT_KEYS = (
    Key(field="sparse_layers", kind=LayerChoice("sparse", "dense"), gguf_default=mark_none,
        seen=LayersWith("blk.{}.ffn_gate_inp.weight", "blk.{}.attn_norm.weight", "sparse",
                        "dense")),
    *_period_keys("expert", "expert", "sparse_layers", 2, 1),
    Key(field="sparse_layers", kind=ONES, default=_mark_jamba_experts),
)  # fmt: skip


def check_jamba(fields: Fields) -> Fields:
    """Return the fields; raises `ValueError` if an offset is not less than its period."""
    check_kv_heads(fields)
    for name in ("attention", "expert"):
        if fields[f"{name}_offset"] >= fields[f"{name}_period"]:
            raise ValueError(f"the offset of the layers with {name} must be less than their period")
    return fields


# Laguna


def standard_laguna(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json with the RoPE of each type of layer, and with a word for its gates.

    The number of heads is that of the first layer.
    """
    found = dict(standard_exaone_moe(document))
    near = object_of(object_of(found, _ROPE), LOCAL)
    found |= rope_by_layer(found)
    found[_ROPE][LOCAL]["partial_rotary_factor"] = near.get("partial_rotary_factor", 1.0)
    if found.get("gating") is True:
        found["gating"] = "per-head"
    heads = found.get("num_attention_heads_per_layer")
    return found | {"num_attention_heads": heads[0]} if is_list(heads) and heads else found


def repeat_heads(fields: Fields) -> tuple[int, ...]:
    """Return the same number of heads for each layer."""
    return (fields["heads"],) * int(fields["layers"])


def find_first_heads(fields: Fields) -> int:
    """Return the number of heads of the first layer."""
    return int(fields["layer_heads"][0])


def has_gates_by_head(fields: Fields) -> bool:
    """Whether the first layer has as many gates as heads."""
    return bool(fields["gate_rows"] == fields["heads"])


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


# Jina's BERT


def has_alibi(document: Mapping[str, Any]) -> bool:
    return document.get("position_embedding_type") == "alibi"


# Llama 4

_EVERY_FOURTH = every_but(4)


def mark_by_step(fields: Fields) -> tuple[bool, ...]:
    """Mark the last layer of each `expert_step`."""
    step = fields["expert_step"]
    return tuple((layer + 1) % step == 0 for layer in range(fields["layers"]))


def mark_llama4_layers(fields: Fields) -> tuple[bool, ...]:
    numbers = fields["expert_layers"]
    if numbers is None:
        return mark_by_step(fields)
    return tuple(layer in numbers for layer in range(fields["layers"]))


def has_llama4_norms(fields: Fields) -> bool:
    """Return whether llama.cpp norms queries and keys, which follows from the number of experts."""
    return bool(fields["experts"] != 128)


def find_llama4_norm(fields: Fields) -> str | None:
    """Return the norm of queries and keys, None without one."""
    return "unit" if fields["has_qk_norm"] else None


def find_unlike_llama4(fields: Fields) -> str | None:
    """Return why llama.cpp does not load a model, or would run a different one, or None."""
    if fields["sparse_layers"] != mark_by_step(fields):
        return "its layers with experts are not those that `interleave_moe_layer_step` selects"
    if fields["layers"] < 4:
        return "it has fewer than 4 layers"
    regular = _EVERY_FOURTH(fields)
    if fields["rotated_layers"] != regular or fields["chunked_layers"] != regular:
        return "its layers without RoPE and chunked attention are not exactly every fourth layer"
    return None


def standard_llama4(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the standard config.json of the text model, which multimodal models contain."""
    if document["model_type"] == "llama4":
        document = take_text(document)
    made = dict(standard(document))
    if not made.get("no_rope_layers"):
        made.pop("no_rope_layers", None)
    # The first versions of transformers wrote a number here.
    tuning = made.get("attn_temperature_tuning")
    if type(tuning) is int:
        made["attn_temperature_tuning"] = tuning != 0
    return made


def check_llama4(fields: Fields) -> Fields:
    """Return the fields as `DecoderConfig` has them; raises `ValueError` if they contradict."""
    made = check_decoder(fields)
    return made if fields["has_temperature"] else {**made, "temperature_scale": 0.0}


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


# MiniMax-M3

_BLOCKS = {
    "index_n_heads": "sparse_num_index_heads", "index_head_dim": "sparse_index_dim",
    "index_block_size": "sparse_block_size", "index_topk_blocks": "sparse_topk_blocks",
    "index_local_blocks": "sparse_local_block",
}  # fmt: skip
_BY_FLAGS = (
    ("layer_types", "sparse_attention_freq", LayerChoice("minimax_m3_sparse", "full_attention")),
    ("mlp_layer_types", "moe_layer_freq", LayerChoice("sparse", "dense")),
)


def standard_minimax_m3(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config.json of a release with the keys of transformers."""
    found = dict(document)
    sparse = object_of(found, "sparse_attention_config")
    found |= {key: sparse[old] for key, old in _BLOCKS.items() if old in sparse}
    given = {**found, **sparse}
    for key, old, words in _BY_FLAGS:
        if found.get(key) is None and given.get(old) is not None:
            found[key] = words.write(ONES.read(given[old]))
    return standard_exaone_moe(standard(found))


def count_shared_experts(fields: Fields) -> int:
    """Return how many experts together are as wide as the shared MLP, at least one."""
    return max(int(fields["shared_intermediate"] // fields["expert_intermediate"]), 1)


def check_minimax_m3(fields: Fields) -> Fields:
    """Return the fields as `DecoderConfig` has them."""
    own, heads = fields["indexer_heads"], fields["heads"]
    if heads % own:
        raise ValueError(f"{own} heads of the indexer cannot select keys for {heads} query heads")
    if fields["rope_dimensions"] > fields["indexer_size"]:
        raise ValueError("the heads of the indexer are smaller than their rotated part")
    return check_decoder(fields)


def find_unlike_minimax_m3(fields: Fields) -> str | None:
    """Return why llama.cpp does not run a model, None if it does."""
    own, groups = fields["indexer_heads"], fields["kv_heads"]
    return (
        None
        if own == groups
        else f"its indexer has {own} heads instead of {groups}, those of the keys"
    )


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


# ModernBERT

# The keys of config.json that only apply to heads.
_OF_HEADS = ("classifier_bias", "classifier_activation", "classifier_pooling")


def find_pooling(fields: Fields) -> str:
    """Return how llama.cpp's head pools: by mean with labels, otherwise by the first position."""
    return "mean" if fields["labels"] else "first"


def check_modernbert(fields: Fields) -> Fields:
    """Return the fields as `DecoderConfig` has them; raises `ValueError` if they contradict."""
    return check_decoder(check_head(fields))


def _standard_modernbert(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json with layer types and RoPE in the form of transformers 5."""
    older = {GLOBAL: "global_rope_theta", LOCAL: "local_rope_theta"}
    given = object_of(document, "rope_parameters")
    rope = {
        kind: {"rope_theta": document[name]} | dict(object_of(given, kind))
        if name in document
        else object_of(given, kind)
        for kind, name in older.items()
    }
    rope[LOCAL] = {"rope_theta": 10000.0} | dict(rope[LOCAL])
    found = {**document, **rope_by_layer({**document, "rope_parameters": rope})}
    if found.get("layer_types") is None:
        period = SIZE.read(document.get("global_attn_every_n_layers", 3))
        layers = SIZE.read(document.get("num_hidden_layers", 22))
        found["layer_types"] = WORDS.write([layer % period != 0 for layer in range(layers)])
    return found


standard_modernbert = reading_head(_standard_modernbert, *_OF_HEADS)


# Nanbeige


def find_loops(config: Any) -> str | None:
    """Return why weightctl does not run a model, None if it does."""
    return f"its layers are passed {config.loops} times" if config.loops > 1 else None


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


# PaliGemma

_PREFIX, _IS_BIDIRECTIONAL = "prefix_attention", "use_bidirectional_attention"


def standard_paligemma(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config of a Gemma, which states whether it is the text model of a PaliGemma."""
    if document["model_type"] != "paligemma":
        return document
    text = {**take_text(document), _PREFIX: True}
    # transformers 5 states it of each of these models.
    return {key: value for key, value in text.items() if key != _IS_BIDIRECTIONAL}


def find_unlike_paligemma(fields: Fields) -> str | None:
    """Return why llama.cpp would compute something else, None if it would not."""
    if not fields[_PREFIX]:
        return None
    return "images and prompts of PaliGemma attend to later tokens, which they do not in llama.cpp"


# Phi-3.5-MoE


def check_phimoe(fields: Fields) -> Fields:
    """Return the fields; raises `ValueError` if the amplitudes of LongRoPE differ.

    transformers requires one for short contexts and one for long ones.
    """
    long, kind = fields["scaling.long_amplitude"], fields["scaling.kind"]
    if kind == "longrope" and fields.get("scaling.attention_factor", long) != long:
        raise ValueError("`short_mscale` and `long_mscale` of its RoPE scaling differ")
    return check_decoder(fields)


# Qwen2


def is_not_causal(document: Mapping[str, Any]) -> bool:
    """Whether config.json is that of a model that also attends to later tokens."""
    return document.get("is_causal") is False


def is_qwen2(document: Mapping[str, Any]) -> bool:
    """Whether the text model of config.json is a Qwen2 that only attends to earlier tokens."""
    text = document.get("text_config")
    if is_object(text):
        return text.get("model_type") == "qwen2"
    return document.get("model_type") == "qwen2" and not is_not_causal(document)


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
    vision = open_thinker(document).get("vision_config")
    found = dict(with_default_rope(standard_text(document)))
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


# RecurrentGemma

_TYPES, _WIDTH = "block_types", "intermediate_size"
# The bits of a mantissa in bfloat16.
_BITS = 8


def find_embedding_scale(fields: Fields) -> float:
    """Return the root of the hidden size, which transformers rounds to bfloat16."""
    mantissa, exponent = frexp(fields["hidden"] ** 0.5)
    return ldexp(round(mantissa * (1 << _BITS)), exponent - _BITS)


def mark_every_third(fields: Fields) -> tuple[bool, ...]:
    return tuple(layer % 3 == 2 for layer in range(fields["layers"]))


def standard_recurrent_gemma(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json with a type for each layer, and with the width that the MLP has.

    transformers repeats the types, and halves the width.
    """
    found = dict(standard(document))
    types, width = found.get(_TYPES), found.get(_WIDTH)
    if is_list(types) and types:
        found[_TYPES] = list(islice(cycle(types), LAYERS.read(found.get("num_hidden_layers", 26))))
    if type(width) is int:
        found[_WIDTH] = width // 2
    return found


def complete_recurrent_gemma(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the opposite: the shortest list of types, and twice the width of the MLP."""
    types: Sequence[str] = document[_TYPES]
    period = next(
        count
        for count in range(1, len(types) + 1)
        if list(islice(cycle(types[:count]), len(types))) == types
    )
    return {**document, _TYPES: types[:period], _WIDTH: 2 * document[_WIDTH]}


def check_recurrent_gemma(fields: Fields) -> Fields:
    """Return the fields as `DecoderConfig` has them; raises `ValueError` if they contradict."""
    check_kv_heads(fields)
    width, heads = fields["lru_width"], fields["heads"]
    if width % heads:
        raise ValueError(
            f"the {width} channels of a linear recurrent unit cannot be divided evenly among "
            f"{heads} heads"
        )
    return check_decoder(fields)


# Refact


def find_refact_width(fields: Fields) -> int:
    """Return the width of the MLP: two thirds of 4 times the hidden size, in steps of 256."""
    return -(-(8 * int(fields["hidden"]) // 3) // 256) * 256


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


# OpenELM


def standard_openelm(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json with the widths of MLPs in place of multiples of the hidden size."""
    found = dict(document)
    factors = found.pop("ffn_multipliers", None)
    if not is_list(factors):
        return found
    hidden, divisor = (
        SIZE.read(document.get(key, size))
        for key, size in (("model_dim", 2048), ("ffn_dim_divisor", 256))
    )
    found["intermediate_size"] = [
        _round_to(Real(0, 1e3).read(factor) * hidden, divisor) for factor in factors
    ]
    return found


def _round_to(width: float, divisor: int) -> int:
    """Return the nearest multiple of a number, or the next one if it is less by a tenth."""
    rounded = max(divisor, int(width + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * width else rounded


def complete_openelm(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the opposite: multiples of the hidden size, and lists of the values of all layers."""
    found = dict(document)
    layers, hidden = found["num_transformer_layers"], found["model_dim"]
    shared, widths = (
        given if is_sequence(given) else [given] * layers
        for given in (found["num_kv_heads"], found.pop("intermediate_size"))
    )
    factors = [width / hidden for width in widths]
    return found | {
        "num_kv_heads": shared,
        "ffn_multipliers": factors,
        "ffn_dim_divisor": math.gcd(*widths),
    }


# Step 3.5

_STEP_LISTS = (
    "layer_types", "mlp_layer_types", "swiglu_limits", "swiglu_limits_shared", "rope_theta",
    "partial_rotary_factors",
)  # fmt: skip
_OWN_HEADS = "num_sliding_attention_heads"


def standard_step35(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config.json of a release with the keys of transformers.

    Lists with a value for each layer can have more for the layers of multi-token prediction, which
    are left out. Raises `ValueError` if layers of one type differ in their RoPE or their heads.
    """
    found = dict(document)
    layers = LAYERS.read(found.get("num_hidden_layers", 45))
    for key in _STEP_LISTS:
        given = found.get(key)
        if not is_list(given):
            continue
        if key == "layer_types" and GLOBAL in given[layers:]:
            raise ValueError("layers of multi-token prediction with full attention")
        found[key] = [0.0 if each is None else each for each in given[:layers]]
    numbers = found.get("moe_layers_enum")
    if numbers is not None and found.get("mlp_layer_types") is None:
        given = numbers.split(",") if isinstance(numbers, str) else numbers
        if is_list(given):
            given = [int(each) if str(each).strip().isdecimal() else each for each in given]
        sparse = NUMBERS.read(given)
        words = LayerChoice("sparse", "dense")
        found["mlp_layer_types"] = words.write([layer in sparse for layer in range(layers)])
    found |= {"per_layer_config": None, _OWN_HEADS: _find_local_heads(found)}
    return standard_exaone_moe(found | _find_step_rope(found, layers))


def _find_local_heads(document: Mapping[str, Any]) -> Any:
    """Return the number of heads that config.json states for layers with a window, or None."""
    other = object_of(document, "attention_other_setting")
    for key in ("num_attention_groups", "head_dim"):
        if other.get(key, document.get(key)) != document.get(key):
            raise ValueError(f"layers with a window have another `{key}`")
    single = [each for each in object_of(document, "per_layer_config").values() if is_object(each)]
    stated = [
        document.get(_OWN_HEADS),
        *(each.get("num_attention_heads") for each in (other, *single)),
    ]
    return _find_only([each for each in stated if each], "the number of heads with a window")


def _find_only(values: Sequence[Any], called: str) -> Any:
    """Return the value that is in a list, None if it is empty."""
    if any(each != values[0] for each in values):
        raise ValueError(f"{called} differs between layers")
    return values[0] if values else None


def _find_step_rope(document: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """Return `rope_parameters` for each type of layer; the releases have lists for all layers."""
    types = document.get("layer_types") or [GLOBAL] * layers
    if not is_list(types):
        raise ValueError(f"`layer_types` is {show_value(types)}, not a list")
    rope = dict(object_of(document, _ROPE))
    for kind in (GLOBAL, LOCAL):
        stated: dict[str, Any] = {"rope_theta": 10000.0}
        for new, old in (("rope_theta",) * 2, ("partial_rotary_factor", "partial_rotary_factors")):
            given = document.get(old)
            values = given if is_list(given) else [given] * layers
            own = [each for word, each in zip(types, values, strict=False) if word == kind]
            only = _find_only(own, f"`{old}` of `{kind}`")
            stated |= {} if only is None else {new: only}
        rope[kind] = {**stated, **object_of(rope, kind)}
    made = rope_by_layer({**document, _ROPE: rope, "rope_theta": None})
    share = rope[LOCAL].get("partial_rotary_factor", 1.0)
    made[_ROPE][LOCAL]["partial_rotary_factor"] = share
    return made | {"rope_theta": None, "rope_scaling": None}


def list_no_limits(fields: Fields) -> tuple[float, ...]:
    """Return 0, which means no limit, for each layer."""
    return (0.0,) * int(fields["layers"])


def list_heads_by_window(fields: Fields) -> tuple[int, ...]:
    """Return the number of heads of each layer, by whether it has a window."""
    counts = (fields["heads"], fields["local_heads"])
    return tuple(counts[is_windowed] for is_windowed in fields["windowed_layers"])


def _find_heads(fields: Fields, *, is_windowed: bool) -> int:
    """Return the number of heads of the first layer with or without a window, else of any."""
    counts = fields["layer_heads"]
    found = (count for count, own in zip(counts, fields["windowed_layers"], strict=False)
             if own == is_windowed)  # fmt: skip
    return int(next(found, counts[0]))


find_full_heads = partial(_find_heads, is_windowed=False)
find_windowed_heads = partial(_find_heads, is_windowed=True)


def check_step35(fields: Fields) -> Fields:
    """Return the fields as `DecoderConfig` has them."""
    made = check_decoder(fields)
    if fields["layer_heads"] != list_heads_by_window(fields):
        raise ValueError("the number of heads differs between layers of the same type")
    return made


def find_unlike_step35(fields: Fields) -> str | None:
    """Return why llama.cpp does not run a model, None if it does."""
    kind = fields["scaling.kind"]
    if kind in {None, "llama3"}:
        return None
    return f"it would use the `{kind}` RoPE scaling in layers with a window, too"
