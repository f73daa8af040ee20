"""GLM-5: latent attention with an indexer, whose selection several layers can share.

Names and keys: transformers' `modeling_glm_moe_dsa.py`; llama.cpp's `models/glm-dsa.cpp` and
`conversion/glm.py`. Rotated pairs are neighbors in both conventions, also in the indexer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weightctl.families.decoder_keys import DECODER_KEYS, activation
from weightctl.families.deepseek_v2 import NO_BIASES, NO_MLP_BIASES
from weightctl.families.deepseek_v32 import FAMILY as DEEPSEEK_V32
from weightctl.families.deepseek_v32 import INDEXER_KEYS, check_indexer
from weightctl.families.deepseek_v32 import standard as standard_layers
from weightctl.families.experts import ROUTED_KEYS, checking_experts, expert_keys
from weightctl.families.family import ModelType
from weightctl.families.keys import Key
from weightctl.families.kinds import LAYERS
from weightctl.families.latent import latent_keys
from weightctl.families.layers import LayerChoice
from weightctl.families.mtp import MtpForm, mtp_keys
from weightctl.families.windowed_layers import FLAGS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.keys import Fields

_FULL, _SHARED = "full", "shared"
_WORDS = {"F": _FULL, "S": _SHARED}
# Without a key, llama.cpp takes models with at least this context for GLM-5.2.
_LONG_CONTEXT = 1 << 20


def _mark_all(fields: Fields) -> tuple[bool, ...]:
    count: int = fields["layers"]
    return (True,) * count


def _mark_layers(fields: Fields) -> tuple[bool, ...]:
    """Return the layers with an indexer as llama.cpp assumes them without a key."""
    if fields["context"] < _LONG_CONTEXT:
        return _mark_all(fields)
    return tuple(layer < 2 or layer % 4 == 2 for layer in range(fields["layers"]))


def _standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json with a word for each layer that states whether it has an indexer."""
    found = dict(standard_layers(document))
    if found.get("indexer_types") is not None:
        return found
    pattern = found.get("index_topk_pattern")
    if isinstance(pattern, str):
        return found | {"indexer_types": [_WORDS.get(letter, letter) for letter in pattern]}
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


def _find_unlike(fields: Fields) -> str | None:
    """Return why llama.cpp does not run this model, None if it does."""
    if fields["scaling.kind"] is not None:
        return "llama.cpp does not apply RoPE scaling as transformers does in this family"
    return None


def _check(fields: Fields) -> Fields:
    if not fields["indexer_layers"][0]:
        raise ValueError("the first layer must have an indexer, whose selection others can share")
    return check_indexer(fields)


FAMILY = replace(
    DEEPSEEK_V32,
    name="glm_moe_dsa",
    gguf="glm-dsa",
    module="weightctl.nn.models.shared_selection:SharedSelectionDecoder",
    model_types={
        "glm_moe_dsa": ModelType(
            class_name="GlmMoeDsaForCausalLM",
            defaults={
                **DEEPSEEK_V32.model_types["deepseek_v32"].defaults,
                "vocabulary": 154880,
                "context": 202752,
                "hidden": 6144,
                "intermediate": 12288,
                "layers": 78,
                "heads": 64,
                "norm_epsilon": 1e-5,
                "query_rank": 2048,
                "plain_dimensions": 192,
                "value_dimensions": 256,
                "indexer_heads": 32,
                "expert_groups": 1,
                "expert_groups_used": 1,
            },
        )
    },
    blocks={**DEEPSEEK_V32.blocks, "indexer_interleaved": True},
    unloaded=_find_unlike,
    differs="it leaves out the epsilon of the norm of the indexer's keys",
    # Each of these layers has an indexer of its own.
    mtp=MtpForm(values={"indexer_layers": True}, unstated=("indexer_layers",)),
    keys=expert_keys(
        latent_keys(
            mtp_keys(DECODER_KEYS, "num_nextn_predict_layers"), activation("silu"), NO_BIASES
        ),
        "n_routed_experts",
        NO_MLP_BIASES,
        *INDEXER_KEYS,
        Key(field="indexer_layers", kind=LayerChoice(_FULL, _SHARED), default=_mark_all,
            hugging_face="indexer_types", written=True),
        Key(field="indexer_layers", kind=FLAGS, gguf_default=_mark_layers,
            gguf="{arch}.attention.indexer.types"),
        *ROUTED_KEYS,
        experts=256,
        used=8,
    ),
    standard=_standard,
    checked=checking_experts(_check),
)  # fmt: skip
