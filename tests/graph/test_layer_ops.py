"""Norms and convolutions, against torch."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from runs import run
from weightctl.graph import ops
from weightctl.shape import Dim

SMALL = pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])


def floats(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)


def torch_of(array: Any) -> torch.Tensor:
    name = array.dtype.name
    return torch.tensor(array.astype(np.float32)).to(getattr(torch, name))


@pytest.mark.parametrize("kind", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_rms_norm_is_hugging_faces(kind: Any) -> None:
    x, weight = (floats(2, 5, 64) * 9).astype(kind), floats(64).astype(kind)
    model = LlamaRMSNorm(64, 1e-5)
    model.weight.data = torch_of(weight)
    expected = model(torch_of(x)).detach().float().numpy()
    found = run(lambda *values: ops.rms_norm(*values, 1e-5), x, weight)
    exact = kind is not np.float32
    np.testing.assert_allclose(found.astype(np.float32), expected, rtol=0 if exact else 1e-6)


def test_an_rms_norm_without_a_weight_has_a_mean_square_of_one() -> None:
    found = run(lambda x: ops.rms_norm(x, epsilon=0.0), floats(3, 50))
    np.testing.assert_allclose((found**2).mean(-1), 1, rtol=1e-5)


@SMALL
@pytest.mark.parametrize("count", [0, 1, 2])
def test_layer_norm_is_computed_in_float32_and_rounded_once(kind: Any, count: int) -> None:
    arrays = [(floats(4, 300) * 20).astype(kind), floats(300), floats(300)][: count + 1]
    arrays = [array.astype(kind) for array in arrays]
    found = run(lambda *values: ops.layer_norm(*values, epsilon=1e-5), *arrays)
    wide = [torch_of(array).double() for array in arrays]
    exact = torch.nn.functional.layer_norm(wide[0], (300,), *wide[1:], eps=1e-5).numpy()
    half_a_step = float(ml_dtypes.finfo(kind).eps) / 2
    np.testing.assert_allclose(found.astype(float), exact, rtol=half_a_step * 1.01, atol=1e-5)


def test_a_layer_norm_may_have_a_bias_alone() -> None:
    x, bias = floats(3, 8), floats(8)
    found = run(lambda *values: ops.layer_norm(values[0], bias=values[1]), x, bias)
    expected = torch.nn.functional.layer_norm(torch_of(x), (8,), None, torch_of(bias))
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stride": 2},
        {"padding": 3},
        {"dilation": 2, "padding": 1},
        {"groups": 2},
        {"stride": 3, "padding": 2, "dilation": 2, "groups": 2},
    ],
)
def test_a_convolution_is_torchs_for_lengths_with_names(
    options: dict[str, int], has_bias: bool
) -> None:
    x, bias = floats(2, 4, 11), floats(6)
    weight = floats(6, 4 // options.get("groups", 1), 3)
    arrays = [x, weight, bias] if has_bias else [x, weight]
    shapes = [("batch", 4, "length"), weight.shape, *([(6,)] if has_bias else [])]
    found = run(lambda *values: ops.conv1d(*values, **options), *arrays, shapes=shapes)
    expected = torch.conv1d(*(torch_of(array) for array in arrays), **options)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@SMALL
def test_a_convolution_of_small_floats_adds_up_in_float32(kind: Any) -> None:
    # Summed in bfloat16, 3000 ones would stop at 256; in float16 at 2048.
    x, weight = np.ones((1, 1000, 3), kind), np.ones((1, 1000, 3), kind)
    assert run(ops.conv1d, x, weight).astype(float) == float(np.array(3000).astype(kind))


def test_a_length_keeps_its_name_where_padding_makes_up_for_the_kernel() -> None:
    lengths: list[Dim] = []

    def convolved(x: Any, weight: Any) -> Any:
        made = ops.conv1d(x, weight, padding=1)
        lengths.append(made.shape[-1])
        return made

    run(convolved, floats(1, 1, 4), floats(1, 1, 3), shapes=[(1, 1, "length"), (1, 1, 3)])
    assert lengths == [Dim("length")]
