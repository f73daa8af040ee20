"""What TQ1_0 and TQ2_0 share: 256 numbers as -1, 0 or 1 times the largest magnitude."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.codecs.base import F32, U8

__all__ = ["decoded", "leveled"]


def leveled(x: F32) -> tuple[F32, U8]:
    """Return scales (r, b) and levels (r, b, 256) of numbers (r, b, 256): 1 stands for zero."""
    scale: F32 = np.maximum(x.max(axis=2), -x.min(axis=2))
    # Adding 0 turns -0 into 0, where ggml starts.
    scale += np.float32(0)
    inverse = np.where(scale > 0, 1 / scale, np.float32(0))
    # The inverse of a subnormal scale may be infinite; ggml's levels are then 1.
    inverse[np.isinf(inverse)] = 0
    fraction = x * inverse[..., None]
    level = np.ones(x.shape, np.uint8)
    level += fraction >= np.float32(0.5)
    level -= fraction <= np.float32(-0.5)
    return scale, level


def decoded(level: U8, scale: NDArray[np.float16], out: F32) -> None:
    """Fill `out`, shape (r, b, 256), with levels of that shape times scales (r, b)."""
    signed = level.view(np.int8) - np.int8(1)
    np.multiply(signed, scale.astype(np.float32)[..., None], out=out, dtype=np.float32)
