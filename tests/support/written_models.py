"""A small model in every scheme that weightctl writes, and its values as weightctl reads them."""

from __future__ import annotations

import atexit
import shutil
from functools import cache
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

import numpy as np

import weightctl
from lazy import torch
from small_models import llama
from weightctl.schemes.dequantize import dequantize_weights

if TYPE_CHECKING:
    from pathlib import Path

    from weightctl import Weights
    from weightctl.write.conversion import Conversion

# Every scheme, and those options that change the tensors.
CASES = (
    "FP8", "FP8_DYNAMIC", "FP8_BLOCK", "MXFP8", "W8A16", "W4A16", "W4A16:group=32,symmetric=no",
    "W8A16:group=64,symmetric=no", "NVFP4A16", "NVFP4", "MXFP4", "GPTQ",
    "GPTQ:group=64,symmetric=no",
    "GPTQ-8bit:group=32", "AWQ", "AWQ:group=32", "MLX-4bit", "MLX-8bit:group=128", "MLX-mxfp4",
    "BNB-NF4", "BNB-INT8",
)  # fmt: skip
# One of each way to store values and scales.
USUAL = (
    "FP8", "FP8_BLOCK", "MXFP8", "W4A16:group=32,symmetric=no", "NVFP4", "GPTQ", "AWQ:group=32",
    "MLX-4bit", "BNB-NF4", "BNB-INT8",
)  # fmt: skip
SIZES: dict[str, Any] = {
    "hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 320, "tie_word_embeddings": False,
}  # fmt: skip


@cache
def small_llama() -> str:
    """Return a directory with a model of BF16, whose rows are multiples of 128."""
    model = llama(**SIZES)
    for parameter in model.parameters():
        # A few large values, as models have them.
        parameter.data.reshape(-1)[::997] *= 6
    directory = mkdtemp(prefix="weightctl-written-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(directory)
    return directory


def convert(source: str | Path, target: Path, quant: str, **options: Any) -> Conversion:
    return weightctl.convert(source, target, quant=quant, **options)


def values(tree: Weights) -> dict[str, torch.Tensor]:
    """Return the values of all weights as float32; quantized ones are dequantized."""
    plain = dequantize_weights(tree, in_blocks=False)
    return {
        name: torch.from_numpy(np.from_dlpack(tensor.data().astype("float32")).copy())
        for name, tensor in plain.items()
    }


def values_in(directory: str | Path) -> dict[str, torch.Tensor]:
    return values(weightctl.open_weights(directory))


def relative_error(made: torch.Tensor, wanted: torch.Tensor) -> float:
    difference = (made - wanted).double()
    return float((difference.square().sum() / wanted.double().square().sum()).sqrt())
