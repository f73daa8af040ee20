"""Selection of a part of a checkpoint."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from build import safetensors_of
from conftest import ROOT
from weightctl import Plan, open_weights
from weightctl.errors import ConversionError
from weightctl.plan.arrangement import select
from weightctl.write.save import save

if TYPE_CHECKING:
    from pathlib import Path

    from weightctl import Weights


@pytest.fixture
def tied(tmp_path: Path) -> Weights:
    """Two names for the embedding, and a norm."""
    path = tmp_path / "in.safetensors"
    raw = {"embed": ("F32", (2,), b"12345678"), "norm": ("F32", (1,), b"abcd")}
    path.write_bytes(safetensors_of(raw, {"head": "embed", "tail": "embed", "format": "pt"}))
    return open_weights(path)


def saved(weights: Weights, path: Path, *include: str, exclude: tuple[str, ...] = ()) -> Weights:
    save(select(Plan.copy(weights, "safetensors"), include, exclude), path)
    return open_weights(path)


def test_what_is_not_chosen_is_left_out(tied: Weights, tmp_path: Path) -> None:
    out = saved(tied, tmp_path / "out.safetensors", "*", exclude=("norm",))
    assert list(out.header.tensors) == ["embed"]
    assert out.header.aliases == {"head": "embed", "tail": "embed"}


def test_a_tied_name_without_its_tensor_becomes_the_tensor(tied: Weights, tmp_path: Path) -> None:
    out = saved(tied, tmp_path / "out.safetensors", exclude=("embed",))
    assert list(out.header.tensors) == ["head", "norm"]
    assert out.header.aliases == {"tail": "head"}
    assert bytes(out["head"].data().view()) == b"12345678"


def test_a_tied_name_can_be_left_out(tied: Weights, tmp_path: Path) -> None:
    out = saved(tied, tmp_path / "out.safetensors", exclude=("head",))
    assert out.header.aliases == {"tail": "embed"}
    assert "head" not in out.metadata


def test_the_record_of_nesting_covers_only_what_is_chosen(tmp_path: Path) -> None:
    training = open_weights(ROOT / "fixtures" / "training.pt")
    out = saved(training, tmp_path / "out.safetensors", "model.*", "epoch")
    levels = json.loads(out.metadata["pytorch.levels"].content)
    assert levels == {"model": "dict", "model._metadata": "_metadata", "epoch": "int"}
    out = saved(training, tmp_path / "other.safetensors", exclude=("model.*", "*.param_groups.*"))
    assert not [name for name in out.metadata if "model" in name or "param_groups" in name]
    assert "param_groups" not in out.metadata["pytorch.levels"].content


def test_a_branch_can_be_copied_alone(tiny_llama: Path, tmp_path: Path) -> None:
    save(Plan.copy(open_weights(tiny_llama).model.layers[1], "gguf"), tmp_path / "out.gguf")
    names = open_weights(tmp_path / "out.gguf").header.tensors
    assert len(names) == 9
    assert all(name.startswith("model.layers.1.") for name in names)


@pytest.mark.parametrize(
    ("include", "exclude", "says"),
    [
        (["nrm"], [], "no tensor matches `nrm`"),
        (["norm"], ["nothing.*"], r"no tensor matches `nothing\.\*`"),
        (["norm"], ["n*"], "no tensor is left"),
    ],
)
def test_a_choice_of_nothing_is_refused(
    tied: Weights, include: list[str], exclude: list[str], says: str
) -> None:
    with pytest.raises(ConversionError, match=says) as caught:
        select(Plan.copy(tied, "gguf"), include, exclude)
    assert caught.value.hint
