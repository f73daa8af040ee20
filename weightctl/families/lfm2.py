"""LFM2: short convolutions in most layers, and attention in the others.

Names and keys: transformers' `modeling_lfm2.py` and `configuration_lfm2.py`; llama.cpp's
`models/lfm2.cpp` and `conversion/lfm2.py`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from weightctl.families.decoder_keys import DECODER_KEYS, check_decoder, rename_keys, with_keys
from weightctl.families.family import Family, ModelType
from weightctl.families.fusions import qkv_form
from weightctl.families.hybrid import check_kv_heads, hybrid_keys, hybrid_lines
from weightctl.families.keys import Key
from weightctl.families.kinds import SIZE, Exactly
from weightctl.families.layers import LayerChoice
from weightctl.families.lines import DECODER, adapt, line
from weightctl.families.rope_keys import standard as standard_rope
from weightctl.families.windowed_layers import GLOBAL
from weightctl.text.untyped import is_list

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.family import Name
    from weightctl.families.keys import Fields

_CONVOLUTION = "conv"
_MLP = {"gate": "w1", "up": "w3", "down": "w2"}


def _list_lines() -> tuple[Name, ...]:
    names = adapt(
        DECODER,
        {
            "attention_norm": "operator_norm",
            "attention.q_norm": "self_attn.q_layernorm",
            "attention.k_norm": "self_attn.k_layernorm",
            "attention.o": "self_attn.out_proj",
            "convolution.inputs": {},
            "convolution.kernel": {},
            "convolution.outputs": {},
            "mlp_norm": "ffn_norm",
            **{f"mlp.{part}": f"feed_forward.{name}" for part, name in _MLP.items()},
        },
    )
    # GGUF gives the last norm the name of a norm of the embedding.
    last = line("norm", gguf="token_embd_norm", hugging_face="model.embedding_norm")
    conditions = {"attention": "attention_layers"}
    return hybrid_lines(
        tuple(last if each.module == "norm" else each for each in names), conditions
    )


LINES = _list_lines()

KEYS = hybrid_keys(
    with_keys(
        rename_keys(DECODER_KEYS, {"norm_epsilon": "norm_eps"}),
        Key(field="activation", kind=Exactly("silu", "LFM2 uses SiLU"), default="silu",
            gguf_default="silu"),
        Key(field="convolution_length", kind=SIZE, default=3, gguf="{arch}.shortconv.l_cache",
            hugging_face="conv_L_cache"),
        Key(field="convolution_bias", kind=Exactly(False, "llama.cpp has no biases in LFM2"),
            default=False, gguf_default=False, hugging_face="conv_bias"),
    ),
    LayerChoice(GLOBAL, _CONVOLUTION),
    "convolution_layers",
)  # fmt: skip

BLOCKS: Mapping[str, Any] = {"qk_norm": "head"}

DEFAULTS: Mapping[str, Any] = {
    "vocabulary": 65536,
    "context": 128_000,
    "kv_heads": 8,
    "norm_epsilon": 1e-5,
    "rope_base": 1e6,
    "tied": True,
}


def standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json in transformers' current form, with the width that the MLP has."""
    found = dict(standard_rope(document))
    for old, new in {"tie_embedding": "tie_word_embeddings", "block_ff_dim": "intermediate_size",
                     "theta": "rope_theta"}.items():  # fmt: skip
        if found.get(old) is not None:
            found[new] = found[old]
    layers, attended = found.get("num_hidden_layers", 32), found.get("full_attn_idxs")
    if found.get("layer_types") is None and is_list(attended) and isinstance(layers, int):
        found["layer_types"] = [
            GLOBAL if number in attended else _CONVOLUTION for number in range(min(layers, 1 << 16))
        ]
    return found


def _adjust_width(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json with the width of the MLP that transformers computes from its keys."""
    found = dict(standard(document))
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


def _complete(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json that states that its `intermediate_size` is that of the MLP."""
    return {**document, "block_auto_adjust_ff_dim": False}


def check(fields: Fields) -> Fields:
    """Return the fields as `DecoderConfig` has them; raises `ValueError` if they contradict."""
    check_kv_heads(fields)
    return check_decoder(fields)


FAMILY = Family(
    name="lfm2",
    model_types={
        "lfm2": ModelType(
            class_name="Lfm2ForCausalLM",
            defaults={**DEFAULTS, "hidden": 2560, "intermediate": 12288},
        )
    },
    blocks=BLOCKS,
    heads_fill_hidden=True,
    names=LINES,
    keys=KEYS,
    fusions=(qkv_form(),),
    standard=_adjust_width,
    completed=_complete,
    checked=check,
)
