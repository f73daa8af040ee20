"""EAGLE-3: draft models, which predict tokens from three layers of another model, the target.

A draft is one layer of a llama, whose attention reads the embedding of a token beside a projection
of the target's states. It is not a model of its own, so it is not in `FAMILIES`. Names and keys:
vLLM's `llama_eagle3.py`; llama.cpp's `models/eagle3.cpp` and `conversion/llama.py`, which reads the
forms of SafeAILab and of speculators.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.families.config_keys import Key, Present, RowCount, same, with_keys
from weightctl.families.config_values import FLAG, LAYERS, SIZE, Exactly, show_value
from weightctl.families.decoder import DecoderConfig
from weightctl.families.decoder_keys import (
    DECODER_KEYS,
    NO_BIASES,
    NO_MLP_BIASES,
    SILU,
    check_decoder,
)
from weightctl.families.family import Family, ModelType
from weightctl.families.groups import MADE
from weightctl.families.layers import no_windows
from weightctl.families.model import DRAFT_LAYER
from weightctl.families.modules import Name, WeightAxes
from weightctl.families.rope import ROPE_FACTORS, standard
from weightctl.families.steps import TOKEN_OFFSETS, rope_rows
from weightctl.families.usual_names import line
from weightctl.system.registry import load
from weightctl.text.untyped import is_object, is_sequence, object_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.config_keys import NamingConvention

# How many layers of the target a draft reads in llama.cpp.
_READ = 3
_CLASS, _LAYER = "LlamaForCausalLMEagle3", "midlayer."
_TARGET_LAYERS, _TARGET_HIDDEN = "eagle_aux_hidden_state_layer_ids", "target_hidden_size"


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftConfig(DecoderConfig):
    """The sizes of a draft model.

    - `draft_vocabulary`: the number of tokens that it can predict.
    - `target_layers`: the layers of the target whose inputs it reads, None if they are not known.
    - `target_hidden`: the hidden size of the target.
    - `norm_before_residual`: whether the layer adds to the normed states, not to those before.
    - `norm_before_fc`: whether the states of the target are normed together.
    - `has_embedding`, `has_output`: whether it has its own, and not those of the target.
    - `has_offsets`: whether it has a list of the tokens that it can predict.
    """

    draft_vocabulary: int
    target_layers: tuple[int, ...] | None
    target_hidden: int
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    has_embedding: bool = True
    has_output: bool = True
    has_offsets: bool = False

    @property
    def target_states(self) -> int:
        """The number of values that it reads of the target for a token."""
        return _READ * self.target_hidden

    @property
    def has_draft_tokens(self) -> bool:
        return self.has_offsets or self.draft_vocabulary != self.vocabulary


class _TargetLayers(NamedTuple):
    """The numbers of three layers of the target, in the order in which their states are joined."""

    def read(self, content: object) -> tuple[int, ...]:
        if is_sequence(content) and len(content) == _READ:
            return tuple(LAYERS._replace(least=0).read(each) for each in content)
        raise ValueError(f"is {show_value(content)}; llama.cpp requires {_READ} layers")

    @property
    def gguf_type(self) -> str:
        return "array[i32]"

    def write(self, value: Any) -> list[int]:
        if value is None:
            raise ValueError("follows from the target: name it with --base DIR (base in Python)")
        return list(value)


def standard_draft(
    document: Mapping[str, Any], target: Mapping[str, Any] | None
) -> Mapping[str, Any]:
    """Return config.json in the form of SafeAILab's drafts, with what it leaves to the target's.

    That of speculators has an object with the keys of a llama, and some have settings in
    `eagle_config`. `target` is the config.json of the target, None if it is not known. Raises
    `ValueError` if that has no number of layers.
    """
    found = {**object_of(document, DRAFT_LAYER), **object_of(document, "eagle_config"), **document}
    found |= {"model_type": "llama", "architectures": [_CLASS]}
    if not found.get(_TARGET_LAYERS):
        found.pop(_TARGET_LAYERS, None)
    if target is not None:
        text = target.get("text_config")
        text = text if is_object(text) else target
        if _TARGET_LAYERS not in found:
            count = LAYERS.read(text.get("num_hidden_layers"))
            found[_TARGET_LAYERS] = [2, count // 2, count - 3]
        if found.get(_TARGET_HIDDEN) is None:
            found[_TARGET_HIDDEN] = text.get("hidden_size")
    return found


def _flag(field: str, plain: str, gguf: str) -> Key:
    """Return the key of a part that the draft may leave to the target, as its tensors show."""
    return Key(field=field, kind=FLAG, default=True, seen=Present(gguf, plain=plain))


def _require(name: str, value: bool, why: str) -> Key:
    return Key(field=name, kind=Exactly(value, why), default=value, hugging_face=name)


_MAKE, _FIND = MADE["rope_factors"]
_BARE: dict[NamingConvention, str] = {"gguf": "", "hugging_face": ""}
_BOTH = ("hidden", "hidden")
_DRAFTED = WeightAxes(("draft_vocabulary",), ("hidden",))


def _attention(part: str, **changes: Any) -> Name:
    usual = line(f"attention.{part}")
    axes = WeightAxes(usual.axes.outputs, _BOTH)
    return line(f"attention.{part}", hugging_face=f"{_LAYER}self_attn.{part}_proj", axes=axes,
                **changes)  # fmt: skip


_NAMES = (
    line("embedding", hugging_face="embed_tokens", when=("has_embedding",)),
    line("rope_factors", made=load(_MAKE), add_fields=load(_FIND)),
    Name(module="target_norm", gguf="enc.output_norm", hugging_face="input_norm",
         axes=WeightAxes(("target_states",)), when=("norm_before_fc",), is_float32=True),
    Name(module="target_projection", gguf="fc", hugging_face="fc",
         axes=WeightAxes(("hidden",), ("target_states",))),
    line("attention_norm", hugging_face=f"{_LAYER}input_layernorm"),
    line("attention_norm", module="layers.{}.states_norm", gguf="blk.{}.attn_norm_2",
         hugging_face=f"{_LAYER}hidden_norm"),
    _attention("q", change=rope_rows("heads")),
    _attention("k", change=rope_rows("kv_heads")),
    _attention("v"),
    line("attention.o", hugging_face=f"{_LAYER}self_attn.o_proj"),
    line("mlp_norm", hugging_face=f"{_LAYER}post_attention_layernorm"),
    *(line(f"mlp.{part}", hugging_face=f"{_LAYER}mlp.{part}_proj")
      for part in ("gate", "up", "down")),
    line("norm", hugging_face="norm"),
    line("output", axes=_DRAFTED, when=("has_output",), unless=None),
    Name(module="draft_tokens", gguf="d2t", hugging_face="d2t", ends=_BARE,
         axes=WeightAxes(("draft_vocabulary",)), when=("has_draft_tokens",), change=TOKEN_OFFSETS),
)  # fmt: skip

_KEYS = with_keys(
    DECODER_KEYS,
    ROPE_FACTORS,
    NO_BIASES,
    NO_MLP_BIASES,
    SILU,
    no_windows("EAGLE-3"),
    Key(field="layers", kind=Exactly(1, "llama.cpp supports one layer"), default=1,
        gguf="{arch}.block_count", hugging_face="num_hidden_layers", written=True),
    Key(field="tied", kind=FLAG, default=False, gguf_default=False),
    Key(field="draft_vocabulary", kind=SIZE, default=same("vocabulary"),
        gguf_default=same("vocabulary"), hugging_face="draft_vocab_size", written=True,
        seen=RowCount("d2t")),
    Key(field="target_layers", kind=_TargetLayers(), default=None, gguf="{arch}.target_layers",
        hugging_face=_TARGET_LAYERS, written=True),
    Key(field="target_hidden", kind=SIZE, default=same("hidden"),
        gguf="{arch}.target_hidden_size", hugging_face=_TARGET_HIDDEN, written=True),
    Key(field="norm_before_residual", kind=FLAG, default=False, gguf_default=False,
        gguf="{arch}.norm_before_residual", hugging_face="norm_before_residual", written=True),
    Key(field="norm_before_fc", kind=FLAG, default=False, gguf_default=False,
        gguf="{arch}.norm_before_fc", hugging_face="norm_before_fc", written=True),
    _flag("has_embedding", "embed_tokens.weight", "token_embd.weight"),
    _flag("has_output", "lm_head.weight", "output.weight"),
    Key(field="has_offsets", kind=FLAG, default=False, seen=Present("d2t", plain="d2t")),
    _require("use_aux_hidden_state", True, "drafts that read one layer are not supported"),
    _require("fc_norm", False, "llama.cpp has no norm for each layer of the target"),
    _require("norm_output", False, "llama.cpp passes states on before the last norm"),
)  # fmt: skip

FAMILY = Family(
    name="eagle3",
    model_types={"llama": ModelType(class_name=_CLASS)},
    config="weightctl.families.eagle3:DraftConfig",
    module="",
    prefix=_LAYER,
    other_prefixes=("model.layers.0.", "layers.0.", "model.midlayer.", "model."),
    # The tokens of the target that the draft can predict, which follow from `d2t`, and copies of
    # parts of the target.
    beside=("t2d", r"verifier_.+"),
    names=_NAMES,
    keys=_KEYS,
    standard=standard,
    checked=check_decoder,
)
