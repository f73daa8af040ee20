"""Hyper-connections, and attention to compressed keys, of DeepSeek-V4: config and lines.

Names: transformers' `modeling_deepseek_v4.py` and `conversion_mapping.py`, whose names of saved
tensors are those of the published checkpoints; llama.cpp's `models/deepseek4.cpp` and
`conversion/deepseek.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weightctl.families.decoder import DecoderConfig
from weightctl.families.fusions import Fusion
from weightctl.families.modules import Name, WeightAxes
from weightctl.families.steps import INT32
from weightctl.families.usual_names import line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.config_keys import NamingConvention
    from weightctl.families.rank_ranges import Extent

# How many tokens become one compressed key: in layers whose keys also contain the tokens before,
# and that select keys, and in layers that see all of them.
OVERLAPPING, HEAVY = 4, 128


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedConfig(DecoderConfig):
    """The sizes of a decoder with hyper-connections and attention to compressed keys.

    - `compress_ratios`: for each layer, how many tokens become one compressed key; 0 for layers
      that only have a sliding window.
    - `compress_rope_base`: the base of RoPE in layers with compressed keys, which `rope_scaling`
      belongs to; `rope_base` is that of the others.
    - `output_groups`, `output_rank`: the groups of heads whose outputs are projected separately,
      and the size of the result of each.
    - `hash_count`: the number of first layers in which a table gives the experts of each token.
    - `streams`: the number of streams of vectors that the layers pass on.
    - `sinkhorn_steps`, `stream_epsilon`: how often the weights between streams are normalized, and
      what is added to them and to their sums.
    - `expert_limit`: the bound of what the activation of experts reads.
    """

    compress_ratios: tuple[int, ...] = ()
    compress_rope_base: float = 160000.0
    output_groups: int = 1
    output_rank: int = 1
    hash_count: int = 0
    streams: int = 4
    sinkhorn_steps: int = 20
    stream_epsilon: float = 1e-6
    expert_limit: float = 10.0

    @property
    def compressed_layers(self) -> tuple[bool, ...]:
        return tuple(ratio > 0 for ratio in self.compress_ratios)

    @property
    def selecting_layers(self) -> tuple[bool, ...]:
        return tuple(ratio == OVERLAPPING for ratio in self.compress_ratios)

    @property
    def hashed_layers(self) -> tuple[bool, ...]:
        """The layers in which a table gives the experts of each token."""
        return tuple(layer < self.hash_count for layer in range(self.layers))

    @property
    def table_rows(self) -> int:
        """The number of rows of such a table, which every rank has: all tokens."""
        return self.vocabulary

    @property
    def compressed_width(self) -> tuple[int, ...]:
        """The size of what a compressor makes of a token: two keys if they overlap."""
        return tuple(self._count_series(layer) * self.one_head for layer in range(self.layers))

    @property
    def indexer_width(self) -> int:
        """The same for the compressor of an indexer."""
        return 2 * self.indexer_size

    @property
    def one_head(self) -> int:
        """The size of a head, which all layers have."""
        return self.head_dim if isinstance(self.head_dim, int) else self.head_dim[0]

    @property
    def group_width(self) -> int:
        """The size of the outputs of a group of heads."""
        return self.heads * self.one_head // self.output_groups

    @property
    def group_outputs(self) -> int:
        """The size of the projected outputs of all groups."""
        return self.output_groups * self.output_rank

    @property
    def all_streams(self) -> int:
        """The size of all streams together."""
        return self.streams * self.hidden

    @property
    def stream_weights(self) -> int:
        """The number of weights before, after and between streams."""
        return (2 + self.streams) * self.streams

    @property
    def stream_scales(self) -> int:
        """The number of factors of these: one for each of the three kinds."""
        return 3

    def _count_series(self, layer: int) -> int:
        return 2 if self.compress_ratios[layer] == OVERLAPPING else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class IndependentStreamsConfig(DecoderConfig):
    """The sizes of a decoder whose layers add to several streams of vectors.

    - `streams`: the number of streams of vectors that the layers pass on.
    - `stream_epsilon`, `stream_magnitude`: what is added to the weights of streams, and the factor
      of those by which the outputs of a layer are added.
    """

    streams: int = 4
    stream_epsilon: float = 1e-6
    stream_magnitude: float = 2.0

    @property
    def all_streams(self) -> int:
        """The size of all streams together."""
        return self.streams * self.hidden

    @property
    def stream_weights(self) -> int:
        """The number of weights before and after a part of a layer."""
        return 2 * self.streams

    @property
    def stream_scales(self) -> int:
        """The number of factors of these: one for each of the two kinds."""
        return 2


_COMPRESSED, _SELECTING = ("compressed_layers",), ("selecting_layers",)


def _line(module: str, gguf: str, name: str, *axes: Extent, **more: Any) -> Name:
    outputs, *inputs = axes
    given: dict[str, Any] = {"is_float32": not inputs, **more}
    return Name(
        module=f"layers.{{}}.{module}", gguf=f"blk.{{}}.{gguf}",
        hugging_face=f"layers.{{}}.{name}", axes=WeightAxes((outputs,), tuple(inputs)),
        **given,
    )  # fmt: skip


_BARE: Mapping[NamingConvention, str] = {"hugging_face": ""}


def _compressor(module: str, gguf: str, name: str, *, width: str, size: str) -> list[Name]:
    when = _COMPRESSED if size == "head" else _SELECTING
    return [
        _line(f"{module}.kv", f"{gguf}_kv", f"{name}.wkv", width, "hidden", when=when),
        _line(f"{module}.gate", f"{gguf}_gate", f"{name}.wgate", width, "hidden", when=when),
        _line(f"{module}.places", f"{gguf}_ape", f"{name}.ape", "compress_ratios", width,
              when=when, is_float32=True, ends=_BARE),
        _line(f"{module}.norm", f"{gguf}_norm", f"{name}.norm", size, when=when),
    ]  # fmt: skip


def _connection(part: str, short: str) -> list[Name]:
    name = f"hc_{short}"
    return [
        _line(f"{part}_streams.projection", f"{name}_fn", f"{name}_fn", "stream_weights",
              "all_streams", is_float32=True, ends=_BARE),
        _line(f"{part}_streams.offsets", f"{name}_base", f"{name}_base", "stream_weights",
              ends=_BARE),
        _line(f"{part}_streams.scales", f"{name}_scale", f"{name}_scale", "stream_scales",
              ends=_BARE),
    ]  # fmt: skip


# Every rank computes the whole attention: all heads share one key, and each rank needs it.
LAYER_LINES = (
    *_connection("attention", "attn"),
    _line("attention_norm", "attn_norm", "attn_norm", "hidden"),
    _line("attention.q_a", "attn_q_a", "attn.wq_a", "query_rank", "hidden"),
    _line("attention.q_a_norm", "attn_q_a_norm", "attn.q_norm", "query_rank"),
    _line("attention.q_b", "attn_q_b", "attn.wq_b", "all_queries", "query_rank"),
    _line("attention.kv", "attn_kv", "attn.wkv", "head", "hidden"),
    _line("attention.kv_norm", "attn_kv_a_norm", "attn.kv_norm", "head"),
    _line("attention.sinks", "attn_sinks", "attn.attn_sink", "heads", ends=_BARE),
    _line("attention.o_a", "attn_output_a", "attn.wo_a", "group_outputs", "group_width"),
    _line("attention.o_b", "attn_output_b", "attn.wo_b", "hidden", "group_outputs"),
    *_compressor("attention.compressor", "attn_compressor", "attn.compressor",
                 width="compressed_width", size="head"),
    _line("attention.indexer.q_b", "indexer.attn_q_b", "attn.indexer.wq_b", "indexer_queries",
          "query_rank", when=_SELECTING),
    _line("attention.indexer.factors", "indexer.proj", "attn.indexer.weights_proj",
          "indexer_heads", "hidden", when=_SELECTING),
    *_compressor("attention.indexer.compressor", "indexer_compressor", "attn.indexer.compressor",
                 width="indexer_width", size="indexer_size"),
    *_connection("mlp", "ffn"),
    _line("mlp_norm", "ffn_norm", "ffn_norm", "hidden"),
    _line("mlp.router", "ffn_gate_inp", "ffn.gate", "experts", "hidden", is_float32=True),
    _line("mlp.correction", "exp_probs_b", "ffn.gate.bias", "experts", unless="hashed_layers",
          ends={"gguf": ".bias", "hugging_face": ""}),
    _line("mlp.table", "ffn_gate_tid2eid", "ffn.gate.tid2eid", "table_rows", "experts_used",
          when=("hashed_layers",), change=INT32, ends=_BARE),
    *(line(f"mlp.{part}", hugging_face=f"layers.{{}}.ffn.{name}")
      for number, role in ((1, "gate"), (2, "down"), (3, "up"))
      for part, name in ((f"experts.{{expert}}.{role}", f"experts.{{expert}}.w{number}"),
                         (f"shared.{role}", f"shared_experts.w{number}"))),
)  # fmt: skip

OUTPUT_LINES = tuple(
    Name(module=f"stream_output.{part}", gguf=f"output_hc_{name}",
         hugging_face=f"hc_head_{name}", axes=WeightAxes((outputs,), inputs),
         is_float32=True, ends=_BARE)
    for part, name, outputs, inputs in (
        ("projection", "fn", "streams", ("all_streams",)),
        ("offsets", "base", "streams", ()),
        ("scales", "scale", "single", ()),
    )
)  # fmt: skip

# What transformers calls these parts when it saves them.
OTHER_FORMS = tuple(
    Fusion(convention="hugging_face", name=name, parts=(part,))
    for name, part in (
        ("embed_tokens.{kind}", "embedding"),
        ("layers.{}.attn.norm.{kind}", "layers.{}.attention.kv_norm"),
        ("hc_head.hc_fn", "stream_output.projection"),
        ("hc_head.hc_base", "stream_output.offsets"),
        ("hc_head.hc_scale", "stream_output.scales"),
    )
)
