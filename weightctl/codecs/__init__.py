"""Encoding and decoding of values, and conversion between encodings.

The NumPy modules of this package define each encoding. A compiled kernel is used where it gives the
same bytes faster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightctl.codecs.compiled import CompiledCodec, transcode_in_one_pass
from weightctl.codecs.definitions import can_decode, can_encode, definition
from weightctl.codecs.exact import holds_all, is_exact
from weightctl.codecs.loss import Loss
from weightctl.dtype import ENCODINGS
from weightctl.kernels import kernel, transcoder

if TYPE_CHECKING:
    from weightctl.codecs.base import F32, U8, Codec
    from weightctl.codecs.feedback import Curvature
    from weightctl.dtype import Encoding

__all__ = [
    "Loss",
    "Transcoded",
    "can_decode",
    "can_encode",
    "codec",
    "definition",
    "holds_all",
    "is_exact",
    "transcode",
]


def codec(encoding: Encoding) -> Codec:
    """Return the fastest codec of an encoding.

    Raises `EncodingError` for an encoding that is not in the table.
    """
    defined, compiled = definition(encoding), kernel(encoding.name)
    return defined if compiled is None else CompiledCodec(defined, compiled)


class Transcoded(NamedTuple):
    """The bytes in the new encoding, and the loss; it is None if the conversion `is_exact`."""

    raw: U8
    loss: Loss | None


def transcode(
    raw: U8,
    source: Encoding,
    target: Encoding,
    importance: F32 | None = None,
    *,
    curvature: Curvature | None = None,
    measure: bool = False,
    zero_nonfinite: bool = False,
    out: U8 | None = None,
) -> Transcoded:
    """Convert rows of one encoding to another.

    `raw` and the result have shape (rows, bytes per row). The result is `out` if that is given;
    `out` must be contiguous and must not share memory with `raw`. `importance` is one weight per
    column, or None. With the `curvature` of a matrix, its values are rounded with error feedback.
    Plain values are rounded once, to nearest even. If one side is a block
    encoding, values are converted to float32 first, as in ggml, and the loss is relative to that.
    Overflows are always counted; the rest of the loss is measured only with `measure`. Raises
    `NonFiniteError` if a block encoding cannot hold a value: one that overflows the scale, a NaN or
    an infinity; with `zero_nonfinite`, NaN and infinities become 0 instead. Raises `EncodingError`
    if the conversion is not supported.
    """
    if source == target:
        return Transcoded(_fill(out, raw), None)
    if target.dtype is not None:
        importance = curvature = None
    options = {"measure": measure, "zero_nonfinite": zero_nonfinite}
    if raw.size and curvature is None:
        weighted = importance is not None
        found = transcoder(source.name, target.name, weighted=weighted)
        if found is None and target.dtype is None:
            found = transcoder("F32", target.name, weighted=weighted)
            if found is not None:
                from weightctl.codecs.transcoding import decode_rows

                raw, source = decode_rows(raw, source, codec).view(np.uint8), ENCODINGS["F32"]
        if found is not None:
            done = transcode_in_one_pass(found, raw, source, target, importance, out=out, **options)
            return Transcoded(*done)
    from weightctl.codecs.transcoding import transcode_arrays

    def find_codec(encoding: Encoding) -> Codec:
        if curvature is None or encoding != target:
            return codec(encoding)
        from weightctl.codecs.feedback import FeedbackCodec  # few conversions need it

        return FeedbackCodec(encoding, codec(encoding), curvature)

    made, loss = transcode_arrays(raw, source, target, importance, find_codec, **options)
    return Transcoded(_fill(out, made), loss)


def _fill(out: U8 | None, made: U8) -> U8:
    if out is None:
        return made
    out[...] = made
    return out
