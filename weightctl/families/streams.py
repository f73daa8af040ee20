"""AltUp and Laurel, which Gemma 3n has beside the usual parts: config, lines and keys.

AltUp: the layers pass on several streams of vectors. Before a layer, all streams are predicted from
each other; the layer computes one of them, and its result corrects the others. Laurel: beside
attention there is a residual of low rank.

Names and keys: transformers' `modeling_gemma3n.py`; llama.cpp's `models/gemma3n.cpp` and
`conversion/gemma.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.families.config_keys import Key, RowCount
from weightctl.families.config_values import SIZE, Exactly, Real, WholeNumber, show_value
from weightctl.families.layers import Layered
from weightctl.families.modules import Name, WeightAxes
from weightctl.families.per_layer import MODEL_INPUT_LINES, PerLayerConfig
from weightctl.families.steps import padded_table
from weightctl.text.untyped import is_sequence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.families.config_keys import Fields
    from weightctl.families.rank_ranges import Extent

_SPARSE_LAYERS, _SPARSITY, _DIGITS = 10, 0.95, 6
_MOST_LAYERS, _MOST_STREAMS = 1 << 16, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsConfig(PerLayerConfig):
    """The sizes of a decoder whose layers pass on several streams of vectors.

    - `streams`: the number of streams.
    - `active_stream`: the stream that the layers compute.
    - `laurel_rank`: the rank of the residual beside attention.
    - `sparsity`: the share of each layer's gates that are 0, if they are as a normal distribution.
    """

    streams: int = 4
    active_stream: int = 0
    laurel_rank: int = 64
    sparsity: tuple[float, ...] = ()

    @property
    def layer_rows(self) -> int:
        """The number of rows of the table of embeddings for layers: all tokens."""
        return self.vocabulary

    @property
    def added_streams(self) -> int:
        """The number of streams that are computed from the first one before the layers."""
        return self.streams - 1

    @property
    def prediction_coefficients(self) -> int:
        """The number of coefficients by which streams are predicted from each other."""
        return self.streams**2


def _line(
    module: str, gguf: str, name: str, outputs: Extent, inputs: Extent = "", **more: Any
) -> Name:
    given: dict[str, Any] = {"is_float32": not inputs, **more}
    return Name(
        module=module,
        gguf=gguf,
        hugging_face=name,
        axes=WeightAxes((outputs,), (inputs,) if inputs else ()),
        **given,
    )


def _layer_line(module: str, gguf: str, name: str, *axes: Extent, **more: Any) -> Name:
    return _line(
        f"layers.{{}}.{module}", f"blk.{{}}.{gguf}", f"model.layers.{{}}.{name}", *axes, **more
    )


_TABLE, *_COMPUTED = MODEL_INPUT_LINES
# Every rank has the whole projections between the streams.
STREAM_MODEL_LINES = (
    _line("stream_inputs.{expert}.projection", "altup_proj", "model.altup_projections.{expert}",
          "hidden", "hidden", count="added_streams"),
    replace(_TABLE, axes=WeightAxes(("vocabulary",), ("layer_inputs",)),
            change=padded_table("layer_vocabulary")),
    *_COMPUTED,
)  # fmt: skip

# What follows the layers is in the last pipeline stage.
STREAM_OUTPUT_LINES = (
    _line("stream_outputs.{expert}.projection", "altup_unembd_proj",
          "model.altup_unembed_projections.{expert}", "hidden", "hidden", count="added_streams"),
)  # fmt: skip

STREAM_LAYER_LINES = (
    _layer_line("altup.norm", "altup_router_norm", "altup.router_norm", "hidden"),
    _layer_line("altup.router", "altup_router", "altup.modality_router", "streams", "hidden"),
    _layer_line("altup.prediction", "altup_predict_coef", "altup.prediction_coefs",
                "prediction_coefficients", "streams", is_float32=True),
    _layer_line("altup.correction", "altup_correct_coef", "altup.correction_coefs", "streams",
                "streams", is_float32=True),
    _layer_line("corrected_scale", "altup_correct_scale", "altup.correct_output_scale", "hidden",
                ends={"hugging_face": ""}),
    _layer_line("laurel.left", "laurel_l", "laurel.linear_left", "laurel_rank", "hidden"),
    _layer_line("laurel.right", "laurel_r", "laurel.linear_right", "hidden", "laurel_rank"),
    _layer_line("laurel.norm", "laurel_post_norm", "laurel.post_laurel_norm", "hidden"),
)  # fmt: skip


class _SparsityScales(NamedTuple):
    """For each layer the number of standard deviations above the mean below which gates are 0.

    They mean the shares of a normal distribution below them; minus infinity means 0.
    """

    def read(self, content: object) -> tuple[float, ...]:
        """Return the share of each layer, rounded to 6 digits."""
        if not is_sequence(content) or not 0 < len(content) <= _MOST_LAYERS:
            raise ValueError(f"is {show_value(content)}; it must have a value for each layer")
        return tuple(_read_share(each) for each in content)

    @property
    def gguf_type(self) -> str:
        """The type of an array of numbers."""
        return "array[f32]"

    def write(self, value: Sequence[float]) -> list[float]:
        """Return the numbers of standard deviations."""
        return [NormalDist().inv_cdf(share) if share else float("-inf") for share in value]


def _read_share(content: object) -> float:
    share = NormalDist().cdf(content) if isinstance(content, int | float) else float("nan")
    share = round(share, _DIGITS)
    if not 0 <= share < 1:
        raise ValueError(
            f"has {show_value(content)}; each layer must have a number of standard deviations"
        )
    return share


def find_usual_sparsity(fields: Fields) -> tuple[float, ...]:
    """Return what llama.cpp computes with: 0.95 in the first 10 layers, and 0 in the others."""
    return tuple(_SPARSITY if layer < _SPARSE_LAYERS else 0.0 for layer in range(fields["layers"]))


def _find_default_sparsity(fields: Fields) -> tuple[float, ...]:
    """Return transformers' default: models with at most 10 layers have no sparse ones."""
    usual = find_usual_sparsity(fields)
    return usual if fields["layers"] > _SPARSE_LAYERS else (0.0,) * len(usual)


STREAM_KEYS = (
    Key(field="streams", kind=WholeNumber(2, _MOST_STREAMS), default=4, gguf_default=4,
        gguf="{arch}.altup.num_inputs", hugging_face="altup_num_inputs"),
    Key(field="active_stream", kind=WholeNumber(0, _MOST_STREAMS - 1), default=0, gguf_default=0,
        gguf="{arch}.altup.active_idx", hugging_face="altup_active_idx"),
    Key(field="scales_corrected", default=True, gguf_default=True,
        kind=Exactly(True, "AltUp without the scale of the corrected stream is not supported"),
        hugging_face="altup_correct_scale"),
    Key(field="laurel_rank", kind=SIZE, default=64, gguf_default=64,
        seen=RowCount("blk.0.laurel_l.weight"), hugging_face="laurel_rank"),
    Key(field="sparsity", kind=Layered(Real(0, 1 - 10.0**-_DIGITS, is_closed=True)),
        default=_find_default_sparsity, hugging_face="activation_sparsity_pattern"),
    Key(field="sparsity", kind=_SparsityScales(), gguf_default=find_usual_sparsity,
        gguf="{arch}.activation_sparsity_scale"),
)  # fmt: skip
