"""The state space model of a layer, which the config selects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.nn.state_space import Mamba, Mamba2

if TYPE_CHECKING:
    from weightctl.dtype import DType
    from weightctl.families.decoder import DecoderConfig

__all__ = ["make_state_space"]


def make_state_space(config: DecoderConfig, dtype: DType) -> Mamba | Mamba2:
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
        dtype=dtype,
    )
