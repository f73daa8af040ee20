"""MLX: rows of integers packed into U32, with a scale and a bias per group of a row."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

from weightctl.schemes import decoding, encoding
from weightctl.schemes.cutting import cut_upright
from weightctl.schemes.naming import BITS, MLX, LogicalWeight, divide_exactly
from weightctl.schemes.scheme import Scheme
from weightctl.schemes.written import SchemeOptions, WrittenScheme, refuse_groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from weightctl.codecs.base import U8
    from weightctl.dtype import Encoding
    from weightctl.schemes.decoding import Decoding, SchemeTensors
    from weightctl.schemes.encoding import Codes, WeightEncoding
    from weightctl.schemes.naming import Candidate


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

# MLX's group sizes, its own default first.
_GROUPS = (64, 32, 128)


def _encode(
    bits: int, shape: tuple[int, ...], options: SchemeOptions, scales: Encoding
) -> WeightEncoding:
    rows, columns = shape
    words, groups = columns * bits // 32, columns // options.group
    table, unit = (rows, groups), scales.size * groups
    return encoding.WeightEncoding(
        parts=(
            encoding.StoredPart(".weight", (rows, words), "U32", unit=4 * words),
            encoding.StoredPart(".scales", table, scales.name, unit=unit),
            encoding.StoredPart(".biases", table, scales.name, unit=unit),
        ),
        rows=rows, columns=columns, rounding=encoding.Biased(bits, options.group, scales.name),
        pack=partial(_pack, bits),
    )  # fmt: skip


def _encode_floats(shape: tuple[int, ...], options: SchemeOptions, _: Encoding) -> WeightEncoding:
    rows, columns = shape
    words, groups = columns // 8, columns // options.group
    return encoding.WeightEncoding(
        parts=(
            encoding.StoredPart(".weight", (rows, words), "U32", unit=4 * words),
            encoding.StoredPart(".scales", (rows, groups), "U8", unit=groups),
        ),
        rows=rows, columns=columns, rounding=encoding.Microscaled4(options.group),
        pack=partial(_pack, 4),
    )  # fmt: skip


def _pack(bits: int, made: Codes, _peak: np.float32) -> list[U8]:
    parts = [encoding.pack_rows(made.codes, bits, word=32), made.scales]
    return parts if made.offsets is None else [*parts, made.offsets]


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
        refuse=refuse_groups,
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
    refuse=refuse_groups,
    defaults=SchemeOptions(group=32),
    keys=_KEYS,
)
