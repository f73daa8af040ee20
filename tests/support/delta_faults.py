"""Faults of gated delta nets and Kimi delta attention, and of the attention beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from faults import of
from part_faults import BlockFault, add_one, change_key, change_part, negate_part, zero_part
from tensor_faults import changed, swapped_rows

if TYPE_CHECKING:
    from fault_files import Files

    Array = np.ndarray[Any, Any]

__all__ = ["DELTA_NET", "KIMI_DELTA"]

_ATTENDED = 2  # the layer with attention


def _swap_projections(files: Files) -> tuple[str, ...]:
    return files.exchange(of("delta.beta.weight"), of("delta.alpha.weight"))


def _part_gates(rows: Array) -> Array:
    """Put the queries of all heads before their gates."""
    return rows.reshape(4, 2, -1, rows.shape[1]).swapaxes(0, 1).reshape(rows.shape)


DELTA_NET = {
    "gate of the net zero": zero_part("delta.gate.weight"),
    "offsets zero": zero_part("delta.offsets.weight"),
    "offsets negated": negate_part("delta.offsets.weight"),
    "rates as Hugging Face has them": change_part(
        "delta.rates.weight", None, lambda rates: np.log(-rates)
    ),
    "norm of the net with 1 added": add_one("delta.norm.weight"),
    "weights of the convolution in reverse": change_part(
        "delta.kernel.weight", "permuted", lambda rows: rows[:, ::-1]
    ),
    "channels of the convolution rolled": change_part(
        "delta.kernel.weight", "permuted", lambda rows: np.roll(rows, 3, 0)
    ),
    "beta and alpha swapped": BlockFault(_swap_projections, None),
    "heads in Hugging Face's order": change_part(
        "delta.gate.weight", "permuted", lambda rows: swapped_rows(rows, 1, 2, len(rows) // 4)
    ),
    "queries and gates apart": BlockFault(
        changed(of("attention.q.weight", _ATTENDED), _part_gates), None
    ),
    "rotated dimensions": change_key("rope.dimension_count", lambda size: size * 2),
}
KIMI_DELTA = {
    "gate zero": zero_part("delta.gate_b.weight"),
    "offsets zero": zero_part("delta.offsets.weight"),
    "norm of the heads with 1 added": add_one("delta.norm.weight"),
    "weights of the convolution in reverse": change_part(
        "delta.k_kernel.weight", None, lambda channels: channels[..., ::-1]
    ),
    "two heads swapped": change_part(
        "delta.q.weight", "permuted", lambda rows: swapped_rows(rows, 0, 1, len(rows) // 4)
    ),
    "decays transposed": change_part(
        "delta.decay_b.weight", None, lambda rows: rows.T.reshape(rows.shape)
    ),
    "rates as Hugging Face has them": change_part(
        "delta.rates.weight", None, lambda rates: np.log(-rates)
    ),
    "values of latent vectors zero": BlockFault(
        changed(of("attention.v_b.weight", _ATTENDED), np.zeros_like), "zeroed"
    ),
}
