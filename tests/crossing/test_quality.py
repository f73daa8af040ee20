"""Quantizing loses as much precision as llama.cpp's own quantization of the same weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gguf
import numpy as np
import pytest

from likelihoods import mean_divergence
from llama_cpp import ask
from oracles import ggml_quantize
from weightctl import open_weights

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

TYPES = ["Q8_0", "Q4_K_M"]


def quantized_by_ggml(ours: Path, plain: Path, out: Path) -> None:
    """Write a copy of a GGUF with blocks that ggml makes from the values of a plain one."""
    out.write_bytes(ours.read_bytes())
    weights = open_weights(plain)
    copied = gguf.GGUFReader(out, "r+")
    blocks = 0
    for tensor in copied.tensors:
        kind = tensor.tensor_type.name
        if kind not in {"F32", "F16", "BF16"}:
            blocks += 1
            rows = weights[tensor.name].data().to_numpy()
            made = ggml_quantize(kind, rows.reshape(-1, rows.shape[-1]), None)
            tensor.data.reshape(-1)[:] = made.reshape(-1)
    assert blocks > 10
    copied.data.flush()


def logits_of(model: Path, windows: list[list[int]]) -> NDArray[np.float32]:
    return np.concatenate(ask(model, *(("logits", window) for window in windows)))


def windows_of(model: Path, text: str, count: int, length: int) -> list[list[int]]:
    (tokens,) = ask(model, ("tokenize", text))
    return [tokens[place * length : (place + 1) * length] for place in range(count)]


@pytest.mark.parametrize("kind", TYPES)
def test_quantizing_tiny_llama_costs_what_it_costs_in_llama_cpp(
    kind: str, tiny_llama: Path, converted: Callable[..., Path], tmp_path: Path
) -> None:
    plain = converted(tiny_llama, "tiny-f32.gguf", "--dtype", "f32")
    ours = converted(tiny_llama, f"tiny-{kind}.gguf", "--quant", kind)
    windows = windows_of(plain, (tiny_llama / "held-out.txt").read_text()[:6000], 4, 256)
    compare(plain, ours, windows, tmp_path)


@pytest.mark.long
@pytest.mark.real
@pytest.mark.parametrize("kind", TYPES)
def test_quantizing_smollm2_costs_what_it_costs_in_llama_cpp(
    kind: str, tiny_llama: Path, smollm2: Path, converted: Callable[..., Path], tmp_path: Path
) -> None:
    # The model in Hugging Face's form; that weightctl wrote it does not affect the comparison.
    model = converted(smollm2, "smollm2-hf", "--dtype", "f32")
    plain = converted(model, "smollm2-again.gguf")
    ours = converted(model, f"smollm2-{kind}.gguf", "--quant", kind)
    windows = windows_of(plain, (tiny_llama / "held-out.txt").read_text()[:1500], 2, 100)
    compare(plain, ours, windows, tmp_path)


def compare(plain: Path, ours: Path, windows: list[list[int]], scratch: Path) -> None:
    other = scratch / "ggml.gguf"
    quantized_by_ggml(ours, plain, other)
    expected = logits_of(plain, windows)
    cost = mean_divergence(expected, logits_of(ours, windows))
    assert 0 < cost <= 1.05 * mean_divergence(expected, logits_of(other, windows))
