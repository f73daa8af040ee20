"""Merged weights are those of PEFT's `merge_and_unload`, in the names of both conventions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import weightctl
from lora_models import adapt, make_gpt2, make_llama
from weightctl.adapters.reading import AdapterPath, parse_adapter
from weightctl.errors import ConversionError, WeightctlError

if TYPE_CHECKING:
    from pathlib import Path

    from lora_models import AdaptedModel

LAYER = "base_model.model.model.layers.0.self_attn.q_proj"
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj", "down_proj"]},
    "scaled": {
        "r": 4, "lora_alpha": 8, "target_modules": "all-linear", "use_rslora": True,
        "rank_pattern": {"q_proj": 2}, "alpha_pattern": {"layers.1.self_attn.k_proj": 5},
        "modules_to_save": ["lm_head", "norm"],
    },
    "dora": {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "o_proj"], "use_dora": True},
    "embedding": {"r": 4, "lora_alpha": 8, "target_modules": ["embed_tokens", "q_proj"]},
}  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, AdaptedModel]:
    return {
        name: adapt(tmp_path_factory.mktemp(name), make_llama(), **settings)
        for name, settings in KINDS.items()
    }


def largest_difference(one: Path, other: Path) -> float:
    """Return the largest difference of values, relative to the largest value of the tensor."""
    first, second = (dict(weightctl.open_weights(path).items()) for path in (one, other))
    assert first.keys() == second.keys()
    pairs = [(np.asarray(first[name]), np.asarray(second[name])) for name in first]
    return max(float(np.abs(a - b).max() / (np.abs(b).max() or 1)) for a, b in pairs)


@pytest.mark.parametrize("kind", KINDS)
def test_a_merged_model_is_that_of_peft(
    kind: str, models: dict[str, AdaptedModel], tmp_path: Path
) -> None:
    model = models[kind]
    weightctl.convert(model.base, tmp_path / "out", adapters=[model.adapter])
    assert largest_difference(tmp_path / "out", model.merged) < 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_a_gguf_file_is_merged_as_its_original(
    kind: str, models: dict[str, AdaptedModel], tmp_path: Path
) -> None:
    model = models[kind]
    base, wanted, merged = (tmp_path / f"{name}.gguf" for name in ("base", "wanted", "merged"))
    weightctl.convert(model.base, base)
    weightctl.convert(model.merged, wanted)
    weightctl.convert(base, merged, adapters=[model.adapter])
    assert largest_difference(merged, wanted) < 1e-6


def test_an_adapter_with_the_names_of_gguf_is_refused_for_a_model_with_others(
    models: dict[str, AdaptedModel], tmp_path: Path
) -> None:
    model, adapter = models["plain"], tmp_path / "adapter.gguf"
    weightctl.convert(model.adapter, adapter, base=model.base)
    with pytest.raises(ConversionError, match="has GGUF's names, but the model does not"):
        weightctl.convert(model.base, tmp_path / "out", adapters=[adapter])


def test_matrices_of_gpt2_are_merged_transposed(tmp_path: Path) -> None:
    targets = ["c_attn", "c_proj"]
    model = adapt(tmp_path, make_gpt2(), r=4, target_modules=targets, fan_in_fan_out=True)
    weightctl.convert(model.base, tmp_path / "out", adapters=[model.adapter])
    assert largest_difference(tmp_path / "out", model.merged) < 1e-6
    weightctl.convert(model.base, tmp_path / "base.gguf")
    weightctl.convert(model.merged, tmp_path / "wanted.gguf")
    weightctl.convert(tmp_path / "base.gguf", tmp_path / "out.gguf", adapters=[model.adapter])
    assert largest_difference(tmp_path / "out.gguf", tmp_path / "wanted.gguf") < 1e-6


def test_an_adapter_and_its_negative_cancel(
    models: dict[str, AdaptedModel], tmp_path: Path
) -> None:
    model = models["plain"]
    both = [(str(model.adapter), 0.5), (str(model.adapter), -0.5)]
    weightctl.convert(model.base, tmp_path / "out", adapters=both)
    assert largest_difference(tmp_path / "out", model.base) < 1e-6


def test_a_mapping_has_the_weights_of_adapters(
    models: dict[str, AdaptedModel], tmp_path: Path
) -> None:
    model = models["plain"]
    weightctl.merge(model.base, {str(model.adapter): 0.5}, tmp_path / "mapping")
    weightctl.merge(model.base, [(str(model.adapter), 0.5)], tmp_path / "pairs")
    assert largest_difference(tmp_path / "mapping", tmp_path / "pairs") == 0
    assert largest_difference(tmp_path / "mapping", model.base) > 1e-6


def test_weights_keep_their_type(models: dict[str, AdaptedModel], tmp_path: Path) -> None:
    model = models["plain"]
    weightctl.convert(model.base, tmp_path / "half", dtype="bf16")
    weightctl.convert(tmp_path / "half", tmp_path / "out", adapters=[model.adapter])
    found = weightctl.open_weights(tmp_path / "out")
    assert {node.info.encoding.name for _, node in found.items()} == {"BF16"}
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"


def test_quantized_weights_are_quantized_again_on_request_only(
    models: dict[str, AdaptedModel], tmp_path: Path
) -> None:
    model, base, out = models["plain"], tmp_path / "base.gguf", tmp_path / "out.gguf"
    weightctl.convert(model.base, base, quant="Q8_0")
    with pytest.raises(ConversionError, match="would be quantized again as Q8_0"):
        weightctl.convert(base, out, adapters=[model.adapter])
    weightctl.convert(base, out, adapters=[model.adapter], allow_requantize=True)
    assert largest_difference(out, base) > 0.01
    types = [
        {name: node.info.encoding.name for name, node in weightctl.open_weights(path).items()}
        for path in (base, out)
    ]
    assert types[0] == types[1]
    weightctl.convert(base, out, adapters=[model.adapter], dtype="f32", force=True)
    found = weightctl.open_weights(out)
    assert {node.info.encoding.name for _, node in found.items()} == {"F32"}


def test_packed_weights_are_decoded_and_stored_in_the_dtype_of_the_model(
    models: dict[str, AdaptedModel], tmp_path: Path
) -> None:
    model, packed = models["plain"], tmp_path / "packed"
    weightctl.convert(model.base, packed, quant="W8A16:group=32", fallback=True)
    weightctl.convert(packed, tmp_path / "out", adapters=[model.adapter])
    assert "quantization_config" not in (tmp_path / "out" / "config.json").read_text()
    assert largest_difference(tmp_path / "out", model.merged) < 0.02
    with pytest.raises(ConversionError, match="quantized"):
        weightctl.convert(
            packed, tmp_path / "again", adapters=[model.adapter], quant="W8A16:group=32"
        )


def changed_adapter(model: AdaptedModel, folder: Path, **tensors: Any) -> Path:
    """Write the adapter with other tensors; None removes one."""
    stored = load_file(model.adapter / "adapter_model.safetensors") | tensors
    folder.mkdir()
    kept = {name: each for name, each in stored.items() if each is not None}
    save_file(kept, folder / "adapter_model.safetensors")
    settings = (model.adapter / "adapter_config.json").read_text()
    (folder / "adapter_config.json").write_text(settings)
    return folder


ZEROS = np.zeros((4, 4), np.float32)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({f"{LAYER}.lora_B.weight": None}, "not the second matrix of the pair"),
        (
            {f"{LAYER}.lora_A.weight": np.zeros((4, 32), np.float32)},
            "`model.layers.0.self_attn.q_proj.weight` has shape .64, 64., which does not fit",
        ),
        (
            {f"base_model.model.nope.lora_{half}.weight": ZEROS for half in "AB"},
            "the model has no tensor for `nope`",
        ),
        ({"base_model.model.model.norm.weight": np.ones(3, np.float32)}, "of shape .3., but"),
        ({"base_model.model.other.weight": ZEROS}, "has no tensor for `other.weight`"),
    ],
)  # fmt: skip
def test_an_adapter_that_does_not_fit_is_refused_by_name(
    tensors: dict[str, Any],
    message: str,
    models: dict[str, AdaptedModel],
    tmp_path: Path,
) -> None:
    adapter = changed_adapter(models["plain"], tmp_path / "changed", **tensors)
    with pytest.raises(ConversionError, match=message):
        weightctl.convert(models["plain"].base, tmp_path / "out", adapters=[adapter])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"peft_type": "IA3"}, "an adapter of the type IA3"),
        ({"init_lora_weights": "pissa"}, "also changed the weights of the model"),
        ({"use_qalora": True}, "uses `use_qalora`"),
        ({"alpha_pattern": {"(": 3}}, "is not a valid regular expression"),
        ({"lora_alpha": float("nan")}, "`lora_alpha` in adapter_config.json is nan, but a finite"),
        ({"lora_alpha": "16"}, "is '16', but a finite number is expected"),
        ({"lora_alpha": 1e308}, "values that are not finite after the product of"),
        ({"r": 0}, "`r` in adapter_config.json is 0, but a rank is a positive integer"),
        ({"r": -1}, "is -1, but a rank is a positive integer"),
        ({"rank_pattern": {"q_proj": 1.5}}, "is 1.5, but a rank is a positive integer"),
        ({"alpha_pattern": {"q_proj": float("inf")}}, "is inf, but a finite number is expected"),
    ],
)
def test_a_kind_of_adapter_that_is_more_than_products_is_refused(
    settings: dict[str, Any], message: str, models: dict[str, AdaptedModel], tmp_path: Path
) -> None:
    adapter = changed_adapter(models["plain"], tmp_path / "changed")
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    with pytest.raises(WeightctlError, match=message):
        weightctl.convert(models["plain"].base, tmp_path / "out", adapters=[adapter])


def test_a_model_is_not_an_adapter(models: dict[str, AdaptedModel], tmp_path: Path) -> None:
    base = models["plain"].base
    with pytest.raises(ConversionError, match="is not a LoRA adapter"):
        weightctl.convert(base, tmp_path / "out", adapters=[base])


def test_a_path_may_end_in_a_weight(tmp_path: Path) -> None:
    assert parse_adapter("some/adapter:0.5") == AdapterPath("some/adapter", 0.5)
    assert parse_adapter("hf://owner/name") == AdapterPath("hf://owner/name")
    assert parse_adapter(("adapter", 2)) == AdapterPath("adapter", 2.0)
    (tmp_path / "a:1").mkdir()
    assert parse_adapter(tmp_path / "a:1") == AdapterPath(str(tmp_path / "a:1"))
    with pytest.raises(ConversionError, match="is not a weight"):
        parse_adapter("adapter:inf")
