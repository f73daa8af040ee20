"""Translation of whole models to another naming convention, in Python."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import small_models
from weightctl import open_weights, recognize, save
from weightctl.dtype import ENCODINGS
from weightctl.errors import ArchitectureError
from weightctl.plan.cast import cast
from weightctl.translate import translate

if TYPE_CHECKING:
    from pathlib import Path

    from weightctl.translate import Translation

README = "---\nlicense: mit\n---\n"


@pytest.fixture
def directory(tiny_llama: Path, tmp_path: Path) -> Path:
    """Return a model directory that can be changed."""
    made = tmp_path / "model"
    shutil.copytree(tiny_llama, made)
    return made


def in_gguf(directory: Path) -> Translation:
    return translate(recognize(open_weights(directory)), "gguf")


def test_a_model_goes_into_a_gguf_and_back(directory: Path, tmp_path: Path) -> None:
    path, back = tmp_path / "model.gguf", tmp_path / "back"
    save(in_gguf(directory).plan("gguf"), path)
    returned = translate(recognize(open_weights(path)), "hugging_face")
    save(cast(returned.plan("safetensors"), ENCODINGS["BF16"]), back)
    assert json.loads((back / "config.json").read_text())["model_type"] == "llama"
    assert (back / "tokenizer.json").exists()
    found, expected = open_weights(back), open_weights(directory)
    assert dict(found.items()).keys() == dict(expected.items()).keys()


@pytest.mark.parametrize("name", ["model.gguf", "model"])
def test_a_model_in_the_convention_that_it_has_stays_as_it_is(
    directory: Path, tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    if name.endswith(".gguf"):
        save(in_gguf(directory).plan("gguf"), path)
    checkpoint = recognize(open_weights(path))
    made = translate(checkpoint, checkpoint.convention)
    assert made.weights is checkpoint.tree
    assert (made.documents, made.notes, made.text) == ({}, (), "")


def test_what_is_not_a_convention_is_refused_with_those_that_are(tiny_llama: Path) -> None:
    checkpoint = recognize(open_weights(tiny_llama))
    convention: Any = "hf"
    with pytest.raises(ArchitectureError, match="`hf` is not a naming convention") as caught:
        translate(checkpoint, convention)
    assert "gguf, hugging_face" in caught.value.hint


def test_a_readme_that_cannot_be_read_is_reported(directory: Path) -> None:
    (directory / "README.md").write_text(README.replace("mit", "[mit"))
    notes = in_gguf(directory).notes
    assert any("README.md has front matter that is not valid YAML" in note for note in notes)


def test_a_model_whose_name_does_not_say_so_is_as_large_as_its_tensors(directory: Path) -> None:
    weights = in_gguf(directory).weights
    assert 1_900_000 < sum(node.info.size for _, node in weights.items()) < 1_950_000
    assert weights.metadata["general.size_label"].content == "1.9M"


def test_a_mixture_is_as_large_as_one_of_its_experts_and_what_they_share(tmp_path: Path) -> None:
    model = small_models.mixtral()
    model.save_pretrained(tmp_path / "model")
    label = in_gguf(tmp_path / "model").weights.metadata["general.size_label"].content
    assert label.startswith(f"{model.config.num_local_experts}x")


def test_pooling_that_cannot_be_read_is_not_left_out(directory: Path) -> None:
    (directory / "modules.json").write_text("[")
    with pytest.raises(ArchitectureError, match=r"modules\.json: the file is not valid JSON"):
        in_gguf(directory)


def test_what_is_not_translated_loads_no_tokenizers() -> None:
    program = (
        "import sys, weightctl.translate.plans\n"
        "sys.exit('weightctl.translate.tokenizer' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
