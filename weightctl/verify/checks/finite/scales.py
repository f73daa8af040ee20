"""Scales in quantized blocks: where they are stored, and how to read their values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weightctl.codecs.narrow import widen

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightctl.codecs.base import F32, U8
    from weightctl.dtype import Encoding

__all__ = ["Codes", "ScaleField", "ScaleForm", "find_scales"]

# Unsigned integers of any width.
Codes = NDArray[Any]


class ScaleForm(NamedTuple):
    """The number format of a scale; its bits are read as an unsigned integer `kind` of NumPy.

    Without the `sign` bits, the integers sort in the order of the magnitudes, and integers from
    `limit` on are not finite. `as_float32` converts them to values.
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
    # The byte equals the exponent of a float32; 0 and 255 give zero and infinity.
    return (codes.astype(np.uint32) << np.uint32(23)).view(np.float32)


def _read_e4m3(codes: Codes) -> F32:
    exponent, mantissa = (codes >> 3).astype(np.int32), (codes & 7).astype(np.float32)
    normal: F32 = np.ldexp(mantissa + np.float32(8), exponent - 10)
    return np.where(exponent == 0, mantissa * np.float32(2.0**-9), normal)


# The keys are the names in the table of encodings.
_FORMS = {
    "f16": ScaleForm("<u2", 0x8000, 0x7C00, _read_half),
    "f32": ScaleForm("<u4", 0x8000_0000, 0x7F80_0000, _read_single),
    # 255 is NaN in the standard. From 253 on, the largest value of a block overflows float32.
    "e8m0": ScaleForm("u1", 0, 0xFD, _read_power_of_two),
    # No decoder reads its highest bit as a sign.
    "ue4m3": ScaleForm("u1", 0x80, 0x7F, _read_e4m3),
}


class ScaleField(NamedTuple):
    """A scale field of a block, as `BlockScale` describes it, and how to read its values."""

    called: str
    offset: int
    form: ScaleForm
    width: int
    is_positive: bool
    is_added: bool
    in_nibbles: bool

    def of(self, raw: U8, size: int) -> Codes:
        """Return the field as integers [blocks, width]; each block has `size` bytes."""
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


def find_scales(encoding: Encoding) -> tuple[ScaleField, ...]:
    """Return the scale fields of an encoding's blocks; an unquantized encoding has none."""
    return tuple(
        ScaleField(
            each.called,
            each.offset,
            _FORMS[each.form],
            each.width,
            is_positive=each.is_positive,
            is_added=each.is_added,
            in_nibbles=each.in_nibbles,
        )
        for each in encoding.scales
    )
