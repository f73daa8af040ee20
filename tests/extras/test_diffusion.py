"""Diffusion transformers between diffusers' directories, original files and GGUF."""

from __future__ import annotations

import json
from shutil import copytree
from typing import TYPE_CHECKING, Any

import gguf
import pytest

import weightctl
from diffusion_models import MODELS, convert_original, load_directory, load_gguf, run
from each import usual
from lazy import load_file, save_file, torch
from weightctl.errors import ArchitectureError
from weightctl.verify.checking import verify_request
from weightctl.verify.request import Request
from weightctl.verify.subject import Subject

if TYPE_CHECKING:
    from pathlib import Path

# The first model of each family is tested always, the others in the long tests.
FAMILIES = [pytest.param(name, marks=pytest.mark.long) if "-" in name else name for name in MODELS]
WEIGHTS = "diffusion_pytorch_model.safetensors"
# What the names of the layers begin with in original files.
LAYERS = {
    "flux": {"double_blocks", "single_blocks"},
    "sd3": {"joint_blocks"},
    "qwen_image": {"transformer_blocks"},
    "wan": {"blocks"},
}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def original(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that diffusers wrote, and, beside it, the files that weightctl made of it."""
    place = tmp_path_factory.mktemp(family)
    MODELS[family].save(place / "model")
    weightctl.convert(place / "model", place / "single.safetensors", names="gguf")
    weightctl.convert(place / "model", place / "model.gguf")
    return place


def tensors(directory: Path) -> dict[str, torch.Tensor]:
    return load_file(directory / WEIGHTS)


def config(directory: Path) -> dict[str, Any]:
    return dict(json.loads((directory / "config.json").read_text()))


def assert_equal(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name].dtype == value.dtype, name
        assert torch.equal(found[name], value), name


def test_diffusers_converts_the_original_file_to_the_same_tensors(
    family: str, original: Path
) -> None:
    found = convert_original(family, original / "single.safetensors")
    assert_equal(found, tensors(original / "model"))


@pytest.mark.parametrize("source", ["single.safetensors", "model.gguf"])
def test_the_directory_from_another_file_is_the_same(
    family: str, source: str, original: Path, tmp_path: Path
) -> None:
    weightctl.convert(original / source, tmp_path / "back")
    assert_equal(tensors(tmp_path / "back"), tensors(original / "model"))
    assert config(tmp_path / "back") == config(original / "model")
    wanted = run(family, load_directory(family, original / "model"))
    assert torch.equal(run(family, load_directory(family, tmp_path / "back")), wanted)


def test_the_config_follows_from_the_shapes(family: str, original: Path, tmp_path: Path) -> None:
    weightctl.convert(original / "model.gguf", tmp_path / "plain.gguf", unset=["diffusers.config"])
    weightctl.convert(tmp_path / "plain.gguf", tmp_path / "back")
    known = load_directory(family, original / "model").config
    found = load_directory(family, tmp_path / "back").config
    differing = {key for key in known if key[0] != "_" and found[key] != known[key]}
    assert differing <= {"out_channels"}, differing


def test_the_gguf_file_has_the_original_names_and_only_matrices_in_16_bits(
    family: str, original: Path
) -> None:
    reader = gguf.GGUFReader(original / "model.gguf")
    single = load_file(original / "single.safetensors")
    assert reader.get_field("general.architecture").contents() == family.partition("-")[0]
    found = {each.name: each for each in reader.tensors}
    assert found.keys() == single.keys()
    for name, value in single.items():
        assert tuple(reversed(found[name].shape.tolist())) == tuple(value.shape), name
        is_small = value.ndim != 2 or value.numel() <= 1024
        assert not is_small or found[name].tensor_type.name == "F32", name


@pytest.mark.parametrize("quant", usual(["Q4_K_M"], ["Q8_0", "Q4_K_M"]))
def test_diffusers_runs_the_quantized_gguf_file(
    family: str, quant: str, original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weightctl.convert(original / "model", tmp_path / "small.gguf", quant=quant)
    weightctl.convert(tmp_path / "small.gguf", tmp_path / "wide", dtype="f32")
    loaded = load_gguf(family, tmp_path / "small.gguf", original / "model", monkeypatch)
    wanted = run(family, load_directory(family, tmp_path / "wide"))
    # diffusers computes the values of blocks in float16.
    assert torch.allclose(run(family, loaded), wanted, atol=1e-2)


def test_tensors_that_embed_inputs_or_make_outputs_are_not_quantized(
    family: str, original: Path, tmp_path: Path
) -> None:
    weightctl.convert(original / "model.gguf", tmp_path / "small.gguf", quant="Q4_K_M")
    types = {
        each.name: each.tensor_type.name
        for each in gguf.GGUFReader(tmp_path / "small.gguf").tensors
    }
    kept = {name.split(".")[0] for name, kind in types.items() if kind in {"BF16", "F32"}}
    rounded = {name.split(".")[0] for name, kind in types.items() if kind[0] == "Q"}
    assert rounded == LAYERS[family.partition("-")[0]]
    assert kept - rounded


def test_files_of_different_conventions_are_compared(
    family: str, original: Path, tmp_path: Path
) -> None:
    weightctl.convert(original / "model.gguf", tmp_path / "small.gguf", quant="Q8_0")
    request = Request(
        subject=Subject(tmp_path / "small.gguf"), reference=Subject(original / "model")
    )
    report = verify_request(request, ["names", "values"])
    assert not report.problems
    figures = report.results["names"].figures
    assert figures is not None
    assert family.partition("-")[0] in figures.summarize()


def test_verify_names_missing_tensors(original: Path, tmp_path: Path) -> None:
    copytree(original / "model", tmp_path / "model")
    stored = tensors(tmp_path / "model")
    lost = next(name for name in stored if "blocks.1." in name)
    del stored[lost]
    save_file(stored, tmp_path / "model" / WEIGHTS)
    report = verify_request(Request(subject=Subject(tmp_path / "model")), ["names"])
    assert [(each.where, each.text) for each in report.problems] == [(lost, "is missing")]


def test_the_transformer_of_a_file_with_other_models_is_written(
    original: Path, tmp_path: Path
) -> None:
    stored = load_file(original / "single.safetensors")
    others = {"first_stage_model.decoder.conv_in.weight": torch.zeros(2, 2)}
    prefixed = {f"model.diffusion_model.{name}": value for name, value in stored.items()}
    save_file({**prefixed, **others}, tmp_path / "all.safetensors", {"diffusers.config": "x"})
    done = weightctl.convert(tmp_path / "all.safetensors", tmp_path / "out.gguf")
    assert any("first_stage_model.decoder" in note for note in done.notes)
    assert {each.name for each in gguf.GGUFReader(tmp_path / "out.gguf").tensors} == stored.keys()


def test_a_config_that_contradicts_the_tensors_is_refused(original: Path, tmp_path: Path) -> None:
    copytree(original / "model", tmp_path / "model")
    document = config(tmp_path / "model") | {"num_layers": 7}
    (tmp_path / "model" / "config.json").write_text(json.dumps(document))
    with pytest.raises(ArchitectureError, match="the config states `num_layers` = `7`"):
        weightctl.convert(tmp_path / "model", tmp_path / "out.gguf")


def test_a_single_file_keeps_its_names_unless_asked(original: Path, tmp_path: Path) -> None:
    done = weightctl.convert(original / "model", tmp_path / "kept.safetensors")
    assert load_file(tmp_path / "kept.safetensors").keys() == tensors(original / "model").keys()
    assert any("a single file keeps the names" in note for note in done.notes)


def test_a_directory_in_parts_has_the_names_that_diffusers_reads(
    family: str, original: Path, tmp_path: Path
) -> None:
    weightctl.convert(original / "model.gguf", tmp_path / "parts", max_shard_size="2MB")
    assert (tmp_path / "parts" / f"{WEIGHTS}.index.json").exists()
    wanted = run(family, load_directory(family, original / "model"))
    assert torch.equal(run(family, load_directory(family, tmp_path / "parts")), wanted)


def test_an_incomplete_file_is_refused_with_all_problems(original: Path, tmp_path: Path) -> None:
    stored = load_file(original / "single.safetensors")
    lost = next(name for name in stored if "1" in name and name.endswith("weight"))
    cut = next(name for name in stored if "blocks.0." in name and name.endswith(".bias"))
    del stored[lost]
    stored[cut] = stored[cut][:-1].clone()
    stored["extra.weight"] = torch.zeros(2, 2)
    save_file(stored, tmp_path / "broken.safetensors")
    with pytest.raises(ArchitectureError) as caught:
        weightctl.convert(tmp_path / "broken.safetensors", tmp_path / "out")
    message = str(caught.value)
    assert f"`{lost}` is missing" in message
    # With two layers, either can be the one with the wrong shape.
    assert f"{cut.rpartition('.0.')[2]}` has shape" in message
    assert "`extra.weight` is not a part of" in message
