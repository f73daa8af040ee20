"""The numbers in blocks of bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.dtype import Encoding

if TYPE_CHECKING:
    from torch import Tensor

    from weightctl.dtype import DType, QuantizationEncoding

__all__ = ["decode_blocks"]


def decode_blocks(
    blocks: Tensor,
    encoding: QuantizationEncoding | Encoding,
    dtype: DType,
    out: Tensor | None = None,
) -> Tensor:
    """Return the numbers [..., elements per row] of uint8[..., bytes per row], on the CPU.

    `out` is memory for them: a contiguous tensor on the CPU of just as many bytes, whatever its
    shape and dtype. Raises `EncodingError` for a row that is no whole number of blocks, and
    `EngineError` where torch has no tensors of the dtype.
    """
    import torch

    from weightctl.codecs import transcode
    from weightctl.graph.ops.torch_types import torch_dtype

    source = encoding if isinstance(encoding, Encoding) else encoding.encoding
    *leading, width = blocks.shape
    shape = (*leading, source.elements_of(width))
    made = torch.empty(shape, dtype=torch_dtype(dtype)) if out is None else out
    memory = made.reshape(-1).view(torch.uint8)
    numbers = memory.view(torch_dtype(dtype)).reshape(shape)
    if numbers.numel():
        rows = blocks.cpu().contiguous().reshape(-1, width).numpy()
        transcode(rows, source, dtype.encoding, out=memory.reshape(len(rows), -1).numpy())
    return numbers
