"""What a tower is: its tensors and keys, and what ties it to a text model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightctl.families.config_keys import Fields
    from weightctl.families.family import Family

Document: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerConfig:
    """What the configs of all towers have.

    - `text_hidden`: the hidden size of the text model.
    - `positions`: the number of learned positions.
    - `has_projector_bias`: whether the projection has biases.
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    text_hidden: int
    positions: int = 0
    has_projector_bias: bool = False

    @property
    def vocabulary(self) -> int:
        """0: a tower has no tokens."""
        return 0

    @property
    def context(self) -> int:
        return self.positions

    @property
    def head_dim(self) -> int:
        """The number of elements of a head."""
        return self.hidden // self.heads


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionConfig(TowerConfig):
    """The config of an image encoder and its projection.

    - `merge`: the number of patches, along each side, that become one token.
    - `merged`: the number of values of these patches together.
    - `adapter_inner`, `adapter_outer`: the widths of the layers of the projection.
    - `has_merger`: whether the projection has a layer that merges patches.
    - `has_norm_bias`, `has_attention_bias`: whether the norms and the projections to queries, keys
      and values have biases; `has_query_norm` whether queries and keys are normed.
    - `has_limits`: whether the inputs and outputs of projections are clamped, and `has_standard`
      whether the vectors of tokens are shifted and scaled.
    - `has_deepstack`: for each layer, whether its output is also projected (deepstack).
    """

    patch_size: int
    image_size: int = 0
    channels: int = 3
    merge: int = 1
    merged: int = 0
    adapter_inner: int = 0
    adapter_outer: int = 0
    has_merger: bool = False
    has_norm_bias: bool = True
    has_attention_bias: bool = False
    has_query_norm: bool = False
    has_limits: bool = False
    has_standard: bool = False
    has_deepstack: tuple[bool, ...] = ()

    @property
    def directions(self) -> int:
        """2: the directions of an image, x and y."""
        return 2

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


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioConfig(TowerConfig):
    """The config of an audio encoder and its projection.

    - `bins`: the number of bands of the mel spectrogram.
    - `projected`: the number of values that the projection takes.
    """

    bins: int
    projected: int = 0

    @property
    def kernel_size(self) -> int:
        """The number of spectra that a value of a convolution depends on."""
        return 3


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
