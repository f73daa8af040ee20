"""GGUF files with queries, keys and values in one tensor, as llama.cpp's converter can write."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors.numpy import load_file

from family_cases import make_checkpoint
from llama_cpp import ask
from weightctl import WeightData, convert, open_weights, save
from weightctl.weights.from_arrays import as_checkpoint
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from pathlib import Path


def fuse(source: Path, into: Path) -> int:
    """Join the queries, keys and values of layers that have all three; return their number."""
    tree = open_weights(source)
    arrays = {name: node.data().to_numpy() for name, node in tree.items()}
    count = 0
    for name in [each for each in arrays if re.fullmatch(r"blk\.\d+\.attn_v\.(weight|bias)", each)]:
        parts = [name.replace("attn_v", f"attn_{part}") for part in "qkv"]
        if all(part in arrays for part in parts):
            joined = np.concatenate([arrays.pop(part) for part in parts])
            arrays[name.replace("attn_v", "attn_qkv")] = joined
            count += 1
    given = {name: WeightData.from_numpy(array, name) for name, array in arrays.items()}
    save(as_checkpoint(given, header_of(tree).metadata), into)
    return count


@pytest.mark.parametrize(
    ("name", "count"),
    [("gemma4", 4), ("gemma4-experts", 2), ("gpt_oss", 6), ("gemma3n-shared", 22)],
)
def test_a_file_with_fused_queries_is_the_same_model(
    name: str, count: int, crossed: Path, tmp_path: Path
) -> None:
    path = make_checkpoint(name, crossed).path
    apart, fused = tmp_path / "apart.gguf", tmp_path / "fused.gguf"
    convert(path, apart, dtype="f32")
    assert fuse(apart, fused) == count
    for file in (apart, fused):
        convert(file, file.with_suffix(""))
    found, expected = (load_file(each.with_suffix("") / "model.safetensors")
                       for each in (fused, apart))  # fmt: skip
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[key], array) for key, array in expected.items())


@pytest.mark.long
def test_llama_cpp_reads_the_fused_file_of_gemma_4_in_the_same_way(
    crossed: Path, tmp_path: Path
) -> None:
    made = make_checkpoint("gemma4", crossed)
    apart, fused = tmp_path / "apart.gguf", tmp_path / "fused.gguf"
    convert(made.path, apart, dtype="f32")
    fuse(apart, fused)
    found, expected = (
        ask(path, ("logits", made.tokens), context=512)[0] for path in (fused, apart)
    )
    assert np.abs(found - expected).max() < 1e-4
