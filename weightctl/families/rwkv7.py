"""RWKV-7: time mixing in place of attention, and an MLP that reads a mix of two positions.

Names and keys: those of flash-linear-attention (`fla/models/rwkv7`), since transformers does not
have the type; llama.cpp's `models/rwkv7.cpp` and `conversion/rwkv.py`. llama.cpp also needs tensors
of the first layer that nothing reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weightctl.families.config_keys import Key, quotient, same, with_keys
from weightctl.families.config_values import HEADS, SIZE, Choice, Exactly, WholeNumber
from weightctl.families.decoder import DecoderConfig
from weightctl.families.decoder_keys import DECODER_KEYS, LAYER_NORM, check_decoder
from weightctl.families.family import Family, ModelType
from weightctl.families.fusions import Fusion
from weightctl.families.modules import Name, WeightAxes, at_layer
from weightctl.families.rope import ROPE_KEYS
from weightctl.families.usual_names import layer_lines, line
from weightctl.text.untyped import is_list

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from weightctl.families.config_keys import Fields

# The order of the shares in the tensors that have all of them.
_MIXES = "rwkvag"
_RWKV = (
    *(f"mix_{part}" for part in _MIXES), "r", "k", "v", "decay_a", "decay_b", "decay_offset",
    "rate_a", "rate_b", "rate_offset", "value_a", "value_b", "value_offset", "gate_a", "gate_b",
    "key_scale", "key_rate", "bonus", "norm", "outputs",
)  # fmt: skip
_MIXED = tuple(f"layers.{{}}.rwkv.mix_{part}" for part in _MIXES)
# llama.cpp's epsilon of the norm of each head.
_HEAD_EPSILON = 64e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class RwkvConfig(DecoderConfig):
    """The sizes of RWKV-7.

    - `decay_rank`, `rate_rank`, `value_rank`, `gate_rank`: the sizes of the vectors that decays,
      rates, shares of values and gates are computed from.
    """

    decay_rank: int = 0
    rate_rank: int = 0
    value_rank: int = 0
    gate_rank: int = 0

    @property
    def value_layers(self) -> tuple[bool, ...]:
        """Which layers mix their values with those of the first layer."""
        return tuple(layer > 0 for layer in range(self.layers))

    @property
    def head_epsilon(self) -> float:
        """The epsilon of the norm of each head."""
        size: int = at_layer(self, "head_dim", 0)
        return self.norm_epsilon * size

    @property
    def reads_unused(self) -> bool:
        """False: no model reads what llama.cpp needs in the first layer."""
        return False


def _make_zeros(*shape: str) -> Callable[[Any], NDArray[np.float32]]:
    def make(config: Any) -> NDArray[np.float32]:
        import numpy as np

        return np.zeros([getattr(config, size) for size in shape], np.float32)

    return make


def _list_unused() -> tuple[Name, ...]:
    """Return the lines of tensors that llama.cpp needs in the first layer, and does not read."""
    shapes = (("hidden",), ("rate_rank", "hidden"), ("hidden", "rate_rank"))
    return tuple(
        Name(
            module=f"unused_{number}",
            gguf=f"blk.0.time_mix_v{number}",
            hugging_face=None,
            axes=WeightAxes(shape[:1], shape[1:]),
            when=("reads_unused",),
            made=_make_zeros(*shape),
            unread=True,
            is_float32=True,
        )
        for number, shape in enumerate(shapes)
    )


def _find_rank(exponent: float, factor: float) -> Callable[[Fields], int]:
    """Return the default that llama.cpp's converter has for the size of a vector."""
    return lambda fields: max(1, round(fields["hidden"] ** exponent * factor / 32)) * 32


def _rank_key(field: str, gguf: str, name: str, exponent: float, factor: float) -> Key:
    return Key(
        field=field,
        kind=SIZE,
        default=_find_rank(exponent, factor),
        gguf=f"{{arch}}.attention.{gguf}_lora_rank",
        hugging_face=f"{name}_low_rank_dim",
        written=True,
    )


def _find_width(fields: Fields) -> int:
    return -(-4 * int(fields["hidden"]) // 32) * 32


_KEYS = with_keys(
    DECODER_KEYS,
    LAYER_NORM,
    without=(
        "kv_heads", "head_dim", "value_dim", "heads", *(key.field for key in ROPE_KEYS),
    ),
)  # fmt: skip
_CHANGED = (
    # The models have no limit; llama.cpp's converter states this number.
    Key(field="context", kind=SIZE, default=1 << 20, gguf="{arch}.context_length"),
    Key(field="norm_epsilon", kind=LAYER_NORM.kind, default=1e-5, gguf=LAYER_NORM.gguf,
        hugging_face="norm_eps"),
    Key(field="activation", kind=Choice({"sqrelu": "relu2"}), default="relu2",
        gguf_default="relu2", hugging_face="hidden_act"),
    Key(field="no_heads", kind=WholeNumber(0, 0), gguf_default=0, default=0,
        gguf="{arch}.attention.head_count", written=True),
    Key(field="head_dim", kind=SIZE, default=64, gguf="{arch}.wkv.head_size",
        hugging_face="head_dim"),
    Key(field="heads", kind=HEADS, default=quotient("hidden", "head_dim"),
        gguf_default=quotient("hidden", "head_dim"), hugging_face="num_heads"),
    Key(field="kv_heads", kind=HEADS, default=same("heads"), gguf_default=same("heads")),
    Key(field="intermediate", kind=SIZE, default=_find_width, gguf="{arch}.feed_forward_length",
        hugging_face="intermediate_size", written=True),
    _rank_key("decay_rank", "decay", "decay", 0.5, 1.8),
    _rank_key("rate_rank", "iclr", "a", 0.5, 1.8),
    _rank_key("value_rank", "value_residual_mix", "v", 0.5, 1.3),
    _rank_key("gate_rank", "gate", "gate", 0.8, 0.6),
    Key(field="has_attention", kind=Exactly(None, "layers with attention are not supported"),
        default=None, gguf_default=None, hugging_face="attn", written=False),
    Key(field="norm_bias", kind=Exactly(True, "llama.cpp needs the biases of norms"),
        default=True, gguf_default=True, hugging_face="norm_bias"),
    Key(field="is_normed", kind=Exactly(True, "llama.cpp needs the norm of the embedding"),
        default=True, gguf_default=True, hugging_face="norm_first"),
)  # fmt: skip


def _standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json without what is to be computed, and without sizes that all layers share.

    Raises `ValueError` if values have another size than keys.
    """
    found = {key: value for key, value in document.items() if value is not None}
    width = found.get("hidden_size", 2048)
    values = found.pop("value_dim", width)
    if any(each != width for each in (values if is_list(values) else [values])):
        raise ValueError("values of another size than the hidden size are not supported")
    # The model only reads the number of heads if their size is null: releases state 32 everywhere.
    heads = found.pop("num_heads", None)
    if heads is not None and document.get("head_dim", heads) is None:
        found["head_dim"] = SIZE.read(width) // HEADS.read(heads)
    return found


def _check(fields: Fields) -> Fields:
    """Return the fields as `RwkvConfig` has them; raises `ValueError` if they contradict."""
    hidden, heads, size = (fields[name] for name in ("hidden", "heads", "head_dim"))
    if heads * size != hidden:
        raise ValueError(f"{heads} heads of size {size} do not have the hidden size {hidden}")
    return check_decoder(fields)


def _find_difference(fields: Fields) -> str | None:
    """Return what llama.cpp computes differently from transformers, or None."""
    found = fields["norm_epsilon"] * fields["head_dim"]
    if abs(found / _HEAD_EPSILON - 1) > 1e-6:
        return f"the norm of each head has the epsilon {_HEAD_EPSILON} in place of {found:.4g}"
    return None


FAMILY = Family(
    name="rwkv7",
    model_types={
        "rwkv7": ModelType(
            class_name="RWKV7ForCausalLM",
            defaults={"hidden": 2048, "layers": 24},
        )
    },
    config="weightctl.families.rwkv7:RwkvConfig",
    module="weightctl.nn.models.rwkv:RwkvDecoder",
    blocks={
        "norm": "layer",
        "embedding_norm": True,
        "gated": False,
        "position": "none",
        "attention_layers": False,
    },
    differs=_find_difference,
    # Some checkpoints have what llama.cpp needs in the first layer.
    beside=(
        r"blk\.0\.time_mix_v[012]\.weight",
        r"layers\.0\.attn\.v_lora\.lora\.\d\.(weight|bias)",
    ),
    names=(
        line("embedding", hugging_face="model.embeddings"),
        line("embedding_norm", hugging_face="model.layers.0.pre_norm", bias=True),
        *_list_unused(),
        *layer_lines(
            "model.layers.{}.",
            {
                "attention_norm": {"hugging_face": "attn_norm", "bias": True},
                "mlp_norm": {"gguf": "blk.{}.attn_norm_2", "hugging_face": "ffn_norm",
                             "bias": True},
                "mlp_mix": {},
                "mlp.up": {"gguf": "blk.{}.channel_mix_key", "hugging_face": "ffn.key"},
                "mlp.down": {"gguf": "blk.{}.channel_mix_value", "hugging_face": "ffn.value"},
            },
        ),
        *(line(f"rwkv.{part}") for part in _RWKV),
        line("norm", bias=True),
        line("output"),
    ),
    keys=with_keys(_KEYS, *_CHANGED),
    fusions=(
        Fusion(convention="gguf", name="blk.{}.time_mix_lerp_fused.{kind}", parts=_MIXED),
        Fusion(convention="hugging_face", name="model.layers.{}.attn.x_x", parts=_MIXED),
    ),
    standard=_standard,
    checked=_check,
)  # fmt: skip
