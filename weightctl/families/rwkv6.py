"""RWKV-6: time mixing whose shares of the position before depend on the tokens, and a gated MLP.

Names and keys: those of the models that llama.cpp converts (`RWKV/v6-Finch-1B6-HF`), since
transformers does not have the type; llama.cpp's `models/rwkv6.cpp` and `conversion/rwkv.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from weightctl.families.config_keys import Key, quotient, same, with_keys
from weightctl.families.config_values import HEADS, SIZE, Exactly, WholeNumber
from weightctl.families.decoder import DecoderConfig
from weightctl.families.decoder_keys import DECODER_KEYS, LAYER_NORM, check_decoder
from weightctl.families.family import Family, ModelType
from weightctl.families.fusions import Fusion
from weightctl.families.modules import Name, WeightAxes
from weightctl.families.rope import ROPE_KEYS
from weightctl.families.steps import TURNED, extra_axes, halved_by_layer, turned_each
from weightctl.families.usual_names import layer_lines, line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from weightctl.families.config_keys import Fields

# The order of the mixed vectors in the tensors that have all of them.
_MIXES = "wkvrg"
_MIXED = tuple(f"layers.{{}}.rwkv.mix_{part}" for part in _MIXES)
_LAYER, _ATTENTION = "layers.{}.", "rwkv.blocks.{}.attention."
_MLP = "rwkv.blocks.{}.feed_forward."
_BARE: Mapping[Any, str] = {"hugging_face": ""}
# Hugging Face's convention has vectors of three dimensions.
_VECTOR = extra_axes(gguf=(), hugging_face=(0, 0))
_RESCALED = halved_by_layer("rescale_every")
# The root of the factor by which the epsilon of the norm of each head is larger than 1e-5.
_DIVISOR = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Rwkv6Config(DecoderConfig):
    """The sizes of RWKV-6.

    - `mix_rank`, `decay_rank`: the sizes of the vectors that each of the shares, and the decays,
      are computed from.
    - `rescale_every`: after how many layers the outputs of layers are halved, so that numbers of 16
      bits can represent them; 0 for never.
    """

    mix_rank: int = 32
    decay_rank: int = 64
    rescale_every: int = 0

    @property
    def mixes(self) -> int:
        """The number of vectors that are mixed with those of the position before."""
        return len(_MIXES)

    @property
    def mix_vectors(self) -> int:
        """The number of elements that all shares are computed from."""
        return self.mixes * self.mix_rank

    @property
    def head_epsilon(self) -> float:
        """The epsilon of the norm of each head."""
        return 1e-5 * _DIVISOR**2


def _matrix(module: str, gguf: str, name: str, outputs: str, inputs: str, **more: Any) -> Name:
    """Return the line of a matrix of a layer; `name` is the whole one in Hugging Face's."""
    axes = WeightAxes((outputs,), (inputs,), kernel=more.pop("kernel", ()))
    return Name(module=_LAYER + module, gguf=f"blk.{{}}.{gguf}", hugging_face=name, axes=axes,
                **more)  # fmt: skip


def _list_time_mix() -> tuple[Name, ...]:
    turned: dict[str, Any] = {"change": TURNED, "ends": _BARE, "is_float32": True}
    return (
        Name(module=f"{_LAYER}rwkv.mix_x", gguf="blk.{}.time_mix_lerp_x",
             hugging_face=f"{_ATTENTION}time_maa_x", axes=WeightAxes(("hidden",)), change=_VECTOR,
             ends=_BARE, is_float32=True),
        *(line(f"rwkv.mix_{part}", hugging_face=f"{_ATTENTION}time_maa_{part}")
          for part in _MIXES),
        _matrix("rwkv.mixer_a", "time_mix_w1", f"{_ATTENTION}time_maa_w1", "mix_vectors", "hidden",
                **turned),
        _matrix("rwkv.mixer_b", "time_mix_w2", f"{_ATTENTION}time_maa_w2", "mixes", "hidden",
                kernel=("mix_rank",), **turned | {"change": turned_each("mixes")}),
        _matrix("rwkv.decay_a", "time_mix_decay_w1", f"{_ATTENTION}time_decay_w1", "decay_rank",
                "hidden", **turned),
        _matrix("rwkv.decay_b", "time_mix_decay_w2", f"{_ATTENTION}time_decay_w2", "queries",
                "decay_rank", **turned),
        line("rwkv.decay_offset", gguf="blk.{}.time_mix_decay",
             hugging_face=f"{_ATTENTION}time_decay", change=_VECTOR, ends=_BARE),
        *(line(f"rwkv.{part}", hugging_face=f"{_ATTENTION}{name}")
          for part, name in (("r", "receptance"), ("k", "key"), ("v", "value"))),
        _matrix("rwkv.gate", "time_mix_gate", f"{_ATTENTION}gate", "queries", "hidden"),
        line("rwkv.bonus", gguf="blk.{}.time_mix_first", hugging_face=f"{_ATTENTION}time_faaaa",
             change=None, ends=_BARE),
        line("rwkv.norm", hugging_face=f"{_ATTENTION}ln_x", bias=True),
        line("rwkv.outputs", hugging_face=f"{_ATTENTION}output", change=_RESCALED),
    )  # fmt: skip


def _list_mlp() -> tuple[Name, ...]:
    shares = [
        Name(module=f"{_LAYER}mlp_mix{end}", gguf=f"blk.{{}}.channel_mix_lerp_{part}",
             hugging_face=f"{_MLP}time_maa_{part}", axes=WeightAxes(("hidden",)), change=_VECTOR,
             ends=_BARE, is_float32=True)
        for part, end in (("k", ""), ("r", "_gate"))
    ]  # fmt: skip
    return (
        *shares,
        line("mlp.up", gguf="blk.{}.channel_mix_key", hugging_face=f"{_MLP}key"),
        line("mlp.down", gguf="blk.{}.channel_mix_value", hugging_face=f"{_MLP}value",
             change=_RESCALED),
        _matrix("mlp.gate", "channel_mix_receptance", f"{_MLP}receptance", "hidden", "hidden"),
    )  # fmt: skip


def _find_rank(usual: int) -> Callable[[Fields], int]:
    """Return the default for the size of a vector, which models of one width have twice as large.

    config.json does not state it.
    """
    return lambda fields: usual * (2 if fields["hidden"] == 4096 else 1)


def _find_width(fields: Fields) -> int:
    return int(fields["hidden"] * 3.5) // 32 * 32


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
    replace(LAYER_NORM, hugging_face="layer_norm_epsilon"),
    Key(field="activation", kind=Exactly("relu2", "RWKV-6 has no other activation"),
        default="relu2", gguf_default="relu2"),
    Key(field="no_heads", kind=WholeNumber(0, 0), gguf_default=0, default=0,
        gguf="{arch}.attention.head_count", written=True),
    Key(field="head_dim", kind=SIZE, default=64, gguf="{arch}.wkv.head_size",
        hugging_face="head_size"),
    Key(field="heads", kind=HEADS, default=quotient("hidden", "head_dim"),
        gguf_default=quotient("hidden", "head_dim")),
    Key(field="kv_heads", kind=HEADS, default=same("heads"), gguf_default=same("heads")),
    Key(field="intermediate", kind=SIZE, default=_find_width, gguf="{arch}.feed_forward_length",
        hugging_face="intermediate_size", written=True),
    Key(field="rescale_every", kind=WholeNumber(0, 1 << 16), default=6, gguf_default=0,
        gguf="{arch}.rescale_every_n_layers", hugging_face="rescale_every"),
    Key(field="mix_rank", kind=SIZE, default=_find_rank(32), gguf="{arch}.time_mix_extra_dim"),
    Key(field="decay_rank", kind=SIZE, default=_find_rank(64),
        gguf="{arch}.time_decay_extra_dim"),
    Key(field="head_divisor", default=_DIVISOR, hugging_face="head_size_divisor",
        kind=Exactly(_DIVISOR, "llama.cpp has one epsilon of the norm of each head")),
)  # fmt: skip


def _standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json without what is to be computed.

    Raises `ValueError` if the time mixing has another width than the other layers.
    """
    found = {key: value for key, value in document.items() if value is not None}
    width = found.get("hidden_size", 768)
    if found.pop("attention_hidden_size", width) != width:
        raise ValueError("an `attention_hidden_size` other than `hidden_size` is not supported")
    return found


_NOTES = """
transformers does not have `rwkv6` and `rwkv7`. weightctl reads the names of `RWKV/v6-Finch-1B6-HF`,
and for `rwkv7` those of flash-linear-attention. The tests compare them with llama.cpp, and with
definitions of the models in torch. As llama.cpp requires, weights of later layers of `rwkv6` are
halved in GGUF files as `rescale_every` states. The tokenizer, `rwkv_vocab_v20230424.txt`, is
converted in both directions; the end of a turn is the token of two line breaks, as in llama.cpp's
converter. The chat template is converted if the model has one. llama.cpp also reads the text `<s>`
as token 0, which no text contains in the original.

The original files of RWKV-6 and RWKV-7 (`.pth`, with names such as `blocks.0.att.key.weight`) are
listed with their family, and converted to GGUF; the config follows from the shapes of the tensors.
For other outputs they keep their names.
"""

FAMILY = Family(
    name="rwkv6",
    notes=_NOTES,
    model_types={
        "rwkv6": ModelType(
            class_name="Rwkv6ForCausalLM",
            defaults={"vocabulary": 65536, "hidden": 768, "layers": 24},
        )
    },
    config="weightctl.families.rwkv6:Rwkv6Config",
    module="weightctl.nn.models.rwkv6:Rwkv6Decoder",
    blocks={
        "norm": "layer",
        "embedding_norm": True,
        "gated": False,
        "position": "none",
        "attention_layers": False,
    },
    prefix="rwkv.",
    names=(
        line("embedding", hugging_face="rwkv.embeddings"),
        line("embedding_norm", hugging_face="rwkv.blocks.0.pre_ln", bias=True),
        *layer_lines(
            "rwkv.blocks.{}.",
            {
                "attention_norm": {"hugging_face": "ln1", "bias": True},
                "mlp_norm": {"gguf": "blk.{}.attn_norm_2", "hugging_face": "ln2", "bias": True},
            },
        ),
        *_list_time_mix(),
        *_list_mlp(),
        line("norm", hugging_face="rwkv.ln_out", bias=True),
        line("output", hugging_face="head"),
    ),
    keys=with_keys(_KEYS, *_CHANGED),
    fusions=(
        Fusion(convention="gguf", name="blk.{}.time_mix_lerp_fused.{kind}", parts=_MIXED),
        # Older files have a tensor for each.
        *(Fusion(convention="gguf", name=f"blk.{{}}.time_mix_lerp_{part}.{{kind}}",
                 parts=(f"layers.{{}}.rwkv.mix_{part}",)) for part in _MIXES),
    ),
    standard=_standard,
    checked=check_decoder,
)  # fmt: skip
