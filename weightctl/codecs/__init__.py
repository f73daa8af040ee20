"""The door to every encoding: how its bytes become numbers and numbers its bytes.

The NumPy modules beside this one are the definition of each encoding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from weightctl.codecs.ggml import Ggml
from weightctl.codecs.scalar import Scalar, convert, overflow, pack, unpack
from weightctl.errors import EncodingError, NonFiniteError
from weightctl.registry import load

if TYPE_CHECKING:
    from weightctl.codecs.base import F32, U8, Codec
    from weightctl.dtype import Encoding

__all__ = ["Transcoded", "can_decode", "can_encode", "codec", "transcode"]


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


_FLOAT16_LARGEST = 65504.0


class Transcoded(NamedTuple):
    """The bytes of a new encoding, and how many finite numbers were too large for it."""

    raw: U8
    overflows: int


def transcode(
    raw: U8, source: Encoding, target: Encoding, importance: F32 | None = None
) -> Transcoded:
    """Turn rows of one encoding into rows of another.

    `raw` has shape (rows, bytes per row), the result too; `importance` is one weight per column,
    or None. Plain numbers are rounded once, to nearest even; where one side is a block encoding
    they go through float32, as in ggml. Raises `NonFiniteError` where a block encoding would have
    to hold a NaN, an infinity or a number that overflows its scale, and `EncodingError` where
    there is no way from the one to the other.
    """
    if source == target:
        return Transcoded(raw, 0)
    if source.dtype is not None and target.dtype is not None:
        numbers = unpack(raw, source.dtype)
    else:
        columns = raw.shape[1] // source.size * source.block
        numbers = np.empty((raw.shape[0], columns), np.float32)
        decoder = codec(source)
        # Scales of damaged blocks may be anything; what they give is judged by its readers.
        with np.errstate(all="ignore"):
            if raw.size:
                decoder.decode(raw, numbers)
    if target.dtype is not None:
        converted = convert(numbers, target.dtype)
        return Transcoded(pack(converted), overflow(numbers, converted))
    _require_finite(numbers, target)
    out = np.empty((raw.shape[0], numbers.shape[1] // target.block * target.size), np.uint8)
    encoder = codec(target)
    if numbers.size:
        encoder.encode(numbers, importance, out)
        _require_held(numbers, out, target)
    return Transcoded(out, 0)


def _require_finite(rows: F32, target: Encoding) -> None:
    finite = np.isfinite(rows)
    if not finite.all():
        index = int(np.argmin(finite.reshape(-1)))
        raise NonFiniteError(index, float(rows.reshape(-1)[index]), target.name)


def _require_held(rows: F32, blocks: U8, target: Encoding) -> None:
    """Refuse blocks whose float16 scale has overflowed; smaller numbers cannot do that to it."""
    if max(rows.max(), -rows.min()) <= _FLOAT16_LARGEST:
        return
    held = np.empty_like(rows)
    with np.errstate(all="ignore"):
        codec(target).decode(blocks, held)
    lost = ~np.isfinite(held)
    if lost.any():
        index = int(np.argmax(np.where(lost, np.abs(rows), -1)))
        raise NonFiniteError(index, float(rows.reshape(-1)[index]), target.name)
