"""Parts of a model are left out of a copy, whatever its family, and its config then says so."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from weightctl import convert, open_weights
from weightctl.errors import ConversionError
from weightctl.plan.plan import Plan

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("model.layers.0.mlp.up_proj.weight", "mtp.fc.weight", "mtp.layers.0.mlp.up_proj.weight")
TEXT = {"num_hidden_layers": 1, "mtp_num_hidden_layers": 1}


def make_model(directory: Path, config: dict[str, Any]) -> Path:
    directory.mkdir()
    tensors = {name: np.full((4, 4), number, np.float32) for number, name in enumerate(NAMES)}
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    (directory / "config.json").write_text(json.dumps({"model_type": "unknown", **config}))
    return directory


@pytest.mark.parametrize("below", ["", "text_config"])
def test_a_copy_of_an_unknown_family_has_no_layers_for_mtp(below: str, tmp_path: Path) -> None:
    stated: dict[str, Any] = {below: TEXT} if below else TEXT
    source = make_model(tmp_path / "model", {**stated, "other": 1})
    made = convert(source, tmp_path / "out", without="mtp")
    (note,) = made.notes
    assert note.endswith("1 layer for multi-token prediction (MTP), 2 tensors")
    assert load_file(tmp_path / "out" / "model.safetensors").keys() == {NAMES[0]}
    found = json.loads((tmp_path / "out" / "config.json").read_text())
    assert found["other"] == 1
    assert (found[below] if below else found)["mtp_num_hidden_layers"] == 0


def test_without_the_option_they_are_copied(tmp_path: Path) -> None:
    source = make_model(tmp_path / "model", TEXT)
    convert(source, tmp_path / "out")
    assert load_file(tmp_path / "out" / "model.safetensors").keys() == {*NAMES}
    assert json.loads((tmp_path / "out" / "config.json").read_text())["mtp_num_hidden_layers"] == 1


def test_a_model_without_such_layers_is_copied_with_a_note(
    tiny_llama: Path, tmp_path: Path
) -> None:
    made = convert(tiny_llama, tmp_path / "out", without="mtp")
    assert "there are no layers for multi-token prediction (MTP) to leave out" in made.notes
    stored = (tiny_llama / "config.json").read_bytes()
    assert (tmp_path / "out" / "config.json").read_bytes() == stored


def test_a_part_that_does_not_exist_is_refused(tiny_llama: Path, tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="without cannot be 'vision'") as caught:
        convert(tiny_llama, tmp_path / "out", without="vision")
    assert caught.value.hint == "choices: mtp, main"
    plan = Plan.copy(open_weights(tiny_llama), "safetensors")
    with pytest.raises(ConversionError, match="without, partial and mmproj do not apply"):
        convert(plan, tmp_path / "out.safetensors", without="mtp")
