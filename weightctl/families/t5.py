"""T5, T5 v1.1 and Flan-T5: an encoder, and a decoder that reads the states of the encoder.

Names and keys: transformers' `modeling_t5.py` and `configuration_t5.py`; llama.cpp's
`models/t5.cpp` and `conversion/t5.py`.

The layers of the encoder are counted before those of the decoder, as pipeline stages hold them.

The first T5 uses the embedding as its output, and multiplies the states before it by the inverse
square root of the hidden size. llama.cpp does not multiply: its logits are larger by that factor,
so the likeliest token is the same and the probabilities differ. transformers is right: it computes
the same as Mesh TensorFlow, with which the models were trained. T5 v1.1 has an output of its own
and does not multiply.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.families.config_keys import IsAbsent, Key, PresentAs, same, with_keys
from weightctl.families.config_values import FLAG, HEADS, LAYERS, SIZE, Choice, Exactly, WholeNumber
from weightctl.families.decoder_keys import SIZES, rename_keys
from weightctl.families.family import Family, ModelType
from weightctl.families.modules import Name, WeightAxes
from weightctl.families.usual_names import layer_lines, line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.config_keys import Fields

_ENCODER, _DECODER = (f"{stack}.block.{{}}.layer." for stack in ("encoder", "decoder"))
_IN_DECODER: Mapping[str, Any] = {"when": ("in_decoder",), "first": "encoder_layers"}
# Every layer of the decoder reads the states of the encoder.
_ALL_LAYERS = WeightAxes(("hidden",), all_layers=True)
# By the word in config.json: the activation, and whether the MLP has a gate.
_FEED_FORWARD = {"relu": ("relu", False), "gated-gelu": ("gelu_tanh", True)}
# The names of keys in config.json. transformers does not read the context.
_CALLED = {
    "context": "n_positions",
    "hidden": "d_model",
    "heads": "num_heads",
    "head_dim": "d_kv",
    "intermediate": "d_ff",
    "norm_epsilon": "layer_norm_epsilon",
}


def _list_attention(
    stack: str, begin: str, own: str, module: str, gguf: str, **common: Any
) -> tuple[Name, ...]:
    """Return the lines of attention in a layer of the encoder or the decoder, with its norm."""
    blocks = f"{stack}.blk.{{}}.{gguf}_"
    return layer_lines(
        begin,
        {
            "attention_norm": {
                "module": f"layers.{{}}.{module}_norm",
                "gguf": blocks + "norm",
                "hugging_face": "layer_norm",
            },
            **{
                f"attention.{part}": {
                    "module": f"layers.{{}}.{module}.{part}",
                    "gguf": blocks + part,
                    "hugging_face": f"{own}.{part}",
                    "bias": False,
                }
                for part in "qkvo"
            },
        },
        **common,
    )


def _list_mlp(stack: str, begin: str, when: str, **common: Any) -> tuple[Name, ...]:
    """Return the lines of a layer's MLP with its norm; their names depend on the gate."""
    blocks, dense = f"{stack}.blk.{{}}.ffn_", "DenseReluDense."

    def name(part: str, own: str) -> dict[str, Any]:
        return {"gguf": blocks + part, "hugging_face": own, "bias": False}

    inner = {"mlp.gate": name("gate", dense + "wi_0"), "mlp.up": name("up", dense + "wi_1")}
    plain = {"mlp.up": name("up", dense + "wi")}
    return (
        *layer_lines(begin, {"mlp_norm": name("norm", "layer_norm")}, when=(when,), **common),
        *layer_lines(begin, inner, when=(when, "gated"), **common),
        *layer_lines(begin, plain, when=(when,), unless="gated", **common),
        *layer_lines(begin, {"mlp.down": name("down", dense + "wo")}, when=(when,), **common),
    )


def _list_bias(module: str, stack: str, prefix: str) -> Name:
    """Return the line of the relative position bias, which checkpoints store in the first layer."""
    return Name(
        module=module,
        gguf=f"{stack}.blk.0.attn_rel_b",
        hugging_face=f"{prefix}.block.0.layer.0.SelfAttention.relative_attention_bias",
        axes=WeightAxes(("buckets",), ("heads",), all_layers=True),
        is_float32=True,
    )


def _count_layers(fields: Fields) -> int:
    return int(fields["encoder_layers"] + fields["decoder_layers"])


def _standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json in which `tie_word_embeddings` states whether the output is scaled.

    Newer files state that as `scale_decoder_outputs`; in older ones, the key means both.
    """
    scaled = document.get("scale_decoder_outputs")
    return document if scaled is None else {**document, "tie_word_embeddings": scaled}


def _check(fields: Fields) -> Fields:
    if fields["farthest"] <= fields["buckets"] // 2:
        raise ValueError(
            f"`relative_attention_max_distance` is {fields['farthest']}; it must be greater than "
            f"half of the {fields['buckets']} buckets"
        )
    if fields.get("value_dim", fields["head_dim"]) != fields["head_dim"]:
        raise ValueError("keys and values of different sizes are not supported")
    activation, gated = _FEED_FORWARD[fields["feed_forward"]]
    scale = fields["hidden"] ** -0.5 if fields["tied"] else 1.0
    return {**fields, "activation": activation, "gated": gated, "logit_scale": scale}


def _find_difference(fields: Fields) -> str | None:
    if fields["tied"]:
        return "it does not multiply the logits by the inverse root of the hidden size"
    return None


FAMILY = Family(
    name="t5",
    model_types={
        "t5": ModelType(
            class_name="T5ForConditionalGeneration",
            defaults={
                "vocabulary": 32128,
                "context": 512,
                "hidden": 512,
                "heads": 8,
                "head_dim": 64,
                "intermediate": 2048,
            },
        )
    },
    config="weightctl.families.encoder:EncoderDecoderConfig",
    module="weightctl.nn.models.encoder_decoder:EncoderDecoder",
    blocks={"attention_scale": 1.0},
    prefix="",
    names=(
        line("embedding", hugging_face="shared"),
        _list_bias("encoder_bias", "enc", "encoder"),
        _list_bias("decoder_bias", "dec", "decoder"),
        line("norm", module="encoder_norm", gguf="enc.output_norm",
             hugging_face="encoder.final_layer_norm", axes=_ALL_LAYERS),
        *_list_attention("enc", _ENCODER + "0.", "SelfAttention", "attention", "attn",
                         when=("in_encoder",)),
        *_list_mlp("enc", _ENCODER + "1.", "in_encoder"),
        *_list_attention("dec", _DECODER + "0.", "SelfAttention", "attention", "attn",
                         **_IN_DECODER),
        *_list_attention("dec", _DECODER + "1.", "EncDecAttention", "cross", "cross_attn",
                         **_IN_DECODER),
        *_list_mlp("dec", _DECODER + "2.", "in_decoder", first="encoder_layers"),
        line("norm", gguf="dec.output_norm", hugging_face="decoder.final_layer_norm"),
        line("output"),
    ),
    keys=(
        Key(field="encoder_layers", kind=LAYERS, default=6, gguf="{arch}.block_count",
            hugging_face="num_layers"),
        Key(field="decoder_layers", kind=LAYERS, default=same("encoder_layers"),
            gguf_default=same("encoder_layers"), gguf="{arch}.decoder_block_count",
            hugging_face="num_decoder_layers", written=True),
        *with_keys(
            rename_keys(SIZES, _CALLED),
            Key(field="layers", kind=LAYERS, default=_count_layers, gguf_default=_count_layers),
            Key(field="kv_heads", kind=HEADS, default=same("heads"), gguf_default=same("heads"),
                gguf="{arch}.attention.head_count_kv"),
        ),
        Key(field="buckets", kind=WholeNumber(4, SIZE.most), default=32,
            gguf="{arch}.attention.relative_buckets_count",
            hugging_face="relative_attention_num_buckets"),
        # llama.cpp uses this value for all models.
        Key(field="farthest", kind=SIZE, default=128, gguf_default=128,
            hugging_face="relative_attention_max_distance"),
        Key(field="feed_forward", kind=Choice({word: word for word in _FEED_FORWARD}),
            default="relu", gguf_default="relu", hugging_face="feed_forward_proj",
            seen=PresentAs("enc.blk.0.ffn_gate.weight", "gated-gelu")),
        Key(field="tied", kind=FLAG, default=True, hugging_face="tie_word_embeddings",
            seen=IsAbsent("output.weight")),
        Key(field="is_causal", default=True, hugging_face="is_causal", written=False,
            kind=Exactly(True, "a decoder that sees later tokens is not supported")),
        Key(field="start_token", kind=WholeNumber(0, SIZE.most), default=None, gguf_default=None,
            gguf="{arch}.decoder_start_token_id", hugging_face="decoder_start_token_id"),
    ),
    # Other names of the embedding, and values that no version of the models adds.
    beside=(
        r"(encoder|decoder)\.embed_tokens\.weight",
        r"decoder\.block\.\d+\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
    ),
    differs=_find_difference,
    standard=_standard,
    checked=_check,
)  # fmt: skip
