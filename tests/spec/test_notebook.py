"""A session in a notebook, as people who know torch and safetensors type it."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch

import weightctl
from lazy import torch
from weightctl import DType, Graph, InferenceSession, QuantizationEncoding, TensorType, nn, ops

if TYPE_CHECKING:
    from pathlib import Path


def test_a_session_of_forty_lines(tiny_llama: Path, tmp_path: Path) -> None:
    weights = weightctl.open_weights(tiny_llama)
    assert len(weights.model.layers) == 3
    assert "model.norm.weight" in weights
    assert list(weights) == ["lm_head", "model"]
    last = weights.model.layers[-1]
    assert last.name == "model.layers.2"
    assert last.get("nothing") is None
    query = last.self_attn.q_proj.weight
    assert query.shape == (256, 256)
    assert query.dtype is DType.bfloat16
    data = query.data()
    assert len(data) == 256
    assert data[0, :2].shape == (2,)
    as_torch = torch.from_dlpack(data)
    assert as_torch.dtype is torch.bfloat16
    assert float((data.astype("float32") * 2).max()) == 2 * float(as_torch.max())
    assert np.asarray(data.astype(np.float16)).dtype == np.float16

    theirs = torch.nn.Linear(8, 4)
    ours = nn.Linear(8, 4, bias=True)
    ours.load_state_dict(dict(theirs.named_parameters()))
    x = np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8)
    with Graph("notebook", [TensorType("float32", ("batch", 8))]) as graph:
        h = ops.clamp(ours(graph.inputs[0]), min=0)
        graph.output(h, h.mean(dim=-1, keepdim=True), h.reshape(-1, 2).permute(1, 0))
    model = InferenceSession().load(graph, ours.state_dict())
    hidden, mean, turned = model(x)
    expected = theirs(torch.from_numpy(x)).clamp(min=0).detach()
    np.testing.assert_allclose(hidden, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(mean, expected.mean(dim=-1, keepdim=True), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(turned, expected.reshape(-1, 2).T, rtol=1e-5, atol=1e-6)

    arrays = {name: np.asarray(value) for name, value in ours.state_dict().items()}
    safetensors.numpy.save_file(arrays, tmp_path / "numpy.safetensors")
    tensors = {name: torch.from_dlpack(value) for name, value in ours.state_dict().items()}
    safetensors.torch.save_file(tensors, tmp_path / "torch.safetensors")
    theirs.load_state_dict(tensors)
    weightctl.save(ours.state_dict(), tmp_path / "ours.safetensors")
    loaded = safetensors.torch.load_file(tmp_path / "ours.safetensors")
    assert torch.equal(loaded["weight"], theirs.weight)

    done = weightctl.convert(theirs.state_dict(), tmp_path / "half.gguf", dtype=torch.float16)
    assert [path.endswith("half.gguf") for path in done.paths] == [True]
    weightctl.convert(weights, tmp_path / "q8.gguf", quant=QuantizationEncoding.Q8_0)
    with weightctl.open_weights(tmp_path / "q8.gguf") as blocks:
        quantized = blocks.blk[0].attn_q.weight
        assert quantized.dtype is QuantizationEncoding.Q8_0
        assert np.asarray(quantized).shape == (256, 256)
    with pytest.raises(FileNotFoundError):
        weightctl.open_weights(tmp_path / "missing.gguf")


def test_values_of_allocated_weights_are_arrays(tiny_llama: Path) -> None:
    weights = weightctl.open_weights(tiny_llama)
    weights.model.norm.weight.allocate()
    (value,) = weights.allocated_weights.values()
    assert isinstance(value, weightctl.driver.DLPackArray)
    assert np.asarray(value).shape == (256,)
    assert torch.from_dlpack(value).dtype is torch.bfloat16


PROGRAM = """
import numpy as np
import weightctl
from weightctl import DType, Graph, TensorType, Weights, nn, open_weights
from weightctl.graph.weights import WeightData

def names(weights: Weights) -> list[str]:
    return [name for name, _ in weights.items()]

tree = open_weights("model.gguf")
data: WeightData = tree.blk[0].attn_q.weight.data().astype(DType.float32)
found: list[str] = names(tree)
with Graph("g", [TensorType("float32", (2, 8))]) as graph:
    graph.output(nn.Linear(8, 4, bias=True)(graph.inputs[0]))
made = weightctl.convert({"w": np.zeros(2, np.float32)}, "out.gguf", dtype="f16", align=64)
paths: list[str] = made.paths
wrong: int = made.paths

from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from weightctl.driver import DLPackArray
from weightctl.graph import DeviceRef, Dim, Weight


class Documented:
    @property
    def name(self) -> str: return ""
    @property
    def allocated_weights(self) -> Mapping[str, DLPackArray]: return {}
    def __getattr__(self, name: str) -> weightctl.Weights: return self
    def __getitem__(self, name: str | int) -> weightctl.Weights: return self
    def exists(self) -> bool: return False
    def data(self) -> weightctl.WeightData: raise KeyError
    def items(self) -> Iterator[tuple[str, weightctl.Weights]]: return iter(())
    def allocate(
        self,
        dtype: weightctl.DType | None = None,
        shape: Iterable[int | str | Dim | np.integer[Any]] | None = None,
        quantization_encoding: weightctl.QuantizationEncoding | None = None,
        device: DeviceRef = DeviceRef.CPU(),
    ) -> Weight: raise NotImplementedError


given: weightctl.Weights = Documented()
weightctl.save(Documented(), "out.gguf")
given.allocate("float16")
"""


@pytest.mark.long
def test_a_program_of_a_user_is_checked_by_its_own_mypy(tmp_path: Path) -> None:
    # mypy finds the package as an editable install has it: a path, and `py.typed`.
    (tmp_path / "user.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path / "cache", "user.py"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    reported = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert len(reported) == 1, done.stdout + done.stderr
    assert reported[0].startswith("user.py:17: error: Incompatible types in assignment")
