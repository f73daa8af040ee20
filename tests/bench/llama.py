"""A llama of about a billion weights in bf16, generated: normal numbers with a few outliers.

Names and metadata are GGUF's, in safetensors too. At a small size there are fewer layers, and the
matrices are narrower.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weightctl.dtype import ENCODINGS
from weightctl.formats import format_module
from weightctl.formats.base import write_in_order
from weightctl.weights.info import TensorInfo
from weightctl.weights.metadata import MetadataValue

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from weightctl.formats.base import Layout

HEADS, KV_HEADS = 32, 8
# What is written at a time.
STEP = 1 << 22


def write_llama(path: Path, format_name: str, nbytes: int, vocabulary: int | None = None) -> None:
    """Write the model, of roughly so many bytes and 2.2 GB at most.

    Its vocabulary is 65,536 at the full size, and smaller at others, unless one is given.
    """
    layers, width = size_for(nbytes)
    vocabulary = vocabulary or 32 * width
    tensors = described(layers, width, vocabulary)
    layout = format_module(format_name).layout(tensors, stated(layers, width, vocabulary))
    write_random(layout, path)


def write_random(layout: Layout, path: Path) -> None:
    """Write random numbers as the tensors of a layout."""
    random = np.random.default_rng(1)

    def pull(info: TensorInfo) -> Iterator[bytes]:
        for start in range(0, info.size, STEP):
            yield numbers(random, info, min(STEP, info.size - start))

    with path.open("wb") as file:
        write_in_order(layout, file, pull)  # type: ignore[arg-type]


def size_for(nbytes: int) -> tuple[int, int]:
    """Return the layers of a model of roughly so many bytes, and their width."""
    # 67 million weights are those of a layer, and of the embedding of each.
    layers = max(1, min(16, nbytes // (2 * 67_000_000)))
    return layers, 2048 if nbytes >= 2 * 67_000_000 else 512


def described(layers: int, width: int, vocabulary: int) -> list[TensorInfo]:
    """Return the tensors; the output is tied to the embedding, as in models of this size."""
    bf16, f32 = ENCODINGS["BF16"], ENCODINGS["F32"]
    kv, hidden = width * KV_HEADS // HEADS, 4 * width
    found = [TensorInfo("token_embd.weight", (vocabulary, width), bf16)]
    for layer in range(layers):
        shapes = {
            "attn_norm": (width,),
            "attn_q": (width, width),
            "attn_k": (kv, width),
            "attn_v": (kv, width),
            "attn_output": (width, width),
            "ffn_norm": (width,),
            "ffn_gate": (hidden, width),
            "ffn_up": (hidden, width),
            "ffn_down": (width, hidden),
        }
        found += [
            TensorInfo(f"blk.{layer}.{name}.weight", shape, f32 if len(shape) == 1 else bf16)
            for name, shape in shapes.items()
        ]
    return [*found, TensorInfo("output_norm.weight", (width,), f32)]


def stated(layers: int, width: int, vocabulary: int) -> dict[str, MetadataValue]:
    """Return the metadata that says how the tensors are put together."""
    counts = {
        "block_count": layers,
        "context_length": 8192,
        "embedding_length": width,
        "feed_forward_length": 4 * width,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "rope.dimension_count": width // HEADS,
        "vocab_size": vocabulary,
    }
    return {
        "general.architecture": MetadataValue("string", "llama"),
        "general.name": MetadataValue("string", "generated"),
        "llama.attention.layer_norm_rms_epsilon": MetadataValue("f32", 1e-5),
        **{f"llama.{key}": MetadataValue("u32", count) for key, count in counts.items()},
    }


def numbers(random: np.random.Generator, info: TensorInfo, count: int) -> bytes:
    """Return random numbers of a tensor; one in 100,000 is an outlier."""
    values = random.standard_normal(count, np.float32) * np.float32(0.02)
    values[random.integers(0, count, count // 100_000)] *= 50
    if info.encoding.name == "F32":
        return (1 + values).tobytes()
    return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
