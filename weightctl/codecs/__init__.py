"""The door to every encoding: how its bytes become numbers and numbers its bytes.

The NumPy modules beside this one are the definition of each encoding. Where a compiled kernel gives
the same bytes faster, the door opens to that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from weightctl.codecs.arrays import float32, transcoded
from weightctl.codecs.compiled import Compiled, in_one_pass
from weightctl.codecs.exact import holds_all, is_exact
from weightctl.codecs.ggml import Ggml
from weightctl.codecs.loss import Loss
from weightctl.codecs.scalar import Scalar
from weightctl.dtype import ENCODINGS
from weightctl.errors import EncodingError
from weightctl.kernels import kernel, transcoder
from weightctl.registry import load

if TYPE_CHECKING:
    from weightctl.codecs.base import F32, U8, Codec
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
    """Return the fastest that encodes and decodes an encoding.

    Raises `EncodingError` for one that the table lacks.
    """
    compiled = kernel(encoding.name)
    return definition(encoding) if compiled is None else Compiled(definition(encoding), compiled)


def definition(encoding: Encoding) -> Codec:
    """Return the NumPy code that says what the bytes of an encoding are.

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
    zero_nonfinite: bool = False,
    out: U8 | None = None,
) -> Transcoded:
    """Turn rows of one encoding into rows of another.

    `raw` has shape (rows, bytes per row), the result too; it is `out` where that is given, which is
    contiguous and shares no memory with `raw`. `importance` is one weight per column, or None.
    Plain numbers are rounded once, to nearest even; where one side is a block encoding they go
    through float32, as in ggml, and the loss is of that. Overflows are always counted, the rest of
    the loss only with `measure`. Raises `NonFiniteError` where a block encoding would have to hold
    a number that overflows its scale, a NaN or an infinity, but with `zero_nonfinite` the latter
    become 0; and `EncodingError` where there is no way from the one to the other.
    """
    if source == target:
        return Transcoded(_filled(out, raw), None)
    if target.dtype is not None:
        importance = None
    options = {"measure": measure, "zero_nonfinite": zero_nonfinite}
    if raw.size:
        weighted = importance is not None
        found = transcoder(source.name, target.name, weighted=weighted)
        if found is None and target.dtype is None:
            found = transcoder("F32", target.name, weighted=weighted)
            if found is not None:
                raw, source = float32(raw, source, codec).view(np.uint8), ENCODINGS["F32"]
        if found is not None:
            done = in_one_pass(found, raw, source, target, importance, out=out, **options)
            return Transcoded(*done)
    made, loss = transcoded(raw, source, target, importance, codec, **options)
    return Transcoded(_filled(out, made), loss)


def _filled(out: U8 | None, made: U8) -> U8:
    if out is None:
        return made
    out[...] = made
    return out
