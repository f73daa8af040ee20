"""Towers of multimodal models: from transformers to an mmproj file of llama.cpp, and back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import transformers
from safetensors.torch import load_file

from libmtmd import encode_image
from multimodal import CASES, encode_in_transformers, make_multimodal
from once import once, shared
from tower_converter import as_intern, convert_towers, find_differing
from weightctl import convert

if TYPE_CHECKING:
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


@pytest.fixture(scope="session")
def towers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for checkpoints, which all workers share."""
    return shared(tmp_path_factory) / "towers"


def checkpoint(towers: Path, name: str) -> Path:
    return once(towers / name, lambda half: make_multimodal(name, half))


def on_the_hub(name: str) -> str:
    """Return a tensor's name as the published checkpoints have it."""
    return name.replace("vision_tower.vision_model.", "vision_tower.")


def values(path: Path) -> dict[str, Any]:
    return {on_the_hub(name): each for name, each in load_file(path / "model.safetensors").items()}


@pytest.mark.parametrize("name", CASES)
def test_a_model_in_two_files_comes_back_byte_for_byte(
    name: str, towers: Path, tmp_path: Path
) -> None:
    model, back = checkpoint(towers, name), tmp_path / "back"
    text, tower = tmp_path / "model.gguf", tmp_path / "mmproj.gguf"
    convert(model, text, mmproj=tower)
    convert(text, back, mmproj=tower)
    before, after = values(model), values(back)
    assert before.keys() == after.keys()
    for key, value in before.items():
        assert value.dtype == after[key].dtype
        assert value.equal(after[key]), key
    was, config = (json.loads((each / "config.json").read_text()) for each in (model, back))
    kind = transformers.CONFIG_MAPPING[config["model_type"]]
    read, wanted = (kind(**{k: v for k, v in each.items() if k != "model_type"}).to_dict()
                    for each in (config, was))  # fmt: skip
    theirs = {key: each for key, each in wanted["vision_config"].items() if key != "dtype"}
    if name == "gemma4":  # which has no such key
        theirs.pop("image_size")
    if name == "smolvlm":  # GGUF does not tell it from Idefics 3
        theirs["model_type"] = "idefics3_vision"
    assert {key: read["vision_config"].get(key) for key in theirs} == theirs
    outer = {*CASES[name].outer, *CASES[name].ids}
    assert {key: read[key] for key in outer} == {key: wanted[key] for key in outer}


# SmolVLM is an Idefics 3 here, and its image would be resized.
@pytest.mark.parametrize("name", [name for name in CASES if name != "smolvlm"])
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
        pairs.append((tmp_path / name, tmp_path / f"{name}-converter.gguf"))
    convert_towers(pairs)
    for name in CASES:
        theirs, ours = (tmp_path / f"{name}{end}.gguf" for end in ("-converter", ""))
        # Without the key, llama.cpp has another activation than Gemma 4.
        aside = ["clip.use_gelu"] if name == "gemma4" else []
        assert find_differing(theirs, ours, *aside) <= EXPECTED.get(name, set())
