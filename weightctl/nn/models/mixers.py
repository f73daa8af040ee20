"""The parts of a layer that combine positions, which the config selects: attention and others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.families.modules import at_layer
from weightctl.nn.attention import Attention
from weightctl.nn.indexer import BlockIndexer, BlockIndexerSizes, IndexerSizes
from weightctl.nn.latent_attention import LatentAttention
from weightctl.nn.positions import Temperature
from weightctl.nn.recurrent.convolution import ShortConvolution
from weightctl.nn.recurrent.delta_net import GatedDeltaNet, KimiDeltaAttention
from weightctl.nn.recurrent.linear_unit import RealGatedRecurrence
from weightctl.nn.recurrent.paired_mamba import PairedMamba
from weightctl.nn.recurrent.state_space import Mamba, Mamba2, SegmentScales

if TYPE_CHECKING:
    from weightctl.dtype import DType
    from weightctl.families.decoder import DecoderConfig


def make_attention(config: DecoderConfig, layer: int, dtype: DType) -> Attention | LatentAttention:
    """Return the attention of a layer."""
    scale = config.attention_scale
    if config.query_scalar is not None:
        scale = config.query_scalar**-0.5
    if config.attention_scales[1] != 1:
        size: int = at_layer(config, "head_dim", layer)
        scale = (scale or size**-0.5) * config.attention_scales[1]
    is_rotated = config.is_rotated(layer)
    temperature = None
    if config.temperature_scale and not (config.temperature_without_rope and is_rotated):
        temperature = Temperature(
            config.temperature_scale, config.temperature_length, config.temperature_offset
        )
    is_normed = config.qk_norm is not None and (config.qk_norm != "unit" or is_rotated)
    if config.latent_rank:
        return LatentAttention(
            config.hidden,
            config.heads,
            latent_rank=config.latent_rank,
            plain=config.plain_dimensions,
            rotated=config.rope_dimensions,
            value=config.value_dimensions,
            query_rank=config.query_rank,
            scale=scale,
            causal=config.causal,
            interleaved=config.rope_interleaved,
            temperature=temperature,
            gated=config.attention_gate,
            gates_heads=config.gate_by_head,
            sinks=config.has_sinks(layer),
            indexer=_size_indexer(config),
            shares_indexer=not at_layer(config, "indexer_layers", layer),
            dtype=dtype,
        )
    return Attention(
        config.hidden,
        config.count_heads(layer),
        kv_heads=config.count_kv_heads(layer),
        head_dim=at_layer(config, "head_dim", layer),
        value_dim=config.value_dimensions or None,
        value_scale=config.value_scale,
        values_normed=config.values_normed,
        values_from_keys=at_layer(config, "values_from_keys", layer),
        bias=config.attention_bias,
        output_bias=config.attention_output_bias,
        causal=config.causal,
        window=config.window(layer),
        chunk=config.chunk(layer),
        inner_norm=config.norm_epsilon if config.inner_norms else None,
        softcap=config.attention_softcap,
        scale=scale,
        norm_epsilon=config.norm_epsilon if is_normed else None,
        norm_offset=config.norm_offset,
        norms_whole=config.qk_norm == "whole",
        norms_last=config.qk_norm_after_rope or config.qk_norm == "unit",
        norms_weighted=config.qk_norm != "unit",
        norms_apart=config.qk_norm in {"apart", "apart_rms"},
        norms_centered=config.qk_norm == "apart",
        clamp=config.query_clamp,
        alibi=config.alibi_bias if config.position == "alibi" else None,
        sinks=config.has_sinks(layer),
        temperature=temperature,
        gated=config.attention_gate,
        gates_heads=config.gate_by_head,
        gate_activation="softplus" if config.gate_softplus else "sigmoid",
        fused=config.fused_qkv,
        transposed=config.transposed,
        interleaved=config.rope_interleaved,
        indexer=_make_block_indexer(config, layer, dtype),
        dtype=dtype,
    )


def _make_block_indexer(config: DecoderConfig, layer: int, dtype: DType) -> BlockIndexer | None:
    if not config.indexer_block or not at_layer(config, "indexer_layers", layer):
        return None
    sizes = BlockIndexerSizes(
        config.indexer_heads,
        config.indexer_size,
        config.indexer_block,
        config.indexer_used,
        config.indexer_local,
    )
    return BlockIndexer(
        config.hidden, sizes, config.norm_epsilon, offset=config.norm_offset, dtype=dtype
    )


def _size_indexer(config: DecoderConfig) -> IndexerSizes | None:
    if not config.indexer_heads:
        return None
    return IndexerSizes(
        config.indexer_heads,
        config.indexer_size,
        config.rope_dimensions,
        config.indexer_used,
        config.indexer_interleaved,
        config.indexer_rotates_last,
        config.indexer_epsilon,
    )


def make_state_space(config: DecoderConfig, dtype: DType) -> Mamba | Mamba2 | PairedMamba:
    """Return the state space model of a layer."""
    if config.ssm_version == 1:
        return Mamba(
            config.hidden,
            config.ssm_inner,
            states=config.ssm_state,
            rank=config.ssm_rank,
            kernel=config.ssm_length,
            bias=config.ssm_bias,
            kernel_bias=config.ssm_kernel_bias,
            norm_epsilon=config.ssm_inner_epsilon if config.ssm_inner_norms else None,
            norms_weighted=config.ssm_inner_norms == "weighted",
            dtype=dtype,
        )
    if config.ssm_version == "plamo2":
        return PairedMamba(
            config.hidden,
            config.ssm_heads,
            config.ssm_inner // config.ssm_heads,
            states=config.ssm_state,
            rank=config.ssm_rank,
            kernel=config.ssm_length,
            norm_epsilon=config.norm_epsilon,
            dtype=dtype,
        )
    return Mamba2(
        config.hidden,
        config.ssm_heads,
        config.ssm_inner // config.ssm_heads,
        groups=config.ssm_groups,
        states=config.ssm_state,
        kernel=config.ssm_length,
        bias=config.ssm_bias,
        kernel_bias=config.ssm_kernel_bias,
        norm_epsilon=config.norm_epsilon if config.ssm_norm else None,
        scales=SegmentScales.of(config.ssm_scales) if config.ssm_scales else None,
        dtype=dtype,
    )


def make_delta_net(config: DecoderConfig, dtype: DType) -> GatedDeltaNet | KimiDeltaAttention:
    """Return the gated delta net, or the Kimi delta attention, of a layer."""
    if config.delta_by_element:
        return KimiDeltaAttention(
            config.hidden,
            config.delta_heads,
            size=config.delta_key_size,
            kernel=config.convolution_length,
            low_rank=config.delta_low_rank,
            bound=config.delta_bound,
            norm_epsilon=config.norm_epsilon,
            dtype=dtype,
        )
    return GatedDeltaNet(
        config.hidden,
        config.delta_heads,
        key_heads=config.delta_key_heads,
        key_size=config.delta_key_size,
        value_size=config.delta_value_size,
        kernel=config.convolution_length,
        norm_epsilon=config.norm_epsilon,
        dtype=dtype,
    )


def make_convolution(config: DecoderConfig, dtype: DType) -> ShortConvolution:
    """Return the short convolution of a layer."""
    return ShortConvolution(
        config.hidden, config.convolution_length, bias=config.convolution_bias, dtype=dtype
    )


def make_linear_unit(config: DecoderConfig, dtype: DType) -> RealGatedRecurrence:
    """Return the linear recurrent unit of a layer."""
    return RealGatedRecurrence(
        config.hidden,
        config.lru_width,
        blocks=config.heads,
        kernel=config.convolution_length,
        activation=config.activation,
        dtype=dtype,
    )
