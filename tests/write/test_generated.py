"""Tensors of a generator are saved one after the other."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import weightctl
from each import each
from lazy import torch
from weightctl.errors import ConversionError, OutputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ARRAYS = {f"layers.{n}.weight": np.full((3, 64), n, np.float32) for n in range(3)}


@each("name", ["a.safetensors", "a.gguf", "a.pt", "a/"])
def test_generated_tensors_are_saved_as_a_mapping_is(name: str, tmp_path: Path) -> None:
    weightctl.save(iter(ARRAYS.items()), os.path.join(tmp_path, name))
    for key, node in weightctl.open_weights(tmp_path / name.rstrip("/")).items():
        assert np.array_equal(np.asarray(node), ARRAYS[key])
    assert [each.name for each in tmp_path.iterdir()] == [name.rstrip("/")]


def test_only_one_tensor_is_in_memory(tmp_path: Path) -> None:
    made: list[weakref.ref[Any]] = []

    def make() -> Iterator[tuple[str, Any]]:
        for name, array in ARRAYS.items():
            copy = array.copy()
            made.append(weakref.ref(copy))
            yield name, copy
            del copy
            assert sum(each() is not None for each in made) <= 1

    weightctl.save(make(), tmp_path / "a.safetensors")
    assert len(made) == len(ARRAYS)


def test_tensors_of_torch_and_blocks_are_taken(tmp_path: Path) -> None:
    weightctl.save({"a.weight": ARRAYS["layers.1.weight"]}, tmp_path / "a.gguf")
    weightctl.convert(tmp_path / "a.gguf", tmp_path / "q.gguf", quant="Q8_0")
    blocks = weightctl.open_weights(tmp_path / "q.gguf")["a.weight"].data()
    half = torch.ones(2, 32, dtype=torch.bfloat16)
    weightctl.save(iter([("q.weight", blocks), ("half", half)]), tmp_path / "b.gguf")
    saved = weightctl.open_weights(tmp_path / "b.gguf")
    assert saved.half.info.encoding.name == "BF16"
    assert np.array_equal(saved.q.weight.data().blocks, blocks.blocks)


@each(
    "given, says",
    [
        ([("a", ARRAYS["layers.0.weight"])] * 2, "two tensors with the name `a`"),
        ([3], "the generator has a int, not a pair"),
        ([("a", "text")], "`a` cannot be used"),
        ([(3, ARRAYS["layers.0.weight"])], "3 is not a tensor name"),
    ],
)
def test_other_values_are_refused(given: list[Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=says):
        weightctl.save(iter(given), tmp_path / "a.safetensors")
    assert not [*tmp_path.iterdir()]


def test_nothing_is_generated_if_the_output_cannot_be_written(tmp_path: Path) -> None:
    def make() -> Iterator[tuple[str, Any]]:
        pytest.fail("a tensor was generated")
        yield "a", ARRAYS["layers.0.weight"]

    (tmp_path / "a.safetensors").touch()
    with pytest.raises(OutputError, match="exists"):
        weightctl.save(make(), tmp_path / "a.safetensors")
    with pytest.raises(OutputError):
        weightctl.save(make(), tmp_path / "none" / "a.safetensors")
