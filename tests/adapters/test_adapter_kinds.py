"""Adapters for experts, and those with the names of kohya's sd-scripts and of diffusers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import weightctl
from lora_models import adapt, make_mixture
from weightctl.errors import ConversionError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

MODULES = ("down_blocks.0.attn1.to_q", "down_blocks.0.ff.net.0.proj")


def random(*shape: int) -> Floats:
    return np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)


def merge(base: dict[str, Floats], adapter: dict[str, Floats], folder: Path) -> dict[str, Floats]:
    """Return the weights of a model with an adapter merged into it."""
    for name, tensors in (("base", base), ("adapter", adapter)):
        save_file(tensors, folder / f"{name}.safetensors")
    out = folder / "out.safetensors"
    weightctl.convert(folder / "base.safetensors", out, adapters=[folder / "adapter.safetensors"])
    return load_file(out)


def test_an_adapter_for_all_experts_changes_the_weights_of_each(tmp_path: Path) -> None:
    parameters = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    model = adapt(
        tmp_path, make_mixture(), r=2, target_modules=["q_proj"], target_parameters=parameters
    )
    weightctl.convert(model.base, tmp_path / "out", adapters=[model.adapter])
    before, found, wanted = (
        load_file(path / "model.safetensors")
        for path in (model.base, tmp_path / "out", model.merged)
    )
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        assert np.allclose(found[name], values, rtol=0, atol=1e-6)
        assert np.array_equal(before[name], values) == (
            "experts" not in name and "q_proj" not in name
        )


@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("inputs", [5, 7])
def test_experts_in_one_tensor_are_changed_as_they_are_stored(
    inputs: int, is_transposed: bool, tmp_path: Path
) -> None:
    """A square matrix is stored as the other one of its layer."""
    first, second, weight = random(2 * 3, inputs), random(7, 2 * 3), random(3, 7, inputs)
    both = random(3, 2 * inputs, 7)
    delta = np.einsum("ore,eri->eoi", second.reshape(7, 2, 3), first.reshape(3, 2, inputs))
    wanted = weight + delta
    if is_transposed:
        weight, wanted, both = (each.swapaxes(1, 2).copy() for each in (weight, wanted, both))
    model = tmp_path / "model"
    weightctl.convert({"mlp.experts.down_proj": weight, "mlp.experts.gate_up_proj": both}, model)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    pair = {"mlp.experts.lora_A.weight": first, "mlp.experts.lora_B.weight": second}
    save_file(pair, adapter / "adapter_model.safetensors")
    (adapter / "adapter_config.json").write_text('{"peft_type": "LORA", "lora_alpha": 2, "r": 2}')
    weightctl.convert(model, tmp_path / "out", adapters=[adapter])
    found = load_file(tmp_path / "out" / "model.safetensors")["mlp.experts.down_proj"]
    assert np.allclose(found, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("lora_unet_{words}.lora_down.weight", "lora_unet_{words}.lora_up.weight"),
        ("unet.{name}.lora.down.weight", "unet.{name}.lora.up.weight"),
        ("unet.{name}.lora_A.weight", "unet.{name}.lora_B.weight"),
        ("{name}_lora.down.weight", "{name}_lora.up.weight"),
        ("{name}.lora_linear_layer.down.weight", "{name}.lora_linear_layer.up.weight"),
    ],
)
def test_names_of_kohya_and_diffusers_are_recognized(
    first: str, second: str, tmp_path: Path
) -> None:
    base = {f"{name}.weight": random(6, 4) for name in MODULES}
    adapter: dict[str, Floats] = {}
    for name in MODULES:
        words = name.replace(".", "_")
        adapter[first.format(name=name, words=words)] = random(2, 4)
        adapter[second.format(name=name, words=words)] = random(6, 2)
        if "words" in first:
            adapter[f"lora_unet_{words}.alpha"] = np.array(1.0, np.float32)
    scale = 0.5 if "words" in first else 1.0
    if "lora_A" in first:
        with pytest.raises(ConversionError, match=r"no adapter_config\.json"):
            merge(base, adapter, tmp_path)
        return
    for name, values in merge(base, adapter, tmp_path).items():
        wanted = base[name] + scale * (random(6, 2) @ random(2, 4))
        assert np.allclose(values, wanted, rtol=0, atol=1e-5)


def test_a_convolution_is_changed_as_a_matrix_of_its_outputs(tmp_path: Path) -> None:
    base = {"conv.weight": random(6, 4, 3, 3)}
    pair = {
        "lora_unet_conv.lora_down.weight": random(2, 4, 3, 3),
        "lora_unet_conv.lora_up.weight": random(6, 2, 1, 1),
    }
    product = random(6, 2, 1, 1).reshape(6, 2) @ random(2, 4, 3, 3).reshape(2, 36)
    (found,) = merge(base, pair, tmp_path).values()
    assert np.allclose(found, base["conv.weight"] + product.reshape(6, 4, 3, 3), rtol=0, atol=1e-5)


def test_pairs_for_another_model_of_the_pipeline_are_left_out(tmp_path: Path) -> None:
    pairs: dict[str, Floats] = {}
    for stem in ("lora_unet_conv", "lora_te_text_model_layers_0_fc1"):
        pairs[f"{stem}.lora_down.weight"] = random(2, 4)
        pairs[f"{stem}.lora_up.weight"] = random(6, 2)
    save_file({"conv.weight": random(6, 4)}, tmp_path / "base.safetensors")
    save_file(pairs, tmp_path / "adapter.safetensors")
    made = weightctl.convert(
        tmp_path / "base.safetensors",
        tmp_path / "out.safetensors",
        adapters=[tmp_path / "adapter.safetensors"],
    )
    assert any("not merged: 1 pair" in note for note in made.notes)
