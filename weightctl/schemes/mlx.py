"""MLX: rows of integers packed into U32, with a scale and a bias per group of a row."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from weightctl.schemes import decoding
from weightctl.schemes.cutting import cut_upright
from weightctl.schemes.scheme import BITS, MLX, LogicalWeight, Scheme, divide_exactly

if TYPE_CHECKING:
    from weightctl.schemes.decoding import Decoding, SchemeTensors
    from weightctl.schemes.scheme import Candidate

__all__ = ["SCHEME"]


def _infer(candidate: Candidate) -> LogicalWeight | None:
    """Return a weight in groups; only the config states their size."""
    numbers, scales = candidate.numbers.shape, candidate.scales.shape
    biases = candidate.shape(".biases") or candidate.shape(".qbiases")
    if not numbers or not scales or numbers[:-1] != scales[:-1] or biases != scales:
        return None
    columns = scales[-1] * candidate.number("group_size")
    bits = divide_exactly(32 * numbers[-1], columns)
    return LogicalWeight((*numbers[:-1], columns), bits) if bits in BITS else None


def _decode(stored: SchemeTensors) -> Decoding:
    """Decode values as q * scale + bias."""
    stored.refuse_others(".biases", ".qbiases")
    place, bits, shape = stored.find(".biases", ".qbiases"), stored.bits, stored.shape
    if place is None:
        raise stored.cannot_dequantize("its biases are missing")
    grid = stored.grid(shape, stored.scales.shape)
    layout = decoding.PackingLayout(bits, 32)
    values = decoding.Scaled(
        numbers=stored.pack_numbers(0, layout, 1, (prod(shape[:-1]), shape[-1])),
        scales=stored.per_block(1, grid),
        biases=stored.per_block(place, grid),
    )
    return decoding.Decoding(shape, values, bits=bits)


SCHEME = Scheme(label="MLX {bits}-bit", names=(MLX,), infer=_infer, decode=_decode, cut=cut_upright)
