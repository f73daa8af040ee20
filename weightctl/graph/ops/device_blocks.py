"""Decoding of blocks on a GPU, with torch's operations on the packed bytes.

The float operations are those of the codecs, in their order, so that the values are the same. Each
is a kernel of its own: products and sums are not contracted.
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import Tensor

    from weightctl.codecs.base import F32
    from weightctl.dtype import Encoding

# Values that are decoded at a time: about four arrays of so many values are in use.
_AREA = 1 << 24


def decodes_on(kind: str, encoding: Encoding) -> bool:
    """Whether blocks are decoded on devices of a kind, instead of on the CPU by the codecs."""
    return kind != "cpu" and encoding.name in _DECODERS


def decode_there(blocks: Tensor, encoding: Encoding, dtype: torch.dtype) -> Tensor:
    """Decode uint8[..., bytes per row] to values [..., elements per row], on the same device.

    The values are those of the codec, rounded once to `dtype`. Raises `KeyError` for an encoding
    that has no decoder here.
    """
    import torch

    decoder = _DECODERS[encoding.name]
    *leading, width = blocks.shape
    shape = (*leading, encoding.elements_of(width))
    table = blocks.reshape(-1, encoding.size)
    made = torch.empty((len(table), encoding.block), dtype=dtype, device=blocks.device)
    step = _AREA // encoding.block
    for start in range(0, len(table), step):
        part = table[start : start + step]
        made[start : start + step] = decoder(part).reshape(len(part), encoding.block)
    return made.reshape(shape)


def _halves(blocks: Tensor, start: int) -> Tensor:
    """Return the float16 at a byte of each block as float32, [blocks, 1]."""
    import torch

    return blocks[:, start : start + 2].contiguous().view(torch.float16).to(torch.float32)


def _pairs(packed: Tensor) -> Tensor:
    """Return the levels (..., n) of bytes (..., n / 2): first the low bits of all bytes."""
    import torch

    return torch.cat((packed & 15, packed >> 4), -1)


def _bits(packed: Tensor, count: int) -> Tensor:
    """Return bits (blocks, 8, bytes): bit j of byte i is at [j, i]; the first `count` of the 8."""
    import torch

    shifts = torch.arange(count, dtype=torch.uint8, device=packed.device)
    return packed[:, None] >> shifts[:, None] & 1


def _decode_nibbles(blocks: Tensor, *, half: int = 0, has_min: bool = False) -> Tensor:
    """Decode Q4_0 and Q5_0, whose level `half` is zero, or Q4_1 and Q5_1, which have a minimum."""
    import torch

    start = 4 if has_min else 2
    levels = _pairs(blocks[:, -16:])
    if blocks.shape[1] - start > 16:
        levels |= _bits(blocks[:, start : start + 4], 8).mT.reshape(-1, 32) << 4
    values = (levels.to(torch.int8) - half).to(torch.float32) * _halves(blocks, 0)
    return values + _halves(blocks, 2) if has_min else values


def _decode_q8_0(blocks: Tensor) -> Tensor:
    import torch

    return blocks[:, 2:].view(torch.int8).to(torch.float32) * _halves(blocks, 0)


def _decode_scales_and_mins(blocks: Tensor, *, has_high: bool) -> Tensor:
    """Decode Q4_K and Q5_K."""
    import torch

    first, second, third = (blocks[:, start : start + 4] for start in (4, 8, 12))
    scales = torch.cat((first & 63, third & 15 | first >> 6 << 4), -1)
    mins = torch.cat((second & 63, third >> 4 | second >> 6 << 4), -1)
    scale = _halves(blocks, 0) * scales.to(torch.float32)
    low = _halves(blocks, 2) * mins.to(torch.float32)
    levels = _pairs(blocks[:, -128:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    if has_high:
        levels |= _bits(blocks[:, 16:48], 8) << 4
    return levels.to(torch.float32) * scale[..., None] - low[..., None]


def _decode_q6_k(blocks: Tensor) -> Tensor:
    import torch

    low, high = blocks[:, :128].reshape(-1, 2, 2, 32), blocks[:, 128:192].reshape(-1, 2, 1, 32)
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8, device=blocks.device)[:, None]
    levels = torch.cat((low & 15, low >> 4), 2) | (high >> shifts & 3) << 4
    numbers = (levels.to(torch.int8) - 32).to(torch.float32).reshape(-1, 16, 16)
    scales = blocks[:, 192:208].view(torch.int8).to(torch.float32)
    return numbers * (_halves(blocks, 208) * scales)[..., None]


def _decode_mxfp4(blocks: Tensor) -> Tensor:
    values, powers, _ = _tables(blocks.device)
    return values[_pairs(blocks[:, 1:]).int()] * powers[blocks[:, :1].int()]


def _decode_nvfp4(blocks: Tensor) -> Tensor:
    values, _, scales = _tables(blocks.device)
    levels = _pairs(blocks[:, 4:].reshape(-1, 4, 8))
    return values[levels.int()] * scales[blocks[:, :4].int()][..., None]


@cache
def _tables(place: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return the values of E2M1, and half of those of E8M0 and of NVFP4's scales, on a device."""
    import numpy as np
    import torch

    from weightctl.codecs.e2m1 import E2M1_VALUES, half_powers, half_scales

    every = np.arange(256, dtype=np.uint8)
    tables = (E2M1_VALUES.astype(np.float32), half_powers(every), half_scales(every))
    # torch has no annotations for `from_numpy`.
    take: Callable[[F32], Tensor] = cast("Any", torch).from_numpy
    values, powers, scales = (take(each).to(place) for each in tables)
    return values, powers, scales


_DECODERS: dict[str, Callable[[Tensor], Tensor]] = {
    "Q4_0": partial(_decode_nibbles, half=8),
    "Q5_0": partial(_decode_nibbles, half=16),
    "Q4_1": partial(_decode_nibbles, has_min=True),
    "Q5_1": partial(_decode_nibbles, has_min=True),
    "Q8_0": _decode_q8_0,
    "Q4_K": partial(_decode_scales_and_mins, has_high=False),
    "Q5_K": partial(_decode_scales_and_mins, has_high=True),
    "Q6_K": _decode_q6_k,
    "MXFP4": _decode_mxfp4,
    "NVFP4": _decode_nvfp4,
}
