"""Norms, against torch and transformers."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from each import each
from runs import run
from weightctl.graph import ops

SMALL = each("kind", [np.float16, ml_dtypes.bfloat16])


def floats(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)


def torch_of(array: Any) -> torch.Tensor:
    name = array.dtype.name
    return torch.tensor(array.astype(np.float32)).to(getattr(torch, name))


@each("kind", [np.float32, np.float16, ml_dtypes.bfloat16])
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
@each("count", [0, 1, 2])
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
