"""What configs of Qwen's image encoders mean, and what GGUF cannot state of them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from each import each
from lazy import load_file, save_file, transformers
from multimodal import change_vision, make_multimodal
from once import once, shared
from weightctl import convert, open_weights
from weightctl.errors import ArchitectureError, WeightctlError
from weightctl.families.configs import from_hugging_face
from weightctl.families.towers import TOWERS
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from pathlib import Path

QWEN_2, QWEN_2_5, QWEN_3 = "qwen2_vl", "qwen2_5_vl", "qwen3_vl"
PATCHES = "visual.patch_embed.proj.weight"


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for tiny checkpoints, which all workers share."""
    return shared(tmp_path_factory) / "towers"


def checkpoint(models: Path, name: str) -> Path:
    return once(models / name, lambda half: make_multimodal(name, half))


def refused(error: type[WeightctlError], text: str, *arguments: Any, **options: Any) -> None:
    with pytest.raises(error, match=re.escape(text)):
        convert(*arguments, **options)


@each(
    ("name", "changes", "text"),
    [
        (QWEN_2, {"mlp_ratio": 3}, "another ratio"),
        (QWEN_2, {"hidden_act": "gelu"}, "it must be one of `quick_gelu`"),
        (QWEN_2, {"hidden_size": 64}, "returns vectors of 64 values"),
        (QWEN_2, {"temporal_patch_size": 1}, "patches of two frames"),
        (QWEN_2, {"spatial_merge_size": 4}, "squares of 2 x 2 patches"),
        (QWEN_2, {"in_channels": 1}, "3 channels"),
        (QWEN_2, {"rope_parameters": {"rope_theta": 5e3}}, "llama.cpp assumes 10000"),
        (QWEN_2, {"depth": 5}, "visual.blocks.4.attn.qkv.weight"),
        (QWEN_2_5, {"window_size": 64}, "windows of 112 x 112 pixels"),
        (QWEN_2_5, {"fullatt_block_indexes": [1, 2]}, "every n-th of the 4 layers"),
        (QWEN_2_5, {"fullatt_block_indexes": [1]}, "every n-th of the 4 layers"),
        (QWEN_2_5, {"fullatt_block_indexes": [3, 1]}, "the numbers must increase"),
        (QWEN_2_5, {"fullatt_block_indexes": 1}, "must be a list of layer numbers"),
        (QWEN_3, {"deepstack_visual_indexes": [0, 9]}, "there is no layer 9 of 4 layers"),
        (QWEN_3, {"deepstack_visual_indexes": [0]}, "deepstack_merger_list.1"),
        (QWEN_3, {"deepstack_visual_indexes": [0, 1, 2]}, "deepstack_merger_list.2.norm.weight"),
        (QWEN_3, {"num_position_embeddings": 15}, "the 15 learned positions"),
        (QWEN_3, {"num_position_embeddings": 25}, "instead of [25, 32]"),
        (QWEN_3, {"out_hidden_size": 64}, "returns vectors of 64 values"),
    ],
)
def test_a_config_that_gguf_cannot_state_is_refused(
    name: str, changes: dict[str, Any], text: str, models: Path, tmp_path: Path
) -> None:
    copy = change_vision(checkpoint(models, name), tmp_path / "model", **changes)
    refused(ArchitectureError, text, copy, mmproj=tmp_path / "m.gguf")


def test_layers_without_windows_are_stated_as_a_pattern(models: Path, tmp_path: Path) -> None:
    model = checkpoint(models, QWEN_2_5)
    for full, every in (([0, 1, 2, 3], 1), ([1, 3], 2), ([2], 3), ([], 5)):
        copy = change_vision(model, tmp_path / str(every), fullatt_block_indexes=full)
        made = convert(copy, mmproj=tmp_path / "m.gguf", dry_run=True)
        assert made.plan.metadata["clip.vision.n_wa_pattern"].content == every
        assert not made.notes


def test_the_time_of_frames_is_not_in_gguf_and_a_note_says_so(models: Path, tmp_path: Path) -> None:
    copy = change_vision(checkpoint(models, QWEN_2_5), tmp_path / "model", tokens_per_second=4)
    (note,) = convert(copy, mmproj=tmp_path / "m.gguf", dry_run=True).notes
    assert "`tokens_per_second` (4)" in note


def test_a_config_of_an_older_version_of_transformers_is_read(models: Path, tmp_path: Path) -> None:
    """The keys of the text model are those of the whole one, as in the published checkpoints."""
    model, old = checkpoint(models, QWEN_2_5), tmp_path / "old"
    copy = change_vision(model, old, in_chans=3, spatial_patch_size=14, model_type="qwen2_5_vl")
    document = json.loads((copy / "config.json").read_text())
    text = document.pop("text_config")
    rope = text.pop("rope_parameters")
    scaling = {"type": "mrope", "mrope_section": rope["mrope_section"]}
    document = {**text, **document, "rope_theta": rope["rope_theta"], "rope_scaling": scaling}
    del document["vision_config"]["rope_parameters"]
    (copy / "config.json").write_text(json.dumps(document))
    made: list[bytes] = []
    for source in (model, copy):
        convert(source, tmp_path / "t.gguf", mmproj=tmp_path / "m.gguf", force=True,
                metadata={"general.name": "x", "general.basename": "x"})  # fmt: skip
        header = header_of(open_weights(tmp_path / "m.gguf"))
        assert header.metadata["clip.vision.n_wa_pattern"].content == 2
        made.append((tmp_path / "t.gguf").read_bytes())
    assert made[0] == made[1]


def test_frames_that_are_not_two_are_refused(models: Path, tmp_path: Path) -> None:
    copy = change_vision(checkpoint(models, QWEN_2), tmp_path / "model")
    tensors = load_file(copy / "model.safetensors")
    whole = tensors[PATCHES]
    save_file({**tensors, PATCHES: whole[:, :, :1].clone()}, copy / "model.safetensors")
    refused(ArchitectureError, "axis 2 must have 2 entries", copy, mmproj=tmp_path / "m.gguf")
    save_file({key: each for key, each in tensors.items() if key != PATCHES},
              copy / "model.safetensors")  # fmt: skip
    refused(ArchitectureError, f"`{PATCHES}`", copy, mmproj=tmp_path / "m.gguf")


def test_a_file_that_contradicts_itself_is_refused(models: Path, tmp_path: Path) -> None:
    model = checkpoint(models, QWEN_3)
    text, tower, wrong = (tmp_path / f"{name}.gguf" for name in ("text", "tower", "wrong"))
    out = tmp_path / "out"
    convert(model, text, mmproj=tower)
    key = "clip.vision.is_deepstack_layers"
    convert(tower, wrong, metadata={key: [True]}, force=True)
    refused(ArchitectureError, "has 1 elements instead of 4", text, out, mmproj=wrong)
    convert(tower, wrong, metadata={key: [False] * 4}, force=True)
    refused(ArchitectureError, "v.deepstack.0", text, out, mmproj=wrong)
    convert(tower, wrong, exclude="v.patch_embd.weight.1", force=True)
    refused(ArchitectureError, "v.patch_embd.weight.1", text, out, mmproj=wrong)
    name = "clip.vision.attention.layer_norm_epsilon"
    convert(tower, wrong, metadata={name: 1e-3}, force=True)
    refused(ArchitectureError, "transformers would read `1e-06`", text, out, mmproj=wrong)
    assert not out.exists()


def test_qwen35_has_no_deepstack(models: Path, tmp_path: Path) -> None:
    text, tower = tmp_path / "text.gguf", tmp_path / "tower.gguf"
    convert(checkpoint(models, "qwen3_5"), text)
    convert(checkpoint(models, QWEN_3), mmproj=tower)
    refused(ArchitectureError, "has_deepstack", text, tmp_path / "out", mmproj=tower)


@pytest.mark.parametrize("name", TOWERS)
def test_a_vision_config_that_says_nothing_is_that_of_transformers_by_default(name: str) -> None:
    family = TOWERS[name].load().family
    beside = {
        "text": {"hidden_size": 3584, "norm_epsilon": 1e-5},
        "preprocessor": {"image_mean": [0.5] * 3, "image_std": [0.5] * 3},
    }
    for kind in TOWERS[name].model_types:
        if "qwen" not in kind:
            continue
        stated = json.loads(json.dumps(transformers.CONFIG_MAPPING[kind]().to_dict()))
        ours, theirs = (
            from_hugging_face(family, {"model_type": kind, **each, **beside}, "here").fields
            for each in ({}, stated)
        )
        assert ours == theirs
