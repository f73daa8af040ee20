"""gpt-oss: a sink in each head, windows in every second layer, and experts with biases.

Names and keys: transformers' `modeling_gpt_oss.py`; llama.cpp's `models/openai-moe.cpp`. In Hugging
Face's convention, the columns of an expert's gate and up alternate, and its inputs are rows.

The ends of YaRN's ramp are not rounded to whole pairs (`truncate` is false), as in OpenAI's own
code. llama.cpp rounds them in all families, without a key: its logits of the same weights are
slightly different.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.families.decoder_keys import BIASES, DECODER_KEYS, check_decoder, with_keys
from weightctl.families.experts import checking_experts, expert_keys, expert_lines
from weightctl.families.family import Family, ModelType
from weightctl.families.fusions import Fusion
from weightctl.families.keys import Key, same
from weightctl.families.kinds import FLAG, SIZE, Exactly
from weightctl.families.layers import window_keys
from weightctl.families.lines import DECODER, adapt
from weightctl.families.rope_keys import standard
from weightctl.families.row_orders import alternate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_MLP, _EXPERT = "model.layers.{}.mlp.", "layers.{}.mlp.experts.{expert}."
_CLAMPED = "llama.cpp and weightctl support only alpha 1.702 and limit 7 in gpt-oss"
# The defaults of `GptOssConfig` for RoPE.
_ROPE: Mapping[str, Any] = {
    "rope_type": "yarn",
    "factor": 32.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
    "rope_theta": 150000.0,
}


def _order(config: Any) -> Sequence[int]:
    return alternate(config.expert_intermediate)


def _standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
    if not document.get("rope_scaling") and not document.get("rope_parameters"):
        document = {**document, "rope_parameters": _ROPE}
    return standard(document)


FAMILY = Family(
    name="gpt_oss",
    gguf="gpt-oss",
    model_types={
        "gpt_oss": ModelType(
            class_name="GptOssForCausalLM",
            defaults={
                "vocabulary": 201088,
                "context": 131072,
                "hidden": 2880,
                "intermediate": 2880,
                "layers": 36,
                "heads": 64,
                "kv_heads": 8,
                "head_dim": 64,
                "norm_epsilon": 1e-5,
                "attention_bias": True,
                "attention_output_bias": True,
                "rope_base": 150000.0,
            },
        )
    },
    blocks={"sinks": True, "expert_bias": True, "activation": "clamped_swiglu"},
    keeps_window=True,
    names=expert_lines(
        adapt(
            DECODER,
            {
                "attention.sinks": {},
                "mlp_norm": {"gguf": "blk.{}.post_attention_norm"},
            },
        ),
        more={
            "mlp.router": {"hugging_face": "router", "bias": True},
            **{
                f"mlp.experts.{{expert}}.{part}": {"hugging_face": None, "bias": True}
                for part in ("gate", "up", "down")
            },
        },
    ),
    keys=expert_keys(
        with_keys(
            DECODER_KEYS,
            *BIASES[:2],
            *window_keys(2, window=128),
            Key(field="hidden_activation", default="silu", hugging_face="hidden_act",
                kind=Exactly("silu", "other activations are not supported")),
            Key(field="swiglu_alpha", kind=Exactly(1.702, _CLAMPED), default=1.702,
                hugging_face="swiglu_alpha"),
            Key(field="swiglu_limit", kind=Exactly(7.0, _CLAMPED), default=7.0,
                hugging_face="swiglu_limit"),
            Key(field="scaling.truncate", kind=FLAG, default=True, gguf_default=False,
                hugging_face="rope_parameters.truncate"),
            Key(field="ramp_between_pairs", kind=FLAG, default=True, gguf_default=True),
            without=("activation",),
        ),
        "num_local_experts",
        # `intermediate_size` is the width of an expert.
        Key(field="expert_intermediate", kind=SIZE, default=same("intermediate"),
            gguf_default=same("intermediate"), gguf="{arch}.expert_feed_forward_length",
            written=True),
        experts=128,
        used=4,
    ),
    fusions=(
        Fusion(
            convention="hugging_face",
            name=_MLP + "experts.gate_up_proj",
            bias_name=_MLP + "experts.gate_up_proj_bias",
            parts=(_EXPERT + "gate", _EXPERT + "up"),
            of_experts=True,
            order=_order,
            transposed=True,
        ),
        Fusion(
            convention="hugging_face",
            name=_MLP + "experts.down_proj",
            bias_name=_MLP + "experts.down_proj_bias",
            parts=(_EXPERT + "down",),
            of_experts=True,
            transposed=True,
        ),
    ),
    standard=_standard,
    checked=checking_experts(check_decoder),
)  # fmt: skip
