"""Products on a GPU are as exact as the dtypes of the graph, whatever the process has set."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from engine_graphs import F32, numbers
from graphics import on_a_gpu
from weightctl import DeviceRef, DType
from weightctl.engine import InferenceSession
from weightctl.engine.devices import exact_products
from weightctl.graph import Graph, TensorType

MATMUL: Any = torch.backends.cuda.matmul
CONVOLUTIONS: Any = torch.backends.cudnn
SHORT = ["allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction"]


def settings() -> list[Any]:
    return [*(getattr(MATMUL, name) for name in SHORT), torch.get_float32_matmul_precision()]


def test_sums_are_in_float32_within_and_as_before_after() -> None:
    before = settings()
    with exact_products():
        assert [getattr(MATMUL, name) for name in SHORT] == [False, False]
        if hasattr(MATMUL, "fp32_precision"):
            assert MATMUL.fp32_precision == CONVOLUTIONS.conv.fp32_precision == "ieee"
    assert settings() == before


def test_the_settings_are_restored_after_an_error() -> None:
    before = settings()
    with pytest.raises(ValueError, match="by itself"), exact_products():
        raise ValueError("by itself")
    assert settings() == before


def test_a_process_may_have_used_the_older_settings() -> None:
    program = (
        "import torch\n"
        "from weightctl.engine.devices import exact_products\n"
        "torch.backends.cuda.matmul.allow_tf32 = True\n"
        "with exact_products():\n"
        "    pass\n"
        "assert torch.backends.cuda.matmul.allow_tf32\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@on_a_gpu
def test_products_on_a_gpu_are_exact_also_if_the_process_allows_tf32() -> None:
    gpu = DeviceRef.GPU(0)
    with Graph("product", [TensorType(F32, (64, 4096), gpu)]) as graph:
        (x,) = graph.inputs
        graph.output(x @ x.T)
    x = numbers(64, 4096)
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        (found,) = InferenceSession([gpu]).load(graph).execute(x)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
    wide = x.astype(np.float64)
    np.testing.assert_allclose(found.to_numpy(), wide @ wide.T, rtol=1e-5, atol=1e-2)


@on_a_gpu
def test_sums_of_bfloat16_on_a_gpu_are_in_float32() -> None:
    gpu = DeviceRef.GPU(0)
    count = 1 << 16
    kind = TensorType(DType.bfloat16, (1, count), gpu)
    with Graph("product", [kind, kind]) as graph:
        left, right = graph.inputs
        graph.output(left @ right.T)
    ones = torch.ones(1, count, dtype=torch.bfloat16)
    (found,) = InferenceSession([gpu]).load(graph).execute(ones, ones)
    assert float(torch.from_dlpack(found).float().cpu()) == count
