"""The perplexity of the shipped model distinguishes a correct conversion from a broken one."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from conftest import ROOT
from each import usual
from lazy import load_file, save_file, torch, transformers

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]

HELD_OUT = ROOT / "fixtures" / "tiny-llama" / "held-out.txt"
HEALTHY = 14.617  # of the first 16 windows of 256 tokens


def perplexity(model: Path) -> float:
    """Return the perplexity per token of the beginning of the held-out text, in float32.

    Only the files of the directory are used, including the tokenizer.
    """
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    network = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    text = HELD_OUT.read_text()
    tokens = torch.tensor(tokenizer(text, add_special_tokens=False)["input_ids"])
    windows = tokens[: 16 * 255].view(16, 255)
    windows = torch.cat([torch.full((16, 1), tokenizer.bos_token_id), windows], dim=1)
    with torch.inference_mode():
        return float(network(windows, labels=windows).loss.exp())


@pytest.fixture(scope="module")
def healthy(tiny_llama: Path) -> float:
    return perplexity(tiny_llama)


def test_the_model_is_as_good_as_its_readme_says(healthy: float) -> None:
    assert healthy == pytest.approx(HEALTHY, rel=1e-3)


@pytest.mark.parametrize(
    ("quant", "cost"),
    usual([("Q4_K", 0.04)], [("Q8_0", 0.002), ("Q5_0", 0.02), ("Q4_K", 0.04), ("Q4_K_M", 0.03)]),
)
def test_quantizing_costs_what_it_should(
    weightctl: Run, tiny_llama: Path, tmp_path: Path, healthy: float, quant: str, cost: float
) -> None:
    quantized, model = tmp_path / "quantized.gguf", tmp_path / "model"
    assert weightctl("convert", tiny_llama, quantized, "--quant", quant).returncode == 0
    back = weightctl("convert", quantized, model, "--dtype", "f32")
    assert back.returncode == 0, back.stderr
    assert perplexity(model) == pytest.approx(healthy, rel=cost)


@pytest.mark.parametrize(
    ("dtype", "cost"), usual([("f8_e4m3", 0.1)], [("f16", 1e-3), ("f32", 1e-6), ("f8_e4m3", 0.1)])
)
def test_another_dtype_costs_what_it_should(
    weightctl: Run, tiny_llama: Path, tmp_path: Path, healthy: float, dtype: str, cost: float
) -> None:
    narrow, wide = tmp_path / "narrow", tmp_path / "wide"
    assert weightctl("convert", tiny_llama, narrow, "--dtype", dtype).returncode == 0
    assert weightctl("convert", narrow, wide, "--dtype", "f32").returncode == 0
    assert perplexity(wide) == pytest.approx(healthy, rel=cost)


def test_exchanged_layers_ruin_it(tiny_llama: Path, tmp_path: Path, healthy: float) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_llama, model)
    tensors = load_file(model / "model.safetensors")
    exchange = {"0": "1", "1": "0", "2": "2"}
    renamed = {
        ".".join(exchange.get(part, part) for part in name.split(".")): tensor
        for name, tensor in tensors.items()
    }
    save_file(renamed, model / "model.safetensors", {"format": "pt"})
    assert perplexity(model) > 10 * healthy
