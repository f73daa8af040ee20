"""Tensors of two checkpoints are paired across naming conventions, without reading data."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest

from arrays import stored
from weightctl.cli import app
from weightctl.verify import Subject
from weightctl.verify.compare.pairing import convert_convention
from weightctl.verify.compare.pairs import pair_tensors
from weightctl.weights.steps.numbers import numbers_of

if TYPE_CHECKING:
    from pathlib import Path

    from weightctl.verify.compare.pairing import Pairing


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path) -> Path:
    out = tmp_path_factory.mktemp("pairing") / "tiny.gguf"
    assert not app(["convert", str(tiny_llama), str(out), "-q"], standalone_mode=False)
    return out


def pairing(one: Path, other: Path) -> Pairing:
    return pair_tensors(Subject(one), Subject(other))


def test_every_tensor_of_a_conversion_has_its_pair(gguf: Path, tiny_llama: Path) -> None:
    found = pairing(gguf, tiny_llama)
    assert len(found.pairs) == len(Subject(tiny_llama).weights.header.tensors)
    assert not found.missing
    assert not found.unexpected
    assert found.how == ("by the tensor names of llama in GGUF and in Hugging Face")


def test_rows_that_a_convention_permutes_are_in_one_order(gguf: Path, tiny_llama: Path) -> None:
    pair = pairing(gguf, tiny_llama).by_module["layers.1.attention.q.weight"]
    assert (pair.name, pair.reference_name) == (
        "blk.1.attn_q.weight",
        "model.layers.1.self_attn.q_proj.weight",
    )
    assert (pair.part, pair.layer) == ("attention.q.weight", 1)
    assert np.array_equal(numbers_of(pair.tensor), numbers_of(pair.reference))


def test_a_tensor_goes_to_the_other_convention_and_back(tiny_llama: Path) -> None:
    model = Subject(tiny_llama).checkpoint
    assert model is not None
    names = next(
        each
        for each in model.family.tensors(model.config)
        if each.module.endswith("attention.k.weight")
    )
    tensor = model.tensors[names.module]
    there = convert_convention(names, tensor, model, "gguf")
    assert convert_convention(names, tensor, model, "hugging_face") is tensor
    assert not np.array_equal(numbers_of(there), numbers_of(tensor))


def test_a_file_without_a_config_is_paired_as_the_family_of_the_other(
    tmp_path: Path, gguf: Path, tiny_llama: Path
) -> None:
    shutil.copy(tiny_llama / "model.safetensors", tmp_path)
    found = pairing(tmp_path / "model.safetensors", gguf)
    assert not found.missing
    assert len(found.pairs) == len(Subject(gguf).weights.header.tensors)


def test_checkpoints_of_no_family_are_paired_by_equal_names(tmp_path: Path) -> None:
    ones = np.ones((4, 4), np.float32)
    one = stored(tmp_path / "one.safetensors", **{"h.3.a": ones, "b": ones})
    other = stored(tmp_path / "other.safetensors", **{"h.3.a": ones, "c": ones})
    found = pairing(one, other)
    assert [(pair.name, pair.part, pair.layer) for pair in found.pairs] == [("h.3.a", "a", 3)]
    assert (found.missing, found.unexpected) == (["c"], ["b"])


def test_heads_are_the_references_where_the_configs_differ(
    tmp_path: Path, gguf: Path, tiny_llama: Path
) -> None:
    wrong = shutil.copytree(tiny_llama, tmp_path / "wrong")
    config = json.loads((wrong / "config.json").read_text())
    config["num_attention_heads"] //= 2
    config["num_key_value_heads"] //= 2
    config.pop("head_dim", None)
    (wrong / "config.json").write_text(json.dumps(config))
    pair = pairing(wrong, gguf).by_module["layers.0.attention.q.weight"]
    assert np.array_equal(numbers_of(pair.tensor), numbers_of(pair.reference))
