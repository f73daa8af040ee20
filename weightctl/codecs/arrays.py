"""Transcoding in whole-array arithmetic: the definition of what the kernels do in one pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weightctl.codecs.blocks import encoded
from weightctl.codecs.exact import is_exact
from weightctl.codecs.plain import recast
from weightctl.codecs.scalar import convert, pack, unpack
from weightctl.dtype import DType

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightctl.codecs.base import F32, U8, Codec
    from weightctl.codecs.loss import Loss
    from weightctl.dtype import Encoding

__all__ = ["float32", "transcoded"]


def transcoded(
    raw: U8,
    source: Encoding,
    target: Encoding,
    importance: F32 | None,
    codec: Callable[[Encoding], Codec],
    *,
    measure: bool,
    zero_nonfinite: bool,
) -> tuple[U8, Loss | None]:
    """Return what `codecs.transcode` does of two encodings; `codec` gives the codec of each."""
    if target.dtype is None:
        numbers = float32(raw, source, codec)
        return encoded(
            numbers, target, codec(target), importance,
            measure=measure, zero_nonfinite=zero_nonfinite,
        )  # fmt: skip
    plain = source.dtype
    numbers = float32(raw, source, codec) if plain is None else unpack(raw, plain)
    if is_exact(source, target):
        return pack(convert(numbers, target.dtype)), None
    made, loss = recast(numbers, target.dtype, measure=measure)
    return pack(made), loss


def float32(raw: U8, encoding: Encoding, codec: Callable[[Encoding], Codec]) -> F32:
    """Return the numbers of rows of an encoding, shape (rows, columns)."""
    # Scales of damaged blocks may be anything; what they give is judged by its readers.
    with np.errstate(all="ignore"):
        if encoding.dtype is not None:
            return convert(unpack(raw, encoding.dtype), DType.float32)
        columns = raw.shape[1] // encoding.size * encoding.block
        numbers = np.empty((raw.shape[0], columns), np.float32)
        decoder = codec(encoding)
        if raw.size:
            decoder.decode(raw, numbers)
    return numbers
