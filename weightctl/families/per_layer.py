"""What the families of Gemma 3n and Gemma 4 have in common beside the usual parts of decoders.

Each layer reads an embedding of its own of every token, and the last layers use the keys and values
of earlier ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from weightctl.families.config_keys import Key, RowCount
from weightctl.families.config_values import LAYERS, SIZE, WholeNumber
from weightctl.families.decoder import DecoderConfig, LayerFlag
from weightctl.families.layers import ONES
from weightctl.families.modules import Name, WeightAxes, at_layer

if TYPE_CHECKING:
    from weightctl.families.config_keys import Config, Fields
    from weightctl.families.modules import TensorNames

_LAYER, _INPUT = "layers.{}.", ("layer_input",)
_OF_KEYS = ("attention.k", "attention.v", "attention.k_norm")


@dataclass(frozen=True, slots=True, kw_only=True)
class PerLayerConfig(DecoderConfig):
    """The sizes of a decoder whose layers read embeddings of their own, and share keys.

    - `layer_input`: the size of each layer's embedding of a token, or 0.
    - `layer_vocabulary`: the number of tokens that have such embeddings.
    - `own_keys`: the layers that compute keys and values. The others use those of the last layer
      before them that does, and that has a sliding window as they have, or has none as they.
    - `layer_scale`: whether the output of a layer is multiplied by a tensor of one number.
    """

    layer_input: int = 0
    layer_vocabulary: int = 0
    own_keys: LayerFlag = True
    layer_scale: bool = False

    @property
    def layer_inputs(self) -> int:
        """The size of the embeddings of a token for all layers together."""
        return self.layers * self.layer_input

    @property
    def layer_rows(self) -> int:
        """The number of rows of the table of embeddings for layers."""
        return self.layer_vocabulary

    def has_window(self, layer: int) -> bool:
        """Whether a layer has a sliding window."""
        return self.window(layer) is not None

    def keys_of(self, layer: int) -> int:
        """Return the layer whose keys and values a layer uses."""
        window = self.has_window(layer)
        if at_layer(self, "own_keys", layer):
            return layer
        return max(
            number
            for number in range(layer)
            if at_layer(self, "own_keys", number) and self.has_window(number) is window
        )


def layers_reading(config: Config, names: TensorNames) -> tuple[int, ...]:
    """Return the layers that compute with a tensor of a layer: more than one for shared keys.

    A layer without keys of its own computes them with the weights of another layer, from what the
    attention of that layer reads.
    """
    of_keys = names.line.module.removeprefix(_LAYER) in _OF_KEYS
    if not of_keys or not isinstance(config, PerLayerConfig):
        return (names.layer,)
    users = (layer for layer in range(config.layers) if config.keys_of(layer) == names.layer)
    # A copy that GGUF files have for a layer without keys of its own belongs to that layer.
    return tuple(users) or (names.layer,)


def _line(module: str, gguf: str, name: str, outputs: str, *inputs: str, **more: Any) -> Name:
    """Return a line; a part without `inputs` is a vector."""
    given: dict[str, Any] = {"is_float32": not inputs, **more}
    return Name(
        module=module,
        gguf=gguf,
        hugging_face=name,
        axes=WeightAxes((outputs,), inputs),
        **given,
    )


# The embeddings of tokens for all layers, and what is computed from the usual embedding and added
# to them.
MODEL_INPUT_LINES = (
    _line("layer_inputs.embedding", "per_layer_token_embd", "model.embed_tokens_per_layer",
          "layer_vocabulary", "layer_inputs", when=_INPUT),
    _line("layer_inputs.projection", "per_layer_model_proj", "model.per_layer_model_projection",
          "layer_inputs", "hidden", when=_INPUT),
    _line("layer_inputs.norm", "per_layer_proj_norm", "model.per_layer_projection_norm",
          "layer_input", when=_INPUT),
)  # fmt: skip

LAYER_INPUT_LINES = (
    _line("layers.{}.layer_input.gate", "blk.{}.inp_gate",
          "model.layers.{}.per_layer_input_gate", "layer_input", "hidden", when=_INPUT),
    _line("layers.{}.layer_input.projection", "blk.{}.proj",
          "model.layers.{}.per_layer_projection", "hidden", "layer_input", when=_INPUT),
    _line("layers.{}.layer_input.norm", "blk.{}.post_norm",
          "model.layers.{}.post_per_layer_input_norm", "hidden", when=_INPUT),
)  # fmt: skip


def share_keys(names: tuple[Name, ...]) -> tuple[Name, ...]:
    """Return lines whose keys and values are only in layers that compute them."""
    return tuple(
        replace(each, when=("own_keys", *each.when))
        if each.module.removeprefix(_LAYER) in _OF_KEYS
        else each
        for each in names
    )


def with_lines(
    names: tuple[Name, ...], of_model: tuple[Name, ...], of_layers: tuple[Name, ...]
) -> tuple[Name, ...]:
    """Return lines with further ones: those of the model before the layers, and of the layers."""
    place = next(number for number, each in enumerate(names) if each.is_of_layers)
    last = max(number for number, each in enumerate(names) if each.is_of_layers) + 1
    return (*names[:place], *of_model, *names[place:last], *of_layers, *names[last:])


def _mark_own_keys(fields: Fields) -> tuple[bool, ...]:
    first = fields["layers"] - fields["shared_layers"]
    return tuple(layer < first for layer in range(fields["layers"]))


SHARING_KEYS = (
    Key(field="shared_layers", kind=WholeNumber(0, LAYERS.most), default=0, gguf_default=0,
        gguf="{arch}.attention.shared_kv_layers", hugging_face="num_kv_shared_layers",
        written=True),
    Key(field="own_keys", kind=ONES, default=_mark_own_keys, gguf_default=_mark_own_keys),
)  # fmt: skip


def layer_input_keys(vocabulary: int) -> tuple[Key, ...]:
    """Return the keys of embeddings for each layer; `vocabulary` is transformers' default."""
    return (
        Key(field="layer_input", kind=WholeNumber(0, SIZE.most), default=256,
            gguf="{arch}.embedding_length_per_layer_input",
            hugging_face="hidden_size_per_layer_input"),
        Key(field="layer_vocabulary", kind=SIZE, default=vocabulary,
            gguf_default=lambda fields: fields["vocabulary"],
            seen=RowCount("per_layer_token_embd.weight"),
            hugging_face="vocab_size_per_layer_input"),
    )  # fmt: skip


def check_sharing(fields: Fields) -> None:
    """Raise `ValueError` if layers cannot use the keys and values of earlier ones."""
    count, layers = fields["shared_layers"], fields["layers"]
    windows = fields["windowed_layers"]
    if count >= layers:
        raise ValueError(
            f"{count} of {layers} layers share keys and values; at least one must compute them"
        )
    if not set(windows[layers - count :]) <= set(windows[: layers - count]):
        raise ValueError(
            "a layer would share keys and values, but no layer before it computes them for its "
            "type of attention"
        )


def explain_unshared(fields: Fields, first: int) -> str | None:
    """Return why llama.cpp would use keys and values of other layers than transformers, or None.

    `first` is the number of layers that compute keys and values in llama.cpp. The layers after them
    use those of the last of these layers, or with a window those of the one before it.
    """
    windows: Any = fields["windowed_layers"]
    for layer in range(first, fields["layers"]):
        used = first - (2 if windows[layer] else 1)
        if used < 0 or windows[used] != windows[layer] or (windows[layer] and windows[first - 1]):
            return (
                "the last two layers that compute keys and values must be one with a sliding "
                "window and one with full attention, in this order"
            )
    return None
