"""Conversion of tensors between encodings, and checks that read no bytes."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from weightctl.dtype import DType
from weightctl.errors import EncodingError

if TYPE_CHECKING:
    from weightctl.dtype import Encoding
    from weightctl.weights.info import TensorInfo


def drops_fractions(source: Encoding, target: Encoding) -> bool:
    """Whether a conversion would drop fractions: from fractional values to integers or booleans."""
    after = target.dtype
    return after is not None and (after.is_integer or after is DType.bool) and source.is_real


def require_astype(info: TensorInfo, target: Encoding) -> None:
    """Raise `EncodingError` if `astype` cannot convert a tensor; `astype` may drop fractions."""
    wide = DType.float64.encoding
    require_convertible(info, wide if drops_fractions(info.encoding, target) else target)


def require_convertible(info: TensorInfo, target: Encoding) -> None:
    """Raise `EncodingError` if a tensor cannot be converted to another encoding.

    Whether each value fits is only known when the values are read.
    """
    source = info.encoding
    if source == target:
        return
    before, after = source.dtype, target.dtype
    is_complex = any(dtype is not None and dtype.is_complex for dtype in (before, after))
    has_fractions = before is None or before.is_float
    becomes_whole = after is not None and not after.is_float
    if is_complex or (has_fractions and becomes_whole):
        raise EncodingError(
            f"`{info.name}` cannot be converted from {source} to {target.called}",
            hint="complex numbers can only be copied; take `.real` of their array first"
            if is_complex
            else "floats cannot be converted to integers or bool",
        )
    if not target.fits(info.shape):
        raise EncodingError(
            f"the rows of `{info.name}` have {info.row} elements, which is not a multiple of "
            f"the {target.called} block size",
            hint=f"choose a type whose block size divides {info.row}, or leave this tensor "
            f"unquantized",
        )
    if before is None or after is None:
        _require_codecs(info, target)


def _require_codecs(info: TensorInfo, target: Encoding) -> None:
    from weightctl.codecs import can_decode, can_encode  # not loaded by `ls`

    if not can_decode(info.encoding):
        raise EncodingError(
            f"`{info.name}` is stored as {info.encoding}, which weightctl cannot dequantize",
            hint="use the unquantized model as input",
        )
    if not can_encode(target):
        raise EncodingError(
            f"`{info.name}` cannot be converted to {target}: weightctl can only read this type",
            hint="use another type, for example q4_k, q6_k or q8_0",
        )
    if target.needs_importance:
        raise EncodingError(
            f"`{info.name}` cannot be converted to {target} without an importance matrix",
            hint="`weightctl convert` uses one: --imatrix FILE (imatrix in Python)",
        )


def convert_bytes(info: TensorInfo, raw: memoryview, target: Encoding) -> memoryview:
    """Return a tensor's bytes in another encoding; values are rounded once, to nearest even.

    Raises `EncodingError` if a value cannot be stored.
    """
    import numpy as np  # not loaded by `ls`

    from weightctl.codecs import transcode

    require_convertible(info, target)
    source = info.encoding
    # Without blocks, all rows can be converted as one.
    is_plain = source.dtype is not None and target.dtype is not None
    rows = 1 if is_plain else prod(info.shape[:-1])
    table = np.frombuffer(raw, np.uint8)
    table = table.reshape(rows, -1) if table.size else table.reshape(1, 0)
    try:
        made = transcode(table, source, target).raw
    except EncodingError as error:
        # The error names the tensor, because the caller may read many.
        raise EncodingError(f"`{info.name}`: {error.message}", hint=error.hint) from error
    return np.ascontiguousarray(made).reshape(-1).data
