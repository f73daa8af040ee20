"""Conversion to torch's dtypes and devices, and decoding of blocks."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from weightctl.dtype import DType, Encoding
from weightctl.errors import EngineError
from weightctl.graph.ops.device_blocks import decode_there, decodes_on

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from weightctl.device import DeviceRef
    from weightctl.dtype import QuantizationEncoding


@cache
def torch_dtype(dtype: DType) -> torch.dtype:
    """Return the torch dtype for values of a `DType`.

    Raises `EngineError` if torch has none: for float4, or if this version of torch is too old.
    """
    import torch

    found = getattr(torch, dtype.value, None)
    if not isinstance(found, torch.dtype):
        raise EngineError(
            f"torch does not support {dtype.value}",
            hint="cast to bfloat16 or float32, or install a newer torch",
        )
    return found


@cache
def torch_device(device: DeviceRef) -> torch.device:
    """Return the torch device of a `DeviceRef`; all CPUs of a graph are torch's one CPU device."""
    import torch

    return torch.device("cpu") if device.kind == "cpu" else torch.device("cuda", device.id)


@cache
def dtype_of(dtype: torch.dtype) -> DType:
    """Return the `DType` of a torch dtype.

    Raises `EngineError` if there is none (`complex32`, `qint8`, two float4 in a byte).
    """
    name = str(dtype).removeprefix("torch.")
    if name not in DType.__members__:
        raise EngineError(
            f"no DType matches tensors of {dtype}",
            hint="convert the tensor with `.to(torch.float32)`",
        )
    return DType(name)


def decode_blocks(
    blocks: Tensor,
    encoding: QuantizationEncoding | Encoding,
    dtype: DType,
    out: Tensor | None = None,
) -> Tensor:
    """Decode uint8[..., bytes per row] to values [..., elements per row].

    Blocks on a GPU are decoded there if it can decode their encoding, otherwise on the CPU. `out`
    is memory for a result on the CPU: a contiguous tensor with the same number of bytes, of any
    shape and dtype. Raises `EncodingError` if a row does not consist of whole blocks, and
    `EngineError` if torch has no tensors of the dtype.
    """
    import torch

    from weightctl.codecs import transcode

    source = encoding if isinstance(encoding, Encoding) else encoding.encoding
    if out is None and decodes_on(blocks.device.type, source):
        return decode_there(blocks, source, torch_dtype(dtype))
    *leading, width = blocks.shape
    shape = (*leading, source.elements_of(width))
    made = torch.empty(shape, dtype=torch_dtype(dtype)) if out is None else out
    memory = made.reshape(-1).view(torch.uint8)
    numbers = memory.view(torch_dtype(dtype)).reshape(shape)
    if numbers.numel():
        rows = blocks.cpu().contiguous().reshape(-1, width).numpy()
        transcode(rows, source, dtype.encoding, out=memory.reshape(len(rows), -1).numpy())
    return numbers
