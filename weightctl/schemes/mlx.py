"""MLX: rows of integers packed into U32, with a scale and a bias per group of a row."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

from weightctl.schemes.cutting import cut_upright
from weightctl.schemes.layout import Packing, PartContent, StoredPart, WeightEncoding
from weightctl.schemes.naming import BITS, LogicalWeight, NameEndings, divide_exactly
from weightctl.schemes.scheme import Scheme, SchemeOptions, WrittenScheme

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.dtype import Encoding
    from weightctl.schemes.arrays.tensors import SchemeTensors
    from weightctl.schemes.arrays.values import Decoding
    from weightctl.schemes.naming import Candidate

# Integers have biases, floats do not.
MLX = NameEndings(".scales", ".weight", ".weight", ("U32",), (".biases", ".qbiases"))


def _infer(candidate: Candidate) -> LogicalWeight | None:
    """Return a weight in groups; only the config states their size."""
    numbers, scales = candidate.numbers.shape, candidate.scales.shape
    biases = candidate.shape(".biases") or candidate.shape(".qbiases")
    if not numbers or not scales or numbers[:-1] != scales[:-1] or biases != scales:
        return None
    columns = scales[-1] * candidate.settings.number("group_size")
    bits = divide_exactly(32 * numbers[-1], columns)
    return LogicalWeight((*numbers[:-1], columns), bits) if bits in BITS else None


def _decode(stored: SchemeTensors) -> Decoding:
    """Decode values as q * scale + bias."""
    from weightctl.schemes.arrays.values import Decoding, Scaled

    stored.refuse_others(".biases", ".qbiases")
    place, bits, shape = stored.find(".biases", ".qbiases"), stored.bits, stored.shape
    if place is None:
        raise stored.cannot_dequantize("its biases are missing")
    grid = stored.grid(shape, stored.scales.shape)
    values = Scaled(
        numbers=stored.pack_numbers(0, Packing(bits, 32), (prod(shape[:-1]), shape[-1])),
        scales=stored.per_block(1, grid),
        biases=stored.per_block(place, grid),
    )
    return Decoding(shape, values, bits=bits)


SCHEME = Scheme(
    label="MLX {bits}-bit",
    summary="MLX: rows of integers packed into U32, with a scale and a bias per group of a row",
    names=(MLX,),
    infer=_infer,
    decode=_decode,
    cut=cut_upright,
)

# MLX's group sizes, its own default first.
_GROUPS = (64, 32, 128)


def _encode(
    bits: int, shape: tuple[int, ...], options: SchemeOptions, scales: Encoding
) -> WeightEncoding:
    from weightctl.schemes.arrays.rounding import Biased

    parts = (
        StoredPart(".weight", PartContent.CODES, "U32", Packing(bits, 32)),
        StoredPart(".scales", PartContent.SCALES, scales.name),
        StoredPart(".biases", PartContent.OFFSETS, scales.name),
    )
    return WeightEncoding(parts, shape, Biased(bits, options.group, scales.name))


def _encode_floats(shape: tuple[int, ...], options: SchemeOptions, _: Encoding) -> WeightEncoding:
    from weightctl.schemes.arrays.rounding import Microscaled4

    parts = (
        StoredPart(".weight", PartContent.CODES, "U32", Packing(4, 32)),
        StoredPart(".scales", PartContent.SCALES, "U8"),
    )
    return WeightEncoding(parts, shape, Microscaled4(options.group))


def _describe(
    bits: int, mode: str, options: SchemeOptions, _ignored: Sequence[str]
) -> dict[str, Any]:
    """Return MLX's settings; a module without scales is not quantized."""
    return {"group_size": options.group, "bits": bits, "mode": mode}


_KEYS = ("quantization", "quantization_config")
MLX_4BIT, MLX_8BIT = (
    WrittenScheme(
        name=f"MLX-{bits}bit",
        summary=f"MLX's {bits}-bit integers, with a scale and a bias per group",
        encode=partial(_encode, bits),
        settings=partial(_describe, bits, "affine"),
        defaults=SchemeOptions(group=_GROUPS[0]),
        groups=_GROUPS,
        keys=_KEYS,
    )
    for bits in (4, 8)
)
MLX_MXFP4 = WrittenScheme(
    name="MLX-mxfp4",
    summary="MLX's 4-bit floats, with a power-of-two scale per 32 elements",
    encode=_encode_floats,
    settings=partial(_describe, 4, "mxfp4"),
    defaults=SchemeOptions(group=32),
    keys=_KEYS,
)
