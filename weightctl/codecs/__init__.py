"""The door to every encoding: how its bytes become numbers and numbers its bytes.

The NumPy modules beside this one are the definition of each encoding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from weightctl.codecs.blocks import encoded
from weightctl.codecs.exact import is_exact
from weightctl.codecs.ggml import Ggml
from weightctl.codecs.loss import Loss
from weightctl.codecs.plain import recast
from weightctl.codecs.scalar import Scalar, convert, pack, unpack
from weightctl.dtype import DType
from weightctl.errors import EncodingError
from weightctl.registry import load

if TYPE_CHECKING:
    from weightctl.codecs.base import F32, U8, Codec
    from weightctl.dtype import Encoding

__all__ = ["Loss", "Transcoded", "can_decode", "can_encode", "codec", "is_exact", "transcode"]


def codec(encoding: Encoding) -> Codec:
    """Return what encodes and decodes an encoding.

    Raises `EncodingError` for one that the table lacks.
    """
    if encoding.dtype is not None:
        return Scalar(encoding.dtype)
    if encoding.codec:
        return cast("Codec", load(encoding.codec))
    if can_decode(encoding):
        return Ggml(encoding)
    raise EncodingError(
        f"data of {encoding.name} cannot be interpreted", hint="a newer version may know it"
    )


def can_encode(encoding: Encoding) -> bool:
    """Whether numbers can be turned into this encoding."""
    return encoding.codec != "" or encoding.dtype is not None


def can_decode(encoding: Encoding) -> bool:
    """Whether this encoding can be turned into numbers."""
    return can_encode(encoding) or Ggml.decodes(encoding)


class Transcoded(NamedTuple):
    """The bytes of a new encoding, and what the numbers lost: None where it `is_exact`."""

    raw: U8
    loss: Loss | None


def transcode(
    raw: U8,
    source: Encoding,
    target: Encoding,
    importance: F32 | None = None,
    *,
    measure: bool = False,
) -> Transcoded:
    """Turn rows of one encoding into rows of another.

    `raw` has shape (rows, bytes per row), the result too; `importance` is one weight per column,
    or None. Plain numbers are rounded once, to nearest even; where one side is a block encoding
    they go through float32, as in ggml, and the loss is of that. Overflows are always counted, the
    rest of the loss only with `measure`. Raises `NonFiniteError` where a block encoding would have
    to hold a NaN, an infinity or a number that overflows its scale, and `EncodingError` where there
    is no way from the one to the other.
    """
    if source == target:
        return Transcoded(raw, None)
    if target.dtype is None:
        numbers = _float32(raw, source)
        return Transcoded(*encoded(numbers, target, codec(target), importance, measure=measure))
    numbers = _float32(raw, source) if source.dtype is None else unpack(raw, source.dtype)
    if is_exact(source, target):
        return Transcoded(pack(convert(numbers, target.dtype)), None)
    made, loss = recast(numbers, target.dtype, measure=measure)
    return Transcoded(pack(made), loss)


def _float32(raw: U8, encoding: Encoding) -> F32:
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
