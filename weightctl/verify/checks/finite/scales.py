"""The scales inside quantized blocks: where they lie, and what their bits stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weightctl.codecs.narrow import widen

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightctl.codecs.base import F32, U8
    from weightctl.dtype import Encoding

__all__ = ["Codes", "ScaleField", "ScaleForm", "find_scales", "is_scaled"]

# Unsigned integers of any width.
Codes = NDArray[Any]


class ScaleForm(NamedTuple):
    """How scales are stored, as unsigned integers of a NumPy type.

    Without the bits of `sign` they are in the order of the magnitudes that they stand for, and from
    `limit` on not finite. `as_float32` gives these numbers.
    """

    kind: str
    sign: int
    limit: int
    as_float32: Callable[[Codes], F32]


def _read_half(codes: Codes) -> F32:
    return widen(codes.view(np.float16))


def _read_single(codes: Codes) -> F32:
    return codes.view(np.float32)


def _read_power_of_two(codes: Codes) -> F32:
    # The exponent of a float32 is the same; its 0 and 255 are zero and infinity.
    return (codes.astype(np.uint32) << np.uint32(23)).view(np.float32)


def _read_e4m3(codes: Codes) -> F32:
    exponent, mantissa = (codes >> 3).astype(np.int32), (codes & 7).astype(np.float32)
    normal: F32 = np.ldexp(mantissa + np.float32(8), exponent - 10)
    return np.where(exponent == 0, mantissa * np.float32(2.0**-9), normal)


_F16 = ScaleForm("<u2", 0x8000, 0x7C00, _read_half)
_F32 = ScaleForm("<u4", 0x8000_0000, 0x7F80_0000, _read_single)
# 255 is NaN in the standard; and from 253 on the greatest number of a block is beyond float32.
_E8M0 = ScaleForm("u1", 0, 0xFD, _read_power_of_two)
# Nothing takes its highest bit for a sign.
_UE4M3 = ScaleForm("u1", 0x80, 0x7F, _read_e4m3)


class ScaleField(NamedTuple):
    """A field of a block: `width` numbers in a form, one after the other.

    Encoders never write one below zero where it `is_positive`. One that `is_added`, not multiplied
    with, may be as small as it likes. Those that are `in_nibbles` are the four highest bits of four
    words each.
    """

    called: str
    offset: int
    form: ScaleForm = _F16
    width: int = 1
    is_positive: bool = False
    is_added: bool = False
    in_nibbles: bool = False

    def of(self, raw: U8, size: int) -> Codes:
        """Return this field of blocks of `size` bytes, shape (bytes,): shape (blocks, width)."""
        words = 4 if self.in_nibbles else self.width
        kind: np.dtype[Any] = np.dtype({
            "names": ["field"], "formats": [(self.form.kind, (words,))],
            "offsets": [self.offset], "itemsize": size,
        })  # fmt: skip
        found: Codes = np.ascontiguousarray(raw.view(kind)["field"])
        if not self.in_nibbles:
            return found
        highest = found >> np.uint16(12) << np.arange(0, 16, 4, dtype=np.uint16)
        return np.bitwise_or.reduce(highest, axis=1, keepdims=True)


_SCALE = ScaleField("scale", 0)
_POSITIVE = ScaleField("scale", 0, is_positive=True)
_MINIMUM = ScaleField("minimum", 2, is_added=True)

# As `block_dtype` of each codec has it; what we have no codec of, as in ggml-common.h.
_SCALES: dict[str, tuple[ScaleField, ...]] = {
    "Q1_0": (_SCALE,),
    "Q2_0": (_SCALE,),
    "Q4_0": (_SCALE,),
    "Q4_1": (_POSITIVE, _MINIMUM),
    "Q5_0": (_SCALE,),
    "Q5_1": (_POSITIVE, _MINIMUM),
    "Q8_0": (_POSITIVE,),
    "Q8_1": (_POSITIVE,),
    "Q2_K": (_POSITIVE._replace(offset=80), _MINIMUM._replace(offset=82)),
    "Q3_K": (_SCALE._replace(offset=108),),
    "Q4_K": (_POSITIVE, _MINIMUM),
    "Q5_K": (_POSITIVE, _MINIMUM),
    "Q6_K": (_SCALE._replace(offset=208),),
    "Q8_K": (_SCALE._replace(form=_F32),),
    "IQ1_S": (_SCALE,),
    "IQ1_M": (ScaleField("scale", 48, in_nibbles=True),),
    "IQ2_XXS": (_SCALE,),
    "IQ2_XS": (_SCALE,),
    "IQ2_S": (_SCALE,),
    "IQ3_XXS": (_SCALE,),
    "IQ3_S": (_SCALE,),
    "IQ4_NL": (_SCALE,),
    "IQ4_XS": (_SCALE,),
    "TQ1_0": (_POSITIVE._replace(offset=52),),
    "TQ2_0": (_POSITIVE._replace(offset=64),),
    "MXFP4": (ScaleField("exponent", 0, _E8M0),),
    "NVFP4": (ScaleField("scale", 0, _UE4M3, width=4),),
}


def find_scales(encoding: Encoding) -> tuple[ScaleField, ...]:
    """Return the fields of an encoding's blocks that scale their numbers; none of plain ones."""
    return _SCALES.get(encoding.name, ())


def is_scaled(encoding: Encoding) -> bool:
    """Whether an encoding has scales of which something is known."""
    return encoding.name in _SCALES and encoding.is_known
