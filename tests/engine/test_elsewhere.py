"""Arrays of another device are taken wherever arrays are; a fake stands in for those of a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from each import each
from engine_graphs import F32, numbers
from graphics import on_a_gpu
from weightctl import DeviceRef, DType, WeightData, nn
from weightctl.engine import InferenceSession
from weightctl.errors import StateDictError
from weightctl.graph import Graph, TensorType

CPU, GPU = DeviceRef.CPU(), DeviceRef.GPU(0)


class Elsewhere:
    """A tensor that is on a GPU, as far as others can see."""

    requires_grad = False

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._tensor = torch.from_numpy(array)
        self.shape, self.dtype = self._tensor.shape, self._tensor.dtype
        self.copies = 0

    def cpu(self) -> torch.Tensor:
        self.copies += 1
        return self._tensor

    def __dlpack__(self, **_: Any) -> Any:
        raise BufferError("a tensor of a GPU has no memory here")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)


def test_a_module_takes_a_tensor_of_a_gpu_and_does_not_copy_it() -> None:
    layer, weight = nn.Linear(4, 3), Elsewhere(numbers(3, 4))
    layer.load_state_dict({"weight": weight})
    assert layer.state_dict()["weight"] is weight
    assert not weight.copies


def test_a_module_refuses_a_tensor_of_a_gpu_of_another_shape_or_dtype() -> None:
    layer = nn.Linear(4, 3)
    for wrong in (numbers(4, 3), numbers(3, 4).astype(np.float64)):
        with pytest.raises(StateDictError, match="weight"):
            layer.load_state_dict({"weight": Elsewhere(wrong)})


def test_data_on_a_gpu_becomes_a_buffer_here() -> None:
    x = numbers(3, 4)
    for data in (
        WeightData(Elsewhere(x), "w", DType.float32, (3, 4)),
        WeightData.from_dlpack(Elsewhere(x), "w"),
    ):
        buffer = data.to_buffer()
        assert buffer.__dlpack_device__() == (1, 0)
        np.testing.assert_array_equal(buffer.to_numpy(), x)


def product(device: DeviceRef) -> tuple[nn.Linear, Graph]:
    layer = nn.Linear(64, 32, dtype=DType.bfloat16, device=device)
    with Graph("product", [TensorType(F32, (2, 64), device)]) as graph:
        graph.output(graph.inputs[0] @ layer.weight.cast(F32).T)
    return layer, graph


@on_a_gpu
@each("device", [CPU, GPU])
@each("resident", [False, True])
def test_weights_on_a_gpu_are_used_on_either_device(device: DeviceRef, resident: bool) -> None:
    layer, graph = product(device)
    weight = torch.from_numpy(numbers(32, 64)).to(torch.bfloat16).cuda()
    layer.load_state_dict({"weight": weight})
    data = WeightData.from_dlpack(weight, "weight")
    expected = numbers(2, 64, seed=1) @ weight.float().cpu().numpy().T
    for registry in (layer.state_dict(), {"weight": data}):
        model = InferenceSession([CPU, GPU]).load(graph, registry, resident=resident)
        (found,) = model.execute(numbers(2, 64, seed=1))
        assert found.device == device
        np.testing.assert_allclose(found.to_numpy(), expected, rtol=1e-4, atol=1e-4)
