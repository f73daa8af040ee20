"""Arrays become tensors and tensors buffers, sharing memory where they can."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest

from each import each
from engine_graphs import F32, numbers
from graphics import on_a_gpu
from lazy import torch
from weightctl import Buffer, DeviceRef, DType, WeightData, nn
from weightctl.engine import DeviceBuffer, InferenceSession
from weightctl.engine.arrays import buffer_of, tensor_of
from weightctl.errors import EngineError, StateDictError
from weightctl.graph import Graph, TensorType
from weightctl.graph.ops.lowering import dtype_of, torch_device, torch_dtype

if TYPE_CHECKING:
    from collections.abc import Callable


DTYPES = [dtype for dtype in DType if dtype is not DType.float4_e2m1fn]


def made(dtype: DType, *shape: int) -> torch.Tensor:
    bits = torch.arange(int(np.prod(shape)) * dtype.encoding.size, dtype=torch.uint8) % 2
    return bits.view(torch_dtype(dtype)).reshape(shape)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    assert one.dtype is other.dtype
    return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))


@each("dtype", DTYPES, ids=lambda dtype: dtype.value)
@each("shape", [(2, 3), (), (0, 3)])
def test_numbers_of_every_type_go_there_and_back_without_a_copy(
    dtype: DType, shape: tuple[int, ...]
) -> None:
    tensor = made(dtype, *shape)
    buffer = buffer_of(tensor)
    assert (buffer.dtype, buffer.shape) == (dtype, shape)
    for given in (tensor, buffer, buffer.to_numpy()):
        back = tensor_of(given)
        assert back.shape == shape
        assert same(back, tensor)
        assert back.data_ptr() == tensor.data_ptr()


@each("dtype", DTYPES, ids=lambda dtype: dtype.value)
def test_every_type_has_one_name_on_either_side(dtype: DType) -> None:
    assert dtype_of(torch_dtype(dtype)) is dtype


def test_what_torch_has_no_type_for_is_refused() -> None:
    with pytest.raises(EngineError, match="torch does not support float4_e2m1fn"):
        torch_dtype(DType.float4_e2m1fn)
    with pytest.raises(EngineError, match=r"no DType matches tensors of torch\.complex32"):
        dtype_of(torch.complex32)


@pytest.mark.filterwarnings("ignore:Sparse CSR:UserWarning", "ignore:The PyTorch API of nested")
@each(
    "make, says",
    [
        (lambda tensor: tensor.to_sparse(), "a sparse_coo tensor"),
        (lambda tensor: tensor.to_sparse_csr(), "a sparse_csr tensor"),
        (lambda tensor: tensor.to_mkldnn(), "a _mkldnn tensor"),
        (lambda tensor: torch.nested.nested_tensor(list(tensor)), "a nested tensor"),
        (lambda tensor: tensor.to("meta"), "a tensor on the meta device has no data"),
        (lambda tensor: np.ma.masked_array(tensor, tensor), "the mask of a masked array"),
        (lambda tensor: np.ma.masked_array(tensor[0, 0], True), "the mask of a masked array"),
    ],
    ids=["sparse", "rows", "mkldnn", "nested", "meta", "masked", "masked scalar"],
)
def test_what_is_not_a_dense_array_of_numbers_is_refused(
    make: Callable[[torch.Tensor], Any], says: str
) -> None:
    given = make(torch.ones(2, 2))
    with pytest.raises(EngineError, match=says):
        tensor_of(given)


def test_what_fails_to_offer_dlpack_is_refused() -> None:
    class Failing:
        def __dlpack__(self) -> Any:
            raise BufferError("busy")

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    with pytest.raises(EngineError, match="Failing cannot be read: busy"):
        tensor_of(Failing())


def test_devices_are_torchs() -> None:
    assert torch_device(DeviceRef.GPU(1)) == torch.device("cuda", 1)
    assert torch_device(DeviceRef.CPU(3)) == torch.device("cpu")


def test_an_array_that_nobody_may_write_to_is_not_copied() -> None:
    array = np.arange(4, dtype=np.float32)
    array.flags.writeable = False
    tensor = tensor_of(array)
    assert tensor.data_ptr() == array.ctypes.data
    del array
    assert tensor.tolist() == [0, 1, 2, 3]


@each(
    "array",
    [
        np.arange(6, dtype=np.int64).reshape(2, 3).T,
        np.arange(6, dtype=np.int64)[::-1],
        np.arange(6, dtype=">i8"),
        np.frombuffer(b"\0" + np.arange(6, dtype=np.int64).tobytes(), np.uint8)[1:].view(np.int64),
        np.int64(3),
        np.arange(3).astype(ml_dtypes.bfloat16),
    ],
    ids=["transposed", "backwards", "big-endian", "unaligned", "scalar", "bfloat16"],
)
def test_arrays_of_any_layout_keep_their_numbers(array: Any) -> None:
    assert tensor_of(array).double().tolist() == np.asarray(array).astype(np.float64).tolist()


def test_what_offers_dlpack_is_taken_without_a_copy() -> None:
    class Offered:
        def __init__(self, tensor: torch.Tensor) -> None:
            self.__dlpack__ = tensor.__dlpack__
            self._tensor = tensor

        def __dlpack_device__(self) -> tuple[int, int]:
            return self._tensor.__dlpack_device__()

    tensor = torch.arange(3, dtype=torch.bfloat16)
    found = tensor_of(Offered(tensor))
    assert found.data_ptr() == tensor.data_ptr()
    assert same(found, tensor)


def test_tensors_that_track_gradients_and_views_in_disguise_are_plain_numbers() -> None:
    assert tensor_of(torch.ones(2, requires_grad=True)).tolist() == [1, 1]
    conjugate = torch.tensor([1 + 2j]).conj()
    assert buffer_of(tensor_of(conjugate)).to_numpy().tolist() == [1 - 2j]


def test_a_buffer_of_a_device_is_a_buffer() -> None:
    # The CPU stands in: the rest is in the tests that a graphics processor runs.
    tensor = made(DType.bfloat16, 2, 3)
    buffer = DeviceBuffer(tensor)
    assert isinstance(buffer, Buffer)
    assert (buffer.dtype, buffer.shape, buffer.nbytes, buffer.size) == (
        DType.bfloat16, (2, 3), 12, 6,
    )  # fmt: skip
    assert repr(buffer) == "Buffer([2, 3])"
    assert buffer.device == DeviceRef.CPU()
    assert buffer.address == tensor.data_ptr()
    assert torch.from_dlpack(buffer).data_ptr() == tensor.data_ptr()
    assert tensor_of(buffer) is tensor
    assert np.asarray(buffer).tolist() == tensor.tolist()
    assert not np.shares_memory(buffer.to_numpy(), tensor.view(torch.uint8).numpy())
    assert bytes(buffer.memory) == bytes(buffer_of(tensor).memory)
    restored = pickle.loads(pickle.dumps(buffer))
    assert type(restored) is Buffer
    assert restored.to_numpy().tolist() == tensor.tolist()


# Arrays of another device are taken wherever arrays are; a fake stands in for those of a GPU.


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
