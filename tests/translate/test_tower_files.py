"""What `convert --mmproj` writes, says and refuses."""

from __future__ import annotations

import json
import re
from importlib.resources import files as files_of
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator

from lazy import load_file, save_file
from multimodal import change_vision, make_multimodal
from once import once, shared
from weightctl import convert, open_weights
from weightctl.errors import ArchitectureError, ConversionError, OutputError, WeightctlError
from weightctl.families.towers import TOWERS
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from subprocess import CompletedProcess

NOTE = "the image encoder and its projection"
VISION = "vision_tower."


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Gemma 3."""
    path = shared(tmp_path_factory) / "towers" / "gemma3"
    return once(path, lambda half: make_multimodal("gemma3", half))


@pytest.fixture(scope="session")
def files(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Its text model and its tower, as GGUF."""
    directory = tmp_path_factory.mktemp("files")
    text, tower = directory / "model.gguf", directory / "mmproj.gguf"
    convert(model, text, mmproj=tower)
    return text, tower


def test_the_tower_alone_is_the_file_that_both_at_once_give(
    model: Path, files: tuple[Path, Path], tmp_path: Path
) -> None:
    convert(model, mmproj=tmp_path / "mmproj.gguf")
    assert (tmp_path / "mmproj.gguf").read_bytes() == files[1].read_bytes()


def test_the_text_model_is_the_same_without_the_tower_and_a_note_names_the_option(
    model: Path, files: tuple[Path, Path], tmp_path: Path
) -> None:
    alone = convert(model, tmp_path / "model.gguf")
    (note,) = (each for each in alone.notes if NOTE in each)
    assert "--mmproj FILE (mmproj=FILE in Python)" in note
    assert (tmp_path / "model.gguf").read_bytes() == files[0].read_bytes()
    both = convert(model, tmp_path / "other.gguf", mmproj=tmp_path / "m.gguf", dry_run=True)
    assert not any(NOTE in each for each in both.notes)
    assert not list(tmp_path.glob("m.gguf"))


def test_the_command_reports_both_files(
    model: Path, tmp_path: Path, weightctl: Callable[..., CompletedProcess[str]]
) -> None:
    out, tower = tmp_path / "model.gguf", tmp_path / "mmproj.gguf"
    done = weightctl("convert", model, out, "--mmproj", tower, "--quant", "Q8_0", "--json")
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    schema = files_of("weightctl") / "schemas" / "convert.json"
    Draft202012Validator(json.loads(schema.read_text())).validate(made)
    assert made["recipe"] == "Q8_0"
    assert made["mmproj"]["output"] == str(tower)
    assert made["mmproj"]["written"]
    assert {each["to"] for each in made["mmproj"]["tensors"]} == {"BF16", "F32"}
    assert "gemma3" in weightctl("ls", tower).stdout.lower()


def test_nothing_is_written_if_one_of_the_files_exists(model: Path, tmp_path: Path) -> None:
    out, tower = tmp_path / "model.gguf", tmp_path / "mmproj.gguf"
    tower.write_text("mine")
    with pytest.raises(OutputError, match=re.escape("mmproj.gguf")):
        convert(model, out, mmproj=tower)
    assert not out.exists()
    assert tower.read_text() == "mine"


def test_a_dtype_applies_to_both_files_and_vectors_stay_float32(
    model: Path, tmp_path: Path
) -> None:
    made = convert(model, tmp_path / "t.gguf", mmproj=tmp_path / "m.gguf", dtype="f16")
    assert made.beside is not None
    for each in made.outputs:
        types = {item.info.name: item.info.encoding.name for item in each.plan.items}
        assert set(types.values()) == {"F16", "F32"}
    assert types["v.blk.0.attn_q.weight"] == "F16"
    # llama.cpp transposes it while it runs, which it cannot do with all types.
    assert types["mm.input_projection.weight"] == "F32"


@pytest.mark.parametrize("type_name", ["FP8", "W4A16:group=32"])
def test_a_type_of_engines_leaves_the_tower_as_it_is(
    type_name: str, model: Path, tmp_path: Path
) -> None:
    made = convert(model, tmp_path / "q", quant=type_name, dry_run=True)
    quantized = {item.weight for item in made.plan.items if item.weight}
    assert quantized
    assert not any(name.startswith((VISION, "multi_modal_projector.")) for name in quantized)


def test_a_missing_image_processor_is_said(model: Path, tmp_path: Path) -> None:
    copy = change_vision(model, tmp_path / "model")
    (copy / "preprocessor_config.json").unlink()
    made = convert(copy, mmproj=tmp_path / "m.gguf", dry_run=True)
    assert any("preprocessor_config.json is missing" in note for note in made.notes)
    assert made.plan.metadata["clip.vision.image_mean"].content == [0.5, 0.5, 0.5]


def test_the_pooling_of_siglip_is_left_out_with_a_note(model: Path, tmp_path: Path) -> None:
    copy = change_vision(model, tmp_path / "model", vision_use_head=True)
    tensors = load_file(copy / "model.safetensors")
    tensors["vision_tower.head.probe"] = next(iter(tensors.values()))[:1, :1].clone()
    save_file(tensors, copy / "model.safetensors", {"format": "pt"})
    made = convert(copy, mmproj=tmp_path / "m.gguf", dry_run=True)
    assert any("vision_tower.head.probe" in note for note in made.notes)


def test_a_file_of_an_older_converter_is_read(
    files: tuple[Path, Path], model: Path, tmp_path: Path
) -> None:
    """It has the names of the two matrices of an MLP swapped."""
    old, out = tmp_path / "old.gguf", tmp_path / "out"
    convert(files[1], old, rename={"ffn_up": "ffn_down", "ffn_down": "ffn_up"})
    assert header_of(open_weights(old)).tensors["v.blk.0.ffn_down.weight"].shape == (64, 32)
    convert(files[0], out, mmproj=old)
    name = "encoder.layers.0.mlp.fc1.weight"
    found = load_file(out / "model.safetensors")[f"vision_tower.vision_model.{name}"]
    assert found.equal(load_file(model / "model.safetensors")[f"vision_tower.{name}"])


def refused(error: type[WeightctlError], text: str, *arguments: Any, **options: Any) -> None:
    with pytest.raises(error, match=re.escape(text)):
        convert(*arguments, **options)


def test_the_tower_of_another_model_is_refused(files: tuple[Path, Path], tmp_path: Path) -> None:
    text, tower = files
    out = tmp_path / "out"
    wrong = tmp_path / "wrong.gguf"
    convert(tower, wrong, metadata={"clip.vision.projection_dim": 64})
    refused(ArchitectureError, "belongs to another model", text, out, mmproj=wrong)
    convert(tower, wrong, metadata={"clip.projector_type": "llama4"}, force=True)
    refused(ArchitectureError, "cannot be beside a text model", text, out, mmproj=wrong)
    convert(tower, wrong, metadata={"clip.projector_type": "nothing"}, force=True)
    refused(ArchitectureError, "is `'nothing'`, a tower that", text, out, mmproj=wrong)
    convert(tower, wrong, unset="clip.projector_type", force=True)
    refused(ArchitectureError, "is missing, a tower that", text, out, mmproj=wrong)
    refused(ArchitectureError, "is not an mmproj file", text, out, mmproj=text)
    refused(WeightctlError, "No such file", text, out, mmproj=tmp_path / "none.gguf")
    convert(tower, wrong, metadata={"clip.vision.block_count": 4}, force=True)
    refused(ArchitectureError, "v.blk.3.ln1.weight", text, out, mmproj=wrong)
    convert(tower, wrong, exclude="v.post_ln.*", force=True)
    refused(ArchitectureError, "v.post_ln.weight", text, out, mmproj=wrong)
    assert not out.exists()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"image_size": 57}, "not a multiple of the patch size"),
        ({"image_size": [56, 56]}, "must be an integer"),
        ({"hidden_size": 64}, "instead of [64]"),
        ({"hidden_act": "relu"}, "it must be one of `gelu_pytorch_tanh`"),
        ({"num_channels": 1}, "3 channels"),
        ({"model_type": "clip_vision_model"}, "`siglip_vision_model`"),
        ({"num_hidden_layers": 2**40}, "must be an integer from 1 to"),
        ({"num_hidden_layers": 9999}, "states 9,999 layers"),
        ({"num_hidden_layers": 4}, "is missing"),
        ({"patch_size": 0}, "must be an integer from 1 to"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(
    changes: dict[str, Any], text: str, model: Path, tmp_path: Path
) -> None:
    copy = change_vision(model, tmp_path / "model", **changes)
    refused(ArchitectureError, text, copy, mmproj=tmp_path / "m.gguf")


def test_places_and_directions_that_make_no_sense_are_refused(
    model: Path, files: tuple[Path, Path], tmp_path: Path
) -> None:
    text, tower = files
    new, out = tmp_path / "new.gguf", tmp_path / "out.gguf"
    refused(ConversionError, "OUT is missing", model)
    refused(ConversionError, "both the output and the file", model, out, mmproj=out)
    refused(ConversionError, "cannot be stored as safetensors", model,
            mmproj=tmp_path / "m.safetensors")  # fmt: skip
    refused(ConversionError, "not a GGUF file", model, tmp_path / "dir", mmproj=new)
    refused(ConversionError, "keeps GGUF's names", text, out, mmproj=tower)
    refused(ConversionError, "is not one", tower, mmproj=new)
    refused(ConversionError, "is not one", text, mmproj=new)
    with pytest.raises(ArchitectureError) as caught:
        convert(tower, tmp_path / "dir")
    assert "this is an mmproj file" in caught.value.hint


def test_a_model_without_a_tower_is_refused(model: Path, tmp_path: Path) -> None:
    copy = change_vision(model, tmp_path / "model")
    convert(model, copy / "model.safetensors", include="language_model*", force=True)
    refused(ArchitectureError, "no tensors of a tower", copy, mmproj=tmp_path / "m.gguf")
    document = json.loads((copy / "config.json").read_text())["text_config"]
    (copy / "config.json").write_text(json.dumps(document))
    refused(ArchitectureError, "gemma3_text", copy, mmproj=tmp_path / "m.gguf")


def test_the_token_of_a_row_is_needed(tmp_path: Path) -> None:
    make_multimodal("llava", tmp_path / "model")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "model" / name).write_text("{}")
    refused(ArchitectureError, "[IMG_BREAK]", tmp_path / "model", mmproj=tmp_path / "m.gguf")


@pytest.mark.parametrize("name", TOWERS)
def test_towers_of_the_table_are_loaded(name: str) -> None:
    tower = TOWERS[name].load()
    assert tuple(tower.family.model_types) == TOWERS[name].model_types
    (projector,) = (key for key in tower.family.keys if key.field == "projector")
    assert projector.gguf_default == name


def test_the_documentation_lists_the_towers() -> None:
    page = (Path(__file__).parents[2] / "docs" / "families.md").read_text()
    for name, line in TOWERS.items():
        cells = ([name], line.model_types, line.load().texts)
        row = " | ".join(", ".join(f"`{each}`" for each in cell) for cell in cells)
        assert f"| {row} |" in page


def test_an_mmproj_file_is_quantized_on_its_own(files: tuple[Path, Path], tmp_path: Path) -> None:
    convert(files[1], tmp_path / "q8.gguf", quant="Q8_0")
    tensors = header_of(open_weights(tmp_path / "q8.gguf")).tensors
    types = {name: info.encoding.name for name, info in tensors.items()}
    assert types["v.blk.0.attn_q.weight"] == "Q8_0"
    assert types["v.patch_embd.weight"] == types["mm.input_projection.weight"] == "F32"
