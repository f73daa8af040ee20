"""Towers of multimodal models: from transformers to an mmproj file of llama.cpp, and back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from each import usual
from lazy import load_file, transformers
from libmtmd import encode_audio, encode_image
from multimodal import (
    CASES,
    SPEECH_CASES,
    encode_in_transformers,
    encode_speech_in_transformers,
    make_multimodal,
    make_speech,
)
from once import once, shared
from tower_converter import as_intern, convert_towers, find_differing, state_encoder
from weightctl import convert

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


# llama.cpp computes GELU by a table in float16.
CLOSE = 1e-2
# What differs between our files and those of the converter, and why.
EXPECTED = {
    # The converter rounds bfloat16 to float16.
    "gemma3": {"mm.input_projection.weight"},
    # The converter leaves it out if the names begin with `language_model.`; llama.cpp needs it.
    "mistral3": {"v.token_embd.img_break"},
    "llava": {"v.token_embd.img_break"},
    # The converter takes it for another norm, which only Gemma 4 has.
    "llama4": {f"v.blk.{n}.{norm}.{kind}" for n in range(3) for kind in ("weight", "bias")
               for norm in ("ln2", "attn_post_norm")},
}  # fmt: skip

# Keys that differ: without the first one, llama.cpp has another activation than Gemma 4. In some
# tiny models, the positions or the kernels are more values than the matrices.
ASIDE = {
    "gemma4": ["clip.use_gelu"],
    **{
        name: ["general.file_type"]
        for name in ("glm4v", "glm4v_moe", "glm_ocr", "lfm2_vl", "lfm2_vl_plain")
    },
}


@pytest.fixture(scope="session")
def towers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for checkpoints, which all workers share."""
    return shared(tmp_path_factory) / "towers"


def checkpoint(
    towers: Path, name: str, make: Callable[[str, Path], object] = make_multimodal
) -> Path:
    return once(towers / f"{make.__name__}-{name}", lambda half: make(name, half))


def on_the_hub(name: str) -> str:
    """Return a tensor's name as the published checkpoints have it."""
    return name.replace("vision_tower.vision_model.", "vision_tower.")


def values(path: Path) -> dict[str, Any]:
    return {on_the_hub(name): each for name, each in load_file(path / "model.safetensors").items()}


def assert_comes_back(
    model: Path, place: Path, tower: str, outer: set[str], changes: dict[str, Any] | None = None
) -> None:
    """Convert a model to two files and back, and compare tensors and what transformers reads."""
    back = place / "back"
    convert(model, place / "model.gguf", mmproj=place / "mmproj.gguf")
    convert(place / "model.gguf", back, mmproj=place / "mmproj.gguf")
    before, after = values(model), values(back)
    assert before.keys() == after.keys()
    for key, value in before.items():
        assert value.dtype == after[key].dtype
        assert value.equal(after[key]), key
    was, config = (json.loads((each / "config.json").read_text()) for each in (model, back))
    kind = transformers.CONFIG_MAPPING[config["model_type"]]
    read, wanted = (kind(**{k: v for k, v in each.items() if k != "model_type"}).to_dict()
                    for each in (config, was))  # fmt: skip
    theirs = {key: each for key, each in wanted[tower].items() if key != "dtype"} | (changes or {})
    assert {key: read[tower].get(key) for key in theirs} == theirs
    assert {key: read[key] for key in outer} == {key: wanted[key] for key in outer}


@pytest.mark.parametrize("name", CASES)
def test_a_model_in_two_files_comes_back_byte_for_byte(
    name: str, towers: Path, tmp_path: Path
) -> None:
    # Gemma 4 and LFM2-VL have no size of images, and GGUF does not tell SmolVLM from Idefics 3.
    changes = {
        **{each: {"image_size": None} for each in ("gemma4", "lfm2_vl", "lfm2_vl_plain")},
        "smolvlm": {"model_type": "idefics3_vision"},
    }
    outer = {*CASES[name].outer, *CASES[name].ids}
    assert_comes_back(checkpoint(towers, name), tmp_path, "vision_config", outer, changes.get(name))


# SmolVLM is an Idefics 3 here, and its image would be resized.
@pytest.mark.parametrize(
    "name",
    usual(
        ["gemma3", "mistral3", "qwen2_vl"],
        [name for name in CASES if name != "smolvlm"],
    ),
)
def test_llama_cpp_sees_in_an_image_what_transformers_sees(
    name: str, towers: Path, tmp_path: Path
) -> None:
    model = checkpoint(towers, name)
    text, tower = tmp_path / "model.gguf", tmp_path / "mmproj.gguf"
    convert(model, text, mmproj=tower, dtype="f32")
    case = CASES[name]
    side = case.processor["size"].get("longest_edge", 56)
    pixels = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
    mean, deviation = (np.array(case.processor[f"image_{key}"], np.float32) for key in
                       ("mean", "std"))  # fmt: skip
    normed = (pixels.astype(np.float32) / 255 - mean) / deviation
    wanted = encode_in_transformers(model, np.ascontiguousarray(normed.transpose(2, 0, 1)))
    seen = encode_image(text, tower, pixels, wanted.shape[-1])[-1]
    rows = int(len(wanted) ** 0.5)
    if case.projector == "pixtral":  # each row but the last is followed by the break token
        seen = np.concatenate([seen, seen[:1]]).reshape(rows, rows + 1, -1)[:, :-1]
    if name == "llama4":  # by columns, as the note says
        seen = seen.reshape(rows, rows, -1).transpose(1, 0, 2)
    close = 5 * CLOSE if name == "gemma4" else CLOSE  # its vectors are larger
    assert abs(seen.reshape(wanted.shape) - wanted).max() < close


@pytest.mark.long
@pytest.mark.real
def test_the_files_are_those_of_llama_cpps_converter(towers: Path, tmp_path: Path) -> None:
    pairs: list[tuple[Path, Path]] = []
    for name in CASES:
        model = checkpoint(towers, name)
        # The converter knows the names of the Hub only.
        convert(model, tmp_path / "text.gguf", mmproj=tmp_path / f"{name}.gguf", force=True)
        convert(tmp_path / "text.gguf", tmp_path / name, mmproj=tmp_path / f"{name}.gguf")
        settings = json.dumps(CASES[name].processor)
        (tmp_path / name / "preprocessor_config.json").write_text(settings)
        if CASES[name].projector == "internvl":
            as_intern(tmp_path / name)
        if CASES[name].projector == "paddleocr":
            state_encoder(tmp_path / name, "PaddleOCRVisionModel")
        pairs.append((tmp_path / name, tmp_path / f"{name}-converter.gguf"))
    convert_towers(pairs)
    for name in CASES:
        theirs, ours = (tmp_path / f"{name}{end}.gguf" for end in ("-converter", ""))
        aside = ASIDE.get(name, [])
        assert find_differing(theirs, ours, *aside) <= EXPECTED.get(name, set())


# Audio encoders of multimodal models: from transformers to an mmproj file, and back.


# llama.cpp computes the spectrum on its own, and the convolutions in float16.
CLOSE_SPECTRUM, MEAN_CLOSE = 5e-2, 2e-3


@pytest.mark.parametrize("name", SPEECH_CASES)
def test_a_model_that_hears_comes_back_byte_for_byte(
    name: str, towers: Path, tmp_path: Path
) -> None:
    model = checkpoint(towers, name, make_speech)
    assert_comes_back(model, tmp_path, "audio_config", {*SPEECH_CASES[name].ids})


# llama.cpp stops at the number of Voxtral's vectors, as `families/tables/towers/voxtral.toml` says.
@pytest.mark.parametrize(
    "name", usual(["qwen2_audio"], [name for name in SPEECH_CASES if name != "voxtral"])
)
def test_llama_cpp_hears_what_transformers_hears(name: str, towers: Path, tmp_path: Path) -> None:
    model = checkpoint(towers, name, make_speech)
    text, tower = tmp_path / "model.gguf", tmp_path / "mmproj.gguf"
    convert(model, text, mmproj=tower, dtype="f32")
    samples = (0.1 * np.random.default_rng(0).standard_normal(480_000)).astype(np.float32)
    wanted = encode_speech_in_transformers(model, samples)
    seen = encode_audio(text, tower, samples, wanted.shape[-1])[0]
    assert seen.shape == wanted.shape
    assert abs(seen - wanted).max() < CLOSE_SPECTRUM
    assert abs(seen - wanted).mean() < MEAN_CLOSE


@pytest.mark.long
@pytest.mark.real
def test_audio_files_are_those_of_llama_cpps_converter(towers: Path, tmp_path: Path) -> None:
    pairs: list[tuple[Path, Path]] = []
    for name in SPEECH_CASES:
        model = checkpoint(towers, name, make_speech)
        convert(model, mmproj=tmp_path / f"{name}.gguf")
        pairs.append((model, tmp_path / f"{name}-converter.gguf"))
    convert_towers(pairs)
    # The converter rounds bfloat16 to float16, except for Audio Flamingo.
    rounded = {"a.conv1d.1.weight", "a.conv1d.2.weight"}
    for name in SPEECH_CASES:
        theirs, ours = (tmp_path / f"{name}{end}.gguf" for end in ("-converter", ""))
        # In a tiny model, the positions are more values than the matrices.
        found = find_differing(theirs, ours, "general.file_type")
        assert found == (set() if name == "audioflamingo3" else rounded)
