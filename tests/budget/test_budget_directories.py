"""Budgets for model directories: types of serving engines, mixed as these can load them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from test_budget_search import CALIBRATION, TEXT, measure
from weightctl import open_weights
from weightctl.budget.search import QuantizationBudget, quantize
from weightctl.errors import ConversionError
from weightctl.weights.tree import header_of
from weightctl.write.convert import convert

if TYPE_CHECKING:
    from pathlib import Path


def test_a_size_is_met_with_types_that_engines_can_join(tiny_llama: Path, tmp_path: Path) -> None:
    out, file = tmp_path / "out", tmp_path / "out" / "model.safetensors"
    budget = QuantizationBudget(
        size="2MB", types=["W4A16", "FP8_DYNAMIC", "keep"], text=TEXT, calibration=CALIBRATION
    )
    made, found = quantize(tiny_llama, out, budget)
    made.save()
    assert 1_980_000 <= file.stat().st_size <= 2_000_000
    assert {*found.types.values()} >= {"W4A16", "FP8_DYNAMIC"}
    for layer in range(3):
        name = f"model.layers.{layer}"
        for joined in (
            [f"{name}.self_attn.{each}_proj.weight" for each in "qkv"],
            [f"{name}.mlp.{each}_proj.weight" for each in ("gate", "up")],
        ):
            assert len({found.types[each] for each in joined}) == 1
    config = json.loads((out / "config.json").read_text())["quantization_config"]
    assert config["format"] == "mixed-precision"
    # The certificate is what the directory is measured to be, and is in the metadata.
    assert found.certificate.divergence == pytest.approx(
        measure(out, tiny_llama).divergence.mean, rel=1e-3
    )
    metadata = header_of(open_weights(out)).metadata
    stated: Any = metadata["weightctl.budget.divergence"].content
    assert stated == pytest.approx(found.certificate.divergence, rel=1e-6)
    # The recipe gives the same types, without a search.
    (tmp_path / "found.toml").write_text(found.toml)
    convert(tiny_llama, tmp_path / "again", quant=str(tmp_path / "found.toml"))
    again = json.loads((tmp_path / "again" / "config.json").read_text())
    assert again["quantization_config"] == config


@pytest.mark.parametrize(
    ("types", "message"),
    [
        (["Q4_K"], "`Q4_K` of --types is not a type for model directories"),
        (["W4A16", "AWQ"], "AWQ is not one of the types that can be mixed"),
        (["keep"], "--types has only `keep`"),
        ([], "--types is empty"),
        (["W4A16"], "too little"),
        (["W4A16", "keep"], "is met without quantization"),
    ],
)
def test_types_that_cannot_meet_a_budget_are_refused(
    types: list[str], message: str, tiny_llama: Path, tmp_path: Path
) -> None:
    bits = 20.0 if "without" in message else 4.0
    budget = QuantizationBudget(bits=bits, types=types, text="The sea.", calibration="The sea.")
    with pytest.raises(ConversionError, match=message):
        quantize(tiny_llama, tmp_path / "out", budget)


def test_a_gguf_file_is_not_quantized_to_a_directory(tiny_llama: Path, tmp_path: Path) -> None:
    convert(tiny_llama, tmp_path / "in.gguf")
    with pytest.raises(ConversionError, match="needs a source with Hugging Face's names"):
        quantize(tmp_path / "in.gguf", tmp_path / "out", QuantizationBudget(bits=6))


def test_a_directory_is_not_made_for_the_memory_of_llama_cpp(
    tiny_llama: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConversionError, match="--fit is for GGUF files"):
        quantize(tiny_llama, tmp_path / "out", QuantizationBudget(memory="1GB"))
