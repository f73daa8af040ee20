"""Faults of state space models: Mamba, Mamba-2, that of PLaMo 2, and a Mamba-2 beside attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from part_faults import (
    add_one,
    change_key,
    change_part,
    drop_part,
    negate_part,
    times,
    zero_part,
)
from tensor_faults import swapped_rows

if TYPE_CHECKING:
    from part_faults import BlockFault

    Array = np.ndarray[Any, Any]

__all__ = ["STATE_SPACE_KINDS"]


def _two_swapped(rows: Array) -> Array:
    return swapped_rows(rows, 0, 1, 1)


def _matrices_swapped(rows: Array) -> Array:
    """Swap B and C in the projection of the tiny Mamba-2: 512 gates, 512 values, 64 each, 8."""
    gates, values, b, c, steps = np.split(rows, [512, 1024, 1088, 1152])
    return np.concatenate([gates, values, c, b, steps])


def _gates_first(rows: Array) -> Array:
    values, gates = np.split(rows, 2)
    return np.concatenate([gates, values])


def _values_before_gates(rows: Array) -> Array:
    """Swap the gates and values in each head of the tiny PLaMo 2, which are 32 rows each."""
    return rows.reshape(-1, 2, 32, rows.shape[1])[:, ::-1].reshape(rows.shape).copy()


def _logarithms(rates: Array) -> Array:
    return np.log(-rates)


_BOTH = {
    "rates negated": change_part("ssm.rates.weight", None, np.negative),
    "rates as logarithms": change_part("ssm.rates.weight", None, _logarithms),
    "skips zero": zero_part("ssm.skip.weight"),
    "kernels reversed": change_part(
        "ssm.kernel.weight", "permuted", lambda kernels: kernels[:, ::-1].copy()
    ),
    "bias of the convolution zero": zero_part("ssm.kernel.bias"),
    "rates of the first two swapped": change_part("ssm.rates.weight", "permuted", _two_swapped),
    "projection missing": drop_part("ssm.outputs.weight"),
}
_MAMBA = {
    **_BOTH,
    "gates before values": change_part("ssm.inputs.weight", "rolled", _gates_first),
    "bias of steps zero": zero_part("ssm.step.bias"),
    "steps negated": negate_part("ssm.step.weight"),
    "epsilon": change_key("attention.layer_norm_rms_epsilon", times(1e3)),
}
_MAMBA_2 = {
    **_BOTH,
    "B and C swapped": change_part("ssm.inputs.weight", "permuted", _matrices_swapped),
    "bias of steps missing": drop_part("ssm.step_bias.weight", "bias_dropped"),
    "norm of groups with 1 added": add_one("ssm.norm.weight"),
    "epsilon": change_key("attention.layer_norm_rms_epsilon", times(1e3)),
}
_PLAMO_2 = {
    "rates negated": change_part("ssm.rates.weight", None, np.negative),
    "rates as logarithms": change_part("ssm.rates.weight", None, _logarithms),
    "skips zero": zero_part("ssm.skip.weight"),
    "kernels reversed": change_part(
        "ssm.kernel.weight", "permuted", lambda kernels: kernels[:, ::-1].copy()
    ),
    "values before gates in each head": change_part(
        "ssm.inputs.weight", "permuted", _values_before_gates
    ),
    "B and C swapped": change_part(
        "ssm.selection.weight", "permuted", lambda rows: swapped_rows(rows, 0, 1, 16)
    ),
    "bias of steps missing": drop_part("ssm.step_bias.weight", "bias_dropped"),
    "norm of B with 1 added": add_one("ssm.b_norm.weight"),
    "norm after the states without its offset": change_part(
        "post_attention_norm.weight", None, lambda weight: weight - np.float32(0.2)
    ),
    "projection missing": drop_part("ssm.outputs.weight"),
}
_BESIDE_ATTENTION = {
    "output of attention with its factor twice": change_part(
        "attention.o.weight", "scaled", lambda rows: rows * 0.9
    ),
    "output of the states with its factor twice": change_part(
        "ssm.outputs.weight", "scaled", lambda rows: rows * 0.7
    ),
    "embedding with its factor twice": change_part(
        "embedding.weight", "scaled", lambda rows: rows * 1.3
    ),
    "keys zero": zero_part("attention.k.weight"),
    "skips negated": negate_part("ssm.skip.weight"),
    "RoPE base": change_key("rope.freq_base", times(10)),
}
# By the kind of block: a case of a family that has it, and the faults.
STATE_SPACE_KINDS: dict[str, tuple[str, dict[str, BlockFault]]] = {
    "Mamba": ("mamba", _MAMBA),
    "Mamba-2": ("mamba2", _MAMBA_2),
    "states of PLaMo 2": ("plamo2-tied", _PLAMO_2),
    "Mamba-2 beside attention": ("falcon_h1", _BESIDE_ATTENTION),
}
