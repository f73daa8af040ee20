"""Audio encoders of multimodal models: from transformers to an mmproj file, and back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
import transformers
from safetensors.torch import load_file

from libmtmd import encode_audio
from multimodal import SPEECH_CASES, encode_speech_in_transformers, make_speech
from once import once, shared
from tower_converter import convert_towers, find_differing
from weightctl import convert

if TYPE_CHECKING:
    from pathlib import Path

# llama.cpp computes the spectrum on its own, and the convolutions in float16.
CLOSE, MEAN_CLOSE = 5e-2, 2e-3


@pytest.fixture(scope="session")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for checkpoints, which all workers share."""
    return shared(tmp_path_factory) / "speech"


def checkpoint(speech: Path, name: str) -> Path:
    return once(speech / name, lambda half: make_speech(name, half))


@pytest.mark.parametrize("name", SPEECH_CASES)
def test_a_model_that_hears_comes_back_byte_for_byte(
    name: str, speech: Path, tmp_path: Path
) -> None:
    model, back = checkpoint(speech, name), tmp_path / "back"
    text, tower = tmp_path / "model.gguf", tmp_path / "mmproj.gguf"
    convert(model, text, mmproj=tower)
    convert(text, back, mmproj=tower)
    before, after = (load_file(each / "model.safetensors") for each in (model, back))
    assert before.keys() == after.keys()
    for key, value in before.items():
        assert value.dtype == after[key].dtype
        assert value.equal(after[key]), key
    was, config = (json.loads((each / "config.json").read_text()) for each in (model, back))
    kind = transformers.CONFIG_MAPPING[config["model_type"]]
    read, wanted = (kind(**{k: v for k, v in each.items() if k != "model_type"}).to_dict()
                    for each in (config, was))  # fmt: skip
    theirs = {key: each for key, each in wanted["audio_config"].items() if key != "dtype"}
    assert {key: read["audio_config"].get(key) for key in theirs} == theirs
    assert {key: read[key] for key in SPEECH_CASES[name].ids} == {
        key: wanted[key] for key in SPEECH_CASES[name].ids
    }


# llama.cpp stops at the number of Voxtral's vectors, as `families/towers/voxtral.py` says.
@pytest.mark.parametrize("name", [name for name in SPEECH_CASES if name != "voxtral"])
def test_llama_cpp_hears_what_transformers_hears(name: str, speech: Path, tmp_path: Path) -> None:
    model = checkpoint(speech, name)
    text, tower = tmp_path / "model.gguf", tmp_path / "mmproj.gguf"
    convert(model, text, mmproj=tower, dtype="f32")
    samples = (0.1 * np.random.default_rng(0).standard_normal(480_000)).astype(np.float32)
    wanted = encode_speech_in_transformers(model, samples)
    seen = encode_audio(text, tower, samples, wanted.shape[-1])[0]
    assert seen.shape == wanted.shape
    assert abs(seen - wanted).max() < CLOSE
    assert abs(seen - wanted).mean() < MEAN_CLOSE


@pytest.mark.long
@pytest.mark.real
def test_audio_files_are_those_of_llama_cpps_converter(speech: Path, tmp_path: Path) -> None:
    pairs: list[tuple[Path, Path]] = []
    for name in SPEECH_CASES:
        model = checkpoint(speech, name)
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
