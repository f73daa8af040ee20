"""Weights as other libraries round them to nearest, for `quality.py`.

compressed-tensors rounds the types of serving engines, MLX and bitsandbytes their own. AutoAWQ's
and GPTQ's containers hold groups of integers, so their column is compressed-tensors' rounding of
such groups. Scales of NVFP4's whole weights are not shared between weights here.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    Round = Callable[[torch.Tensor], torch.Tensor]

__all__ = ["LIBRARY"]

_TILE = 128


def _round_groups(size: int, settings: dict[str, Any], weight: torch.Tensor) -> torch.Tensor:
    """Round as compressed-tensors does, with a scale per `size` values of a row; 0 for all."""
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import fake_quantize
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    arguments = QuantizationArgs(**settings)
    rows, columns = weight.shape
    blocks = weight.reshape(-1, size or rows * columns)
    shape = (rows, columns // size) if size else (1,)
    low, high = (edge.reshape(shape) for edge in (blocks.amin(-1), blocks.amax(-1)))
    whole = None
    if settings["strategy"] == "tensor_group":
        whole = generate_gparam(weight.amin(), weight.amax())
    scales, zeros = calculate_qparams(low, high, arguments, global_scale=whole)
    if whole is None:
        scales = scales.to(weight.dtype)
    made: torch.Tensor = fake_quantize(weight, scales, zeros, arguments, global_scale=whole)
    return made.float()


def _round_rows(settings: dict[str, Any], weight: torch.Tensor) -> torch.Tensor:
    return _round_groups(weight.shape[1], settings, weight)


def _round_tiles(settings: dict[str, Any], weight: torch.Tensor) -> torch.Tensor:
    """Round blocks of 128 x 128 values, each as a whole tensor."""
    made = weight.float().clone()
    for top in range(0, weight.shape[0], _TILE):
        for left in range(0, weight.shape[1], _TILE):
            place = (slice(top, top + _TILE), slice(left, left + _TILE))
            made[place] = _round_groups(0, settings, weight[place].contiguous())
    return made


def _round_in_mlx(settings: dict[str, Any], weight: torch.Tensor) -> torch.Tensor:
    import mlx.core as mx

    core: Any = mx
    made = core.quantize(core.array(weight.float().numpy()).astype(core.bfloat16), **settings)
    held = core.dequantize(*made, **settings).astype(core.float32)
    return torch.from_numpy(np.array(held).copy())


def _round_to_nf4(weight: torch.Tensor) -> torch.Tensor:
    from bitsandbytes import functional

    library: Any = functional
    made: torch.Tensor = library.dequantize_4bit(
        *library.quantize_4bit(weight.float(), quant_type="nf4", blocksize=64)
    )
    return made.float()


def _round_to_int8(weight: torch.Tensor) -> torch.Tensor:
    from bitsandbytes import functional

    library: Any = functional
    numbers, scales, _ = library.int8_vectorwise_quant(weight.half())
    made: torch.Tensor = numbers.float() * (scales.float() / 127)[:, None]
    return made


def _with_groups(bits: int, size: int, **more: Any) -> Round:
    settings = {"num_bits": bits, "strategy": "group", "group_size": size, **more}
    return partial(_round_groups, size, settings)


def _with_powers(bits: int) -> Round:
    return _with_groups(bits, 32, type="float", scale_dtype=torch.uint8, zp_dtype=torch.uint8)


_F8: dict[str, Any] = {"num_bits": 8, "type": "float"}
# What rounds a weight, by the name of the type.
LIBRARY: dict[str, Round] = {
    "FP8": partial(_round_groups, 0, {**_F8, "strategy": "tensor"}),
    "FP8_DYNAMIC": partial(_round_rows, {**_F8, "strategy": "channel"}),
    "FP8_BLOCK": partial(_round_tiles, {**_F8, "strategy": "tensor"}),
    "MXFP8": _with_powers(8),
    "W8A16": _with_groups(8, 128),
    "W4A16": _with_groups(4, 128),
    "W4A16:group=32": _with_groups(4, 32),
    "W4A16:symmetric=no": _with_groups(4, 128, symmetric=False),
    "NVFP4A16": partial(
        _round_groups,
        16,
        {
            "num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16,
            "scale_dtype": torch.float8_e4m3fn, "zp_dtype": torch.float8_e4m3fn,
        },
    ),
    "MXFP4": _with_powers(4),
    "GPTQ": _with_groups(4, 128),
    "AWQ": _with_groups(4, 128, symmetric=False),
    "MLX-4bit": partial(_round_in_mlx, {"group_size": 64, "bits": 4}),
    "MLX-8bit": partial(_round_in_mlx, {"group_size": 64, "bits": 8}),
    "MLX-mxfp4": partial(_round_in_mlx, {"group_size": 32, "bits": 4, "mode": "mxfp4"}),
    "BNB-NF4": _round_to_nf4,
    "BNB-INT8": _round_to_int8,
}  # fmt: skip
