"""Llama 4, and the text model of its multimodal models: chunked attention, and single experts.

Names and keys: transformers' `modeling_llama4.py` and `configuration_llama4.py`; llama.cpp's
`models/llama4.cpp` and `conversion/llama.py`. llama.cpp does not have keys for the size of chunks,
for the layers that have them, and for the attention temperature: it assumes those of the published
models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.families.decoder_keys import BIASES, DECODER_KEYS, check_decoder, with_keys
from weightctl.families.experts import checking_experts, expert_keys, expert_lines
from weightctl.families.family import Family, ModelType
from weightctl.families.fusions import Fusion, qkv_form
from weightctl.families.keys import Key, same
from weightctl.families.kinds import FLAG, LAYERS, SIZE, OrNone, Real, WholeNumber, show_value
from weightctl.families.layer_rope import object_of
from weightctl.families.layers import ONES, FlagMeaning, LayerChoice, every_but
from weightctl.families.lines import DECODER, adapt
from weightctl.families.rope_factors import LLAMA3_LINES
from weightctl.families.rope_keys import ROPE_FACTORS, standard
from weightctl.text.untyped import is_list

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.keys import Fields

_CHUNK, _PERIOD, _EXPERTS_WITHOUT_NORMS = 8192, 4, 128
_EXPERTS = "model.layers.{}.feed_forward.experts."
_EXPERT = "layers.{}.mlp.experts.{expert}."
_EVERY_FOURTH = every_but(_PERIOD)


class _LayerNumbers(NamedTuple):
    """A list of layer numbers."""

    def read(self, content: object) -> tuple[int, ...]:
        """Return the numbers."""
        if not is_list(content) or len(content) > LAYERS.most:
            raise ValueError(f"is {show_value(content)}; it must be a list of layer numbers")
        return tuple(WholeNumber(0, LAYERS.most).read(each) for each in content)

    @property
    def gguf_type(self) -> str:
        """The type of an array of integers."""
        return "array[u32]"

    def write(self, value: tuple[int, ...]) -> list[int]:
        """Return the numbers."""
        return list(value)


def _by_step(fields: Fields) -> tuple[bool, ...]:
    step = fields["expert_step"]
    return tuple((layer + 1) % step == 0 for layer in range(fields["layers"]))


def _mark_sparse(fields: Fields) -> tuple[bool, ...]:
    numbers = fields["expert_layers"]
    if numbers is None:
        return _by_step(fields)
    return tuple(layer in numbers for layer in range(fields["layers"]))


def _by_interval(fields: Fields) -> tuple[bool, ...]:
    return every_but(fields["no_rope_interval"])(fields)


def _find_norm(fields: Fields) -> str | None:
    return "unit" if fields["has_qk_norm"] else None


def _find_difference(fields: Fields) -> str | None:
    """Return why llama.cpp does not load a model, or would run a different one, or None."""
    if fields["sparse_layers"] != _by_step(fields):
        return "its layers with experts are not those that `interleave_moe_layer_step` selects"
    if fields["layers"] < _PERIOD:
        return f"it has fewer than {_PERIOD} layers"
    regular = _EVERY_FOURTH(fields)
    if fields["rotated_layers"] != regular or fields["chunked_layers"] != regular:
        return "its layers without RoPE and chunked attention are not exactly every fourth layer"
    return None


def _standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the standard config.json of the text model, which multimodal models contain."""
    if document["model_type"] == "llama4":
        tied = "tie_word_embeddings"
        outer = {tied: document[tied]} if tied in document else {}
        document = {**object_of(document, "text_config"), **outer}
    made = dict(standard(document))
    if not made.get("no_rope_layers"):
        made.pop("no_rope_layers", None)
    # The first versions of transformers wrote a number here.
    tuning = made.get("attn_temperature_tuning")
    if type(tuning) is int:
        made["attn_temperature_tuning"] = tuning != 0
    return made


def _check(fields: Fields) -> Fields:
    made = check_decoder(fields)
    return made if fields["has_temperature"] else {**made, "temperature_scale": 0.0}


_DEFAULTS = {
    "vocabulary": 202048,
    "context": 131072,
    "hidden": 5120,
    "intermediate": 16384,
    "layers": 48,
    "heads": 40,
    "kv_heads": 8,
    "head_dim": 128,
    "norm_epsilon": 1e-5,
    "rope_base": 500000.0,
    "expert_intermediate": 8192,
}

FAMILY = Family(
    name="llama4",
    model_types={
        "llama4_text": ModelType(class_name="Llama4ForCausalLM", defaults=_DEFAULTS),
        "llama4": ModelType(class_name="Llama4ForCausalLM", defaults=_DEFAULTS),
    },
    blocks={
        "rope_interleaved": True,
        "temperature_offset": 1,
        "temperature_without_rope": True,
        "router": "sigmoid",
        "experts_normalized": False,
        "shares_scale_inputs": True,
    },
    keeps_window=True,
    unloaded=_find_difference,
    names=expert_lines(
        adapt(
            DECODER,
            {
                "mlp.gate": "feed_forward.gate_proj",
                "mlp.up": "feed_forward.up_proj",
                "mlp.down": "feed_forward.down_proj",
                **LLAMA3_LINES,
            },
        ),
        "feed_forward.",
        parts=(None, None, None),
        dense=True,
        more={
            "mlp.router": "router",
            "mlp.shared.gate": "shared_expert.gate_proj",
            "mlp.shared.up": "shared_expert.up_proj",
            "mlp.shared.down": "shared_expert.down_proj",
        },
    ),
    keys=expert_keys(
        with_keys(
            DECODER_KEYS,
            *BIASES[:2],
            ROPE_FACTORS,
            Key(field="intermediate", kind=SIZE, gguf="{arch}.feed_forward_length",
                hugging_face="intermediate_size_mlp"),
            Key(field="no_rope_interval", kind=SIZE, default=_PERIOD,
                hugging_face="no_rope_layer_interval"),
            Key(field="rotated_layers", kind=ONES, default=_by_interval,
                gguf_default=_EVERY_FOURTH, hugging_face="no_rope_layers", written=True),
            Key(field="chunked_layers", default=same("rotated_layers"),
                gguf_default=_EVERY_FOURTH, hugging_face="layer_types", written=True,
                kind=LayerChoice("chunked_attention", "full_attention")),
            Key(field="attention_chunk", kind=OrNone(SIZE, None), default=_CHUNK,
                gguf_default=_CHUNK, hugging_face="attention_chunk_size"),
            # 0 would mean that no layer has chunks, which is refused.
            Key(field="chunk_state", kind=WholeNumber(1, SIZE.most), gguf_default=_CHUNK,
                gguf="{arch}.attention.sliding_window", written=False),
            Key(field="has_temperature", kind=FLAG, default=True, gguf_default=True,
                hugging_face="attn_temperature_tuning"),
            Key(field="temperature_length", kind=SIZE, default=8192, gguf_default=8192,
                hugging_face="floor_scale"),
            Key(field="temperature_scale", kind=Real(0, 1e6, is_closed=True), default=0.1,
                gguf_default=0.1, hugging_face="attn_scale"),
        ),
        "num_local_experts",
        Key(field="expert_intermediate", kind=SIZE, gguf="{arch}.expert_feed_forward_length",
            hugging_face="intermediate_size"),
        Key(field="shared_intermediate", kind=SIZE, default=same("expert_intermediate"),
            gguf_default=same("expert_intermediate")),
        Key(field="expert_step", kind=SIZE, default=1,
            gguf="{arch}.interleave_moe_layer_step", hugging_face="interleave_moe_layer_step"),
        Key(field="expert_layers", kind=_LayerNumbers(), default=None, hugging_face="moe_layers",
            written=False),
        Key(field="sparse_layers", kind=ONES, default=_mark_sparse, gguf_default=_by_step),
        Key(field="has_qk_norm", kind=FLAG, default=True, hugging_face="use_qk_norm",
            gguf_default=lambda fields: fields["experts"] != _EXPERTS_WITHOUT_NORMS),
        Key(field="qk_norm", kind=FlagMeaning("unit"), default=_find_norm,
            gguf_default=_find_norm),
        experts=16,
        used=1,
    ),
    fusions=(
        qkv_form(),
        Fusion(convention="hugging_face", name=_EXPERTS + "gate_up_proj", of_experts=True,
               parts=(_EXPERT + "gate", _EXPERT + "up"), transposed=True),
        Fusion(convention="hugging_face", name=_EXPERTS + "down_proj", of_experts=True,
               parts=(_EXPERT + "down",), transposed=True),
    ),
    other_prefixes=("language_model.model.", "model.language_model.", "language_model."),
    beside=(r"vision_model\..+", r"multi_modal_projector\..+"),
    standard=_standard,
    checked=checking_experts(_check),
)  # fmt: skip
