"""Checkpoints of arrays that a test creates itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl import Plan, WeightData, Weights
from weightctl.weights.from_arrays import as_checkpoint
from weightctl.write.save import save

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy as np

    Array = np.ndarray[Any, Any]


def weights_of(arrays: Mapping[str, Array]) -> Weights:
    """Return a tree of the arrays, in memory."""
    return as_checkpoint(
        {name: WeightData.from_numpy(array, name) for name, array in arrays.items()}
    )


def stored(path: Path, **arrays: Array) -> Path:
    """Write the arrays to a safetensors file; return its path."""
    save(Plan.copy(weights_of(arrays), "safetensors"), path)
    return path


def rope_rows(array: Array, heads: int) -> Array:
    """Return the rows of a query or key projection in GGUF's order, as llama.cpp's script does.

    `LlamaModel.permute` of `convert_hf_to_gguf.py`.
    """
    split = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
    return split.swapaxes(1, 2).reshape(array.shape)
