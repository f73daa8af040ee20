"""Hunyuan of 2025, dense models: a llama with norms of queries and keys after RoPE.

Names and keys: transformers' `modeling_hunyuan_v1_dense.py`; llama.cpp's `models/hunyuan-vl.cpp`
and `conversion/hunyuan.py`. RoPE of type `dynamic` with an `alpha` is the same as a larger base,
which GGUF states. weightctl keeps the context of config.json; llama.cpp's converter writes 256K for
published models with an `alpha`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weightctl.families.decoder_keys import BIASES, DECODER_KEYS, check_decoder, with_keys
from weightctl.families.family import Family, ModelType
from weightctl.families.keys import Key
from weightctl.families.kinds import Exactly
from weightctl.families.lines import DECODER, adapt
from weightctl.families.rope_keys import standard
from weightctl.text.untyped import is_object

if TYPE_CHECKING:
    from collections.abc import Mapping


HUNYUAN_DEFAULTS = {"vocabulary": 290943, "norm_epsilon": 1e-5}


def _standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
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


FAMILY = Family(
    name="hunyuan_dense",
    gguf="hunyuan-dense",
    model_types={
        "hunyuan_v1_dense": ModelType(
            class_name="HunYuanDenseV1ForCausalLM", defaults=HUNYUAN_DEFAULTS
        )
    },
    blocks={"qk_norm": "head", "qk_norm_after_rope": True},
    names=adapt(
        DECODER,
        {
            "attention.q_norm": "self_attn.query_layernorm",
            "attention.k_norm": "self_attn.key_layernorm",
        },
    ),
    keys=with_keys(
        DECODER_KEYS,
        # transformers does not compute a default.
        *(replace(key, written=True) for key in DECODER_KEYS if key.field == "head_dim"),
        *BIASES[:2],
        Key(field="normed_heads", default=True, hugging_face="use_qk_norm",
            kind=Exactly(True, "transformers always normalizes queries and keys")),
        Key(field="shared_keys", default=False, hugging_face="use_cla",
            kind=Exactly(False, "layers that share keys and values are not supported")),
    ),
    standard=_standard,
    checked=check_decoder,
)  # fmt: skip
