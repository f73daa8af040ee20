"""What a model's metadata says of it."""

from __future__ import annotations

from typing import Any

import pytest

from weightctl.families.model import DescribedModel
from weightctl.weights.metadata import MetadataValue


def model(
    architecture: str = "llama", names: tuple[str, ...] = (), **values: Any
) -> DescribedModel:
    metadata = {"general.architecture": MetadataValue("string", architecture)}
    for key, content in values.items():
        metadata[f"{architecture}.{key.replace('__', '.')}"] = MetadataValue("u32", content)
    return DescribedModel.of(metadata, names)


def test_heads_that_share_keys_and_values_are_counted() -> None:
    assert model(attention__head_count=32, attention__head_count_kv=8).group == 4


def test_without_a_count_of_its_own_each_head_has_its_keys() -> None:
    assert model(attention__head_count=32).group == 1


def test_counts_by_layer_are_those_of_the_first() -> None:
    assert model(attention__head_count=[32, 32], attention__head_count_kv=[8, 0]).group == 4
    assert model(attention__head_count=[32], attention__head_count_kv=[0]).group == 0


def test_names_count_the_layers_where_no_value_does() -> None:
    assert model(block_count=7).layers == 7
    assert model(names=("output.weight", "blk.2.attn_q.weight")).layers == 3


def test_values_of_no_sense_count_as_absent() -> None:
    assert model(block_count="many", expert_count=-8, attention__head_count=[]) == DescribedModel(
        "llama", 1, 0, 0, is_70b=False
    )


@pytest.mark.parametrize(
    ("architecture", "layers", "shared", "expected"),
    [("llama", 80, 8, True), ("llama", 80, 64, False), ("llama", 79, 8, False),
     ("qwen2", 80, 64, True), ("jais2", 68, 64, True), ("qwen3", 80, 8, False)],
)  # fmt: skip
def test_what_llama_cpp_takes_for_a_model_of_70_billion(
    architecture: str, layers: int, shared: int, expected: bool
) -> None:
    found = model(
        architecture, block_count=layers, attention__head_count=64, attention__head_count_kv=shared
    )
    assert found.is_70b is expected
