"""CLIP models between the names of OpenAI and OpenCLIP, and those of transformers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from clip_models import Clip, make_clip
from lazy import load_file, save_file, torch, transformers
from weightctl import convert
from weightctl.errors import ArchitectureError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

# The heads of OpenAI's models have 64 elements.
AS_OPENAI = ((2, 64, 256, 1), (1, 128, 512, 2))
OTHER = ((1, 48, 96, 4), (2, 80, 200, 5))
_FILE, _OPEN_CLIP = "model.safetensors", "open_clip_model.safetensors"


def save_open_clip(model: Clip, folder: Path, **stated: Any) -> Path:
    """Write a model of the sizes `OTHER` as OpenCLIP has it."""
    folder.mkdir()
    save_file(model.state_dict(), folder / _OPEN_CLIP)
    text = {"context_length": 12, "vocab_size": 99, "width": 48, "heads": 4, "layers": 1,
            "mlp_ratio": 2.0}  # fmt: skip
    vision = {"image_size": 24, "layers": 2, "width": 80, "head_width": 16, "patch_size": 8,
              "mlp_ratio": 2.5}  # fmt: skip
    document = {
        "model_cfg": {"embed_dim": 32, "text_cfg": text, "vision_cfg": vision, **stated},
        "preprocess_cfg": {"mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]},
    }
    (folder / "open_clip_config.json").write_text(json.dumps(document))
    return folder


def assert_same_embeddings(folder: Path, model: Clip) -> None:
    """Ask that transformers computes the same embeddings of images and texts."""
    theirs: Any = transformers.CLIPModel.from_pretrained(folder, dtype=torch.float32).eval()
    pixels = torch.randn(2, 3, 24, 24, generator=torch.Generator().manual_seed(1))
    tokens = torch.tensor([[1, 7, 5, 98, 0, 0], [1, 4, 9, 3, 2, 98]])
    with torch.no_grad():
        found = theirs(pixel_values=pixels, input_ids=tokens)
        pairs = (
            (found.image_embeds, model.encode_image(pixels)),
            (found.text_embeds, model.encode_text(tokens)),
        )
    for ours, expected in pairs:
        torch.testing.assert_close(ours, expected / expected.norm(dim=-1, keepdim=True))
    assert torch.equal(theirs.logit_scale, model.logit_scale)


@pytest.mark.parametrize("form", ["state dict", "sizes", "safetensors"])
def test_transformers_computes_the_embeddings_of_openais_file(form: str, tmp_path: Path) -> None:
    model = make_clip(*AS_OPENAI)
    tensors = dict(model.state_dict())
    path = tmp_path / "ViT.pt"
    if form == "sizes":
        names = ("input_resolution", "context_length", "vocab_size")
        tensors |= dict(zip(names, map(torch.tensor, (24, 12, 99)), strict=True))
    if form == "safetensors":
        path = tmp_path / "ViT.safetensors"
        save_file(tensors, path)
    else:
        torch.save(tensors, path)
    done = convert(path, tmp_path / "hf")
    assert_same_embeddings(tmp_path / "hf", model)
    is_assumed = any("QuickGELU are assumed" in note for note in done.plan.notes)
    assert is_assumed is (form != "sizes")


@pytest.mark.parametrize("quick_gelu", [True, False])
def test_transformers_computes_the_embeddings_of_an_openclip_directory(
    tmp_path: Path, *, quick_gelu: bool
) -> None:
    model = make_clip(*OTHER, quick_gelu=quick_gelu)
    source = save_open_clip(model, tmp_path / "open_clip", quick_gelu=quick_gelu)
    convert(source, tmp_path / "hf")
    assert_same_embeddings(tmp_path / "hf", model)
    images = json.loads((tmp_path / "hf" / "preprocessor_config.json").read_text())
    assert images["image_mean"] == [0.5, 0.5, 0.5]
    assert images["crop_size"] == {"height": 24, "width": 24}


def test_a_model_of_transformers_comes_back_from_openais_names(tmp_path: Path) -> None:
    model = make_clip(*OTHER, quick_gelu=False)
    source = save_open_clip(model, tmp_path / "open_clip")
    convert(source, tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "named", names="openai")
    found, expected = load_file(tmp_path / "named" / _OPEN_CLIP), model.state_dict()
    assert found.keys() == expected.keys()
    assert all(found[name].equal(tensor) for name, tensor in expected.items())
    convert(tmp_path / "named", tmp_path / "back")
    for name, tensor in load_file(tmp_path / "hf" / _FILE).items():
        assert load_file(tmp_path / "back" / _FILE)[name].equal(tensor), name
    assert_same_embeddings(tmp_path / "back", model)


def test_a_note_says_what_openais_file_does_not_state(tmp_path: Path) -> None:
    source = save_open_clip(make_clip(*OTHER), tmp_path / "open_clip")
    convert(source, tmp_path / "hf")
    done = convert(tmp_path / "hf", tmp_path / "clip.pt", names="openai")
    assert any("differ from what OpenAI's program assumes" in note for note in done.plan.notes)
    with pytest.raises(ArchitectureError, match="do not divide into the heads"):
        convert(tmp_path / "clip.pt", tmp_path / "back")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda tensors: tensors.pop("visual.ln_pre.bias"), "1 tensor is missing: visual.ln_pre"),
        (
            lambda tensors: tensors.update({"positional_embedding": torch.ones(3)}),
            "expected 2 sizes",
        ),
        (lambda tensors: tensors.update({"visual.layer1.0.bn1.bias": torch.ones(2)}), "unknown"),
        (lambda tensors: tensors.update({"visual.proj": torch.ones(3, 32)}), "expected [128, 32]"),
        (
            lambda tensors: tensors.update({"visual.positional_embedding": torch.ones(8, 128)}),
            "a row for the class, and for each patch",
        ),
    ],
)
def test_other_models_are_refused_with_the_reason(
    change: Callable[[dict[str, torch.Tensor]], object], reason: str, tmp_path: Path
) -> None:
    tensors = dict(make_clip(*AS_OPENAI).state_dict())
    change(tensors)
    save_file(tensors, tmp_path / "clip.safetensors")
    with pytest.raises(ArchitectureError) as caught:
        convert(tmp_path / "clip.safetensors", tmp_path / "hf")
    assert reason in str(caught.value)


def test_settings_of_openclip_that_transformers_lacks_are_refused(tmp_path: Path) -> None:
    source = save_open_clip(make_clip(*OTHER), tmp_path / "open_clip", custom_text=True)
    with pytest.raises(ArchitectureError, match="states `custom_text`"):
        convert(source, tmp_path / "hf")


def test_ls_names_clip_in_openais_names(
    tmp_path: Path, weightctl: Callable[..., Completed]
) -> None:
    save_file(make_clip(*AS_OPENAI).state_dict(), tmp_path / "ViT.safetensors")
    assert "clip, safetensors" in weightctl("ls", str(tmp_path / "ViT.safetensors")).stdout
