"""Faults of hyper-connections, and of attention to compressed keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from faults import of
from part_faults import (
    BlockFault,
    add_one,
    change_key,
    change_part,
    drop_part,
    exchange_parts,
    negate_part,
    zero_part,
)
from tensor_faults import changed, swapped_rows

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]

__all__ = ["COMPRESSED_KINDS"]

_STREAMS = 4


def _two_swapped(rows: Array) -> Array:
    return swapped_rows(rows, 0, 1, 1)


def _between_transposed(rows: Array) -> Array:
    """Exchange the rows and columns of the weights between streams, which follow the others."""
    before, between = np.split(rows, [2 * _STREAMS])
    square = between.reshape(_STREAMS, _STREAMS, -1).swapaxes(0, 1)
    return np.concatenate([before, square.reshape(between.shape)])


def _halves_swapped(rows: Array) -> Array:
    return np.roll(rows, len(rows) // 2, 0)


_HYPER_CONNECTIONS = {
    "weights between streams transposed": change_part(
        "attention_streams.projection.weight", "permuted", _between_transposed
    ),
    "weights of streams zero": zero_part("mlp_streams.projection.weight"),
    "offsets of streams negated": negate_part("attention_streams.offsets.weight"),
    "scales of two kinds swapped": change_part(
        "attention_streams.scales.weight", None, _two_swapped
    ),
    "offsets missing": drop_part("mlp_streams.offsets.weight"),
    "streams of attention and MLP swapped": exchange_parts(
        "attention_streams.projection.weight", "mlp_streams.projection.weight"
    ),
    "output of streams negated": negate_part("stream_output.projection.weight"),
    "steps of the normalization": change_key(
        "hyper_connection.sinkhorn_iterations", lambda count: count - 18
    ),
}
_COMPRESSED_ATTENTION = {
    "vectors of a compressed key swapped": change_part(
        "attention.compressor.kv.weight", "rolled", _halves_swapped
    ),
    "gates of the compressor zero": zero_part("attention.compressor.gate.weight"),
    "places in a compressed key reversed": change_part(
        "attention.compressor.places.weight", "permuted", lambda rows: rows[::-1].copy()
    ),
    "norm of compressed keys with 1 added": add_one("attention.compressor.norm.weight"),
    "compressor missing": drop_part("attention.compressor.kv.weight"),
    "keys of the indexer zero": zero_part("attention.indexer.compressor.kv.weight"),
    "outputs of two groups swapped": change_part("attention.o_a.weight", "rolled", _halves_swapped),
    "table of experts one token too far": BlockFault(
        changed(of("mlp.table.weight", 0), lambda rows: np.roll(rows, 1, 0)), "shifted"
    ),
    "RoPE base of compressed keys": change_key(
        "attention.compress_rope_freq_base", lambda base: base / 10
    ),
    "keys that are used": change_key("attention.indexer.top_k", lambda count: count // 2),
}
# By the kind of block: a case of a family that has it, and the faults.
COMPRESSED_KINDS: dict[str, tuple[str, dict[str, BlockFault]]] = {
    "hyper-connections": ("deepseek_v4", _HYPER_CONNECTIONS),
    "compressed attention": ("deepseek_v4", _COMPRESSED_ATTENTION),
}
