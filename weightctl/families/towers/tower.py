"""What a tower is: its tensors and keys, and what ties it to a text model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from weightctl.families.configs import shortest
from weightctl.families.family import Name, WeightAxes
from weightctl.families.keys import REQUIRED, Key
from weightctl.families.kinds import (
    EPSILON,
    FLAG,
    HEADS,
    LAYERS,
    SIZE,
    Choice,
    Exactly,
    Real,
    Reals,
)
from weightctl.text.untyped import is_object

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightctl.families.family import Extent, Family
    from weightctl.families.keys import Default, Fields
    from weightctl.families.steps import Change

# Where the document that the keys of a tower describe has the width of the text model, and the
# settings of the image processor, which are not in config.json.
TEXT_WIDTH, TEXT_EPSILON = "text.hidden_size", "text.norm_epsilon"
_PREPROCESSOR = "preprocessor"
_ROPE = "vision_config.rope_parameters"
_CHANNELS = 3
_MISSING = object()

Document: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionConfig:
    """The config of an image encoder and its projection.

    - `text_hidden`: the hidden size of the text model.
    - `positions`: the number of learned positions.
    - `merge`: the number of patches, along each side, that become one token.
    - `merged`: the number of values of these patches together.
    - `adapter_inner`, `adapter_outer`: the widths of the layers of the projection.
    - `has_projector_bias`, `has_merger`: whether the projection has biases, and a layer that merges
      patches.
    - `has_norm_bias`, `has_attention_bias`: whether the norms and the projections to queries, keys
      and values have biases; `has_query_norm` whether queries and keys are normed.
    - `has_limits`: whether the inputs and outputs of projections are clamped, and `has_standard`
      whether the vectors of tokens are shifted and scaled.
    - `has_deepstack`: for each layer, whether its output is also projected (deepstack).
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    text_hidden: int
    patch_size: int
    image_size: int = 0
    channels: int = _CHANNELS
    merge: int = 1
    positions: int = 0
    merged: int = 0
    adapter_inner: int = 0
    adapter_outer: int = 0
    has_projector_bias: bool = False
    has_merger: bool = False
    has_norm_bias: bool = True
    has_attention_bias: bool = False
    has_query_norm: bool = False
    has_limits: bool = False
    has_standard: bool = False
    has_deepstack: tuple[bool, ...] = ()

    @property
    def vocabulary(self) -> int:
        """0: a tower has no tokens."""
        return 0

    @property
    def context(self) -> int:
        """The number of positions."""
        return self.positions

    @property
    def head_dim(self) -> int:
        """The number of elements of a head."""
        return self.hidden // self.heads

    @property
    def directions(self) -> int:
        """2: the directions of an image, x and y."""
        return 2

    @property
    def single(self) -> int:
        """1: the size of a number that GGUF stores as a vector."""
        return 1

    @property
    def queries_keys_values(self) -> int:
        """The number of rows of queries, keys and values together."""
        return 3 * self.hidden

    @property
    def rope_dimensions(self) -> int:
        """The number of elements of a head that RoPE rotates: all."""
        return self.head_dim

    @property
    def patch(self) -> int:
        """The number of values of a patch."""
        return self.channels * self.patch_size * self.patch_size


class BreakToken(NamedTuple):
    """A token whose embedding GGUF has again in the file of the tower.

    `gguf` is the name of that tensor, and `token` the text of the token.
    """

    gguf: str
    token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    """An encoder beside a text model, and its projection to the vectors of tokens.

    - `family`: its tensors and keys. The keys describe config.json with two more objects: `text`
      with the hidden size of the text model, and `preprocessor` with the settings of the image
      processor (preprocessor_config.json or processor_config.json).
    - `texts`: the names of the families of text models that it can be beside, the usual one first.
    - `text_prefixes`: maps what Hugging Face's names of the text model begin with to what they
      begin with in a multimodal checkpoint.
    - `processor`: what GGUF does not state of preprocessor_config.json.
    - `mean`, `deviation`: those of the pixels, if no file states them; empty without images.
    - `types`: maps the family of the text model to the `model_type` of the whole model and that of
      the text model in it, if the family decides about them.
    - `tokens`: maps keys of config.json to the tokens whose ids they are.
    - `break_token`: a token whose embedding is also in the file of the tower.
    - `differs`: returns what llama.cpp computes differently from transformers, or an empty text.
    """

    family: Family
    texts: tuple[str, ...]
    text_prefixes: Mapping[str, str]
    processor: Callable[[Fields], Document]
    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()
    tokens: Mapping[str, str] = field(default_factory=dict[str, str])
    break_token: BreakToken | None = None
    types: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    differs: Callable[[Fields], str] = lambda _: ""


class _Shortest(NamedTuple):
    """A list of numbers, each as the shortest decimal with the same float32 value."""

    kind: Reals

    def read(self, content: object) -> tuple[float, ...]:
        """Return the numbers."""
        return tuple(map(shortest, self.kind.read(content)))

    @property
    def gguf_type(self) -> str:
        """The type of an array of numbers."""
        return self.kind.gguf_type

    def write(self, value: Any) -> list[float]:
        """Return the numbers."""
        return self.kind.write(value)


_BY_CHANNEL = _Shortest(Reals(Real(-1e6, 1e6), _CHANNELS))
_FEATURES = "weightctl only supports images with 3 channels"


def vision_keys(
    projector: str,
    *,
    epsilon: str = "layer_norm_eps",
    called: Mapping[str, str] = MappingProxyType({}),
    projector_key: str = "clip.projector_type",
    **defaults: Any,
) -> tuple[Key, ...]:
    """Return the keys of an image encoder; `defaults` are those of transformers, by field.

    A size without a default has no key here. `epsilon` is the name of the epsilon of norms in
    config.json, empty if it does not state it. `called` maps fields to names in config.json that
    are not the usual ones. `projector_key` is the key of the name of the projection in GGUF.
    """

    def size(name: str, gguf: str, hugging_face: str, kind: Any = SIZE) -> tuple[Key, ...]:
        own = called.get(name, hugging_face)
        made = Key(
            field=name,
            kind=kind,
            gguf=f"clip.vision.{gguf}",
            hugging_face=f"vision_config.{own}" if own else "",
            default=defaults.get(name, REQUIRED),
        )
        return (made,) if name in defaults else ()

    channels = called.get("channels", "num_channels")
    return (
        Key(field="has_vision", gguf="clip.has_vision_encoder", gguf_default=True, written=True,
            kind=Exactly(True, "the file has no image encoder")),
        Key(field="projector", gguf=projector_key, gguf_default=projector, written=True,
            kind=Exactly(projector, f"this is not a projection of {projector}")),
        Key(field="text_hidden", kind=SIZE, gguf="clip.vision.projection_dim",
            hugging_face=TEXT_WIDTH),
        *size("hidden", "embedding_length", "hidden_size"),
        *size("intermediate", "feed_forward_length", "intermediate_size"),
        *size("layers", "block_count", "num_hidden_layers", LAYERS),
        *size("heads", "attention.head_count", "num_attention_heads", HEADS),
        *size("image_size", "image_size", "image_size"),
        *size("patch_size", "patch_size", "patch_size"),
        *size("norm_epsilon", "attention.layer_norm_epsilon", epsilon, EPSILON),
        Key(field="channels", default=_CHANNELS, gguf_default=_CHANNELS,
            hugging_face=channels and f"vision_config.{channels}",
            kind=Exactly(_CHANNELS, _FEATURES)),
        Key(field="image_mean", kind=_BY_CHANNEL, gguf="clip.vision.image_mean",
            hugging_face=f"{_PREPROCESSOR}.image_mean"),
        Key(field="image_std", kind=_BY_CHANNEL, gguf="clip.vision.image_std",
            hugging_face=f"{_PREPROCESSOR}.image_std"),
    )  # fmt: skip


def activation_keys(
    words: Mapping[str, str], default: Default, called: str = "hidden_act"
) -> tuple[Key, ...]:
    """Return the keys of the activation: a word in config.json, and two flags in GGUF.

    `words` maps the words to `gelu`, `silu`, or `gelu_quick` for which both flags are false. For
    each of these, the first word is written. `called` is the name in config.json.
    """

    # A flag is only written if it is true: llama.cpp refuses a file with both.
    def flag(name: str) -> Key:
        return Key(
            field=name,
            kind=FLAG,
            gguf=f"clip.use_{name}",
            gguf_default=lambda fields: True if fields.get("activation") == name else None,
        )

    def from_flags(fields: Fields) -> str:
        found = [name for name in ("gelu", "silu") if fields[name]] or ["gelu_quick"]
        if len(found) != 1 or found[0] not in words.values():
            stated = " and ".join(f"`clip.use_{name}`" for name in found if fields.get(name))
            stated = stated or "neither flag"
            raise ValueError(f"is not supported: {stated} of the activation is set")
        return found[0]

    return (
        flag("gelu"),
        flag("silu"),
        Key(field="activation", kind=Choice(words), default=default, gguf_default=from_flags,
            hugging_face=f"vision_config.{called}", written=True),
    )  # fmt: skip


def rope_key(base: float) -> Key:
    """Return the key of the base of RoPE, for which llama.cpp has one value in its code."""
    reason = f"llama.cpp assumes {base:g}"
    return Key(
        field="rope_base",
        kind=Exactly(base, reason),
        default=base,
        gguf_default=base,
        hugging_face=f"{_ROPE}.rope_theta",
        written=False,
    )


def with_rope(document: Document) -> Document:
    """Return a document with the base of RoPE where transformers 5 states it, as a float."""
    vision = document.get("vision_config")
    if not is_object(vision):
        return document
    stated = vision.get("rope_parameters")
    base = (stated if is_object(stated) else vision).get("rope_theta", _MISSING)
    if type(base) is int:
        base = float(base)
    rope = {} if base is _MISSING else {"rope_theta": base}
    return {**document, "vision_config": {**vision, "rope_parameters": rope}}


def part(
    module: str,
    gguf: str,
    name: str | None,
    outputs: Extent = "hidden",
    inputs: Extent | None = None,
    **more: Any,
) -> Name:
    """Return a line of a tower outside of its layers; without `inputs`, it is a vector."""
    axes = WeightAxes(
        (outputs,), () if inputs is None else (inputs,), kernel=more.pop("kernel", ())
    )
    return Name(module=module, gguf=gguf, hugging_face=name, axes=axes, **more)


def block(
    prefix: str,
    lines: Mapping[str, str | None],
    *,
    bias: bool,
    changes: Mapping[str, Change] = MappingProxyType({}),
    gguf: str = "v.blk.",
) -> tuple[Name, ...]:
    """Return the lines of the layers of an encoder.

    `lines` maps the names in GGUF to those in Hugging Face's convention, which follow `prefix`, or
    to None for the parts of a fused tensor.
    `bias` states whether the lines have biases, and `changes` are those of lines by their modules.
    GGUF's names begin with `gguf`.
    """
    shapes: dict[str, tuple[Extent, Extent | None]] = {
        "ln1": ("hidden", None),
        "ln2": ("hidden", None),
        "attn_qkv": ("queries_keys_values", "hidden"),
        "ffn_up": ("inner", "hidden"),
        "ffn_gate": ("inner", "hidden"),
        "ffn_down": ("hidden", "inner"),
    }
    return tuple(
        part(
            f"layers.{{}}.{own}",
            f"{gguf}{{}}.{own}",
            name and f"{prefix}{{}}.{name}",
            *shapes.get(own, ("hidden", "hidden")),
            bias=bias,
            change=changes.get(f"layers.{{}}.{own}"),
        )
        for own, name in lines.items()
    )


def count_patches(fields: Fields) -> int:
    """Return the number of patches of an image; raises `ValueError` if they do not fill it."""
    side, rest = divmod(fields["image_size"], fields["patch_size"])
    if rest or not side:
        raise ValueError(
            f"the image size {fields['image_size']} is not a multiple of the patch size "
            f"{fields['patch_size']}"
        )
    return int(side * side)
