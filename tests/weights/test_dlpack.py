from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from typing import Any

import numpy as np
import pytest

from each import each
from lazy import torch
from weightctl import Buffer, DType, QuantizationEncoding, WeightData
from weightctl.codecs.scalar import numpy_dtype
from weightctl.errors import EncodingError

# Torch has every DType; it stores float4 as pairs, which have no DLPack code.
EXPORTED = [d for d in DType if d is not DType.float4_e2m1fn]
IN_NUMPY = [d for d in EXPORTED if numpy_dtype(d).isbuiltin == 1]
each_dtype = each("dtype", EXPORTED, ids=lambda d: d.value)


@pytest.fixture(autouse=True)
def few_objects() -> None:
    """Keep what earlier tests have imported out of garbage collections, which take seconds."""
    gc.freeze()


def buffer_of(dtype: DType, shape: tuple[int, ...] = (2, 3)) -> tuple[Buffer, bytearray]:
    """Return a buffer and its memory, which cannot be resized while it is exported."""
    nbytes = dtype.encoding.nbytes(shape)
    raw = bytearray(n % 2 for n in range(nbytes))
    return Buffer(memoryview(raw), dtype, shape), raw


def is_held(raw: bytearray) -> bool:
    gc.collect()
    try:
        raw.append(0)
    except BufferError:
        return True
    return False


def address(array: Buffer | WeightData) -> int:
    return int(array.to_numpy().__array_interface__["data"][0])


def torch_tensor(dtype: DType) -> torch.Tensor:
    numbers = torch.arange(12) % 2
    return numbers.to(getattr(torch, dtype.value)).reshape(3, 4)


@each_dtype
def test_torch_takes_every_dtype_without_a_copy(dtype: DType) -> None:
    buffer, raw = buffer_of(dtype)
    tensor = torch.from_dlpack(buffer)
    assert tensor.dtype is getattr(torch, dtype.value)
    assert tensor.shape == (2, 3)
    assert tensor.data_ptr() == address(buffer)
    assert tensor.view(torch.uint8).numpy().tobytes() == bytes(raw)


@pytest.mark.parametrize("dtype", IN_NUMPY, ids=lambda d: d.value)
def test_numpy_takes_its_own_types_without_a_copy_and_may_write(dtype: DType) -> None:
    buffer, raw = buffer_of(dtype)
    array = np.from_dlpack(buffer)
    assert array.dtype == np.dtype(dtype.value)
    assert array.__array_interface__["data"][0] == address(buffer)
    array[:] = 0
    assert not any(raw)


@each_dtype
@each("shape", [(), (0,), (3, 0, 2), (1,), (2, 1, 3)], ids=str)
def test_scalars_and_empty_tensors_go_out(dtype: DType, shape: tuple[int, ...]) -> None:
    buffer, _ = buffer_of(dtype, shape)
    assert torch.from_dlpack(buffer).shape == shape


@each_dtype
def test_torch_tensors_come_in_without_a_copy(dtype: DType) -> None:
    tensor = torch_tensor(dtype)
    data = WeightData.from_dlpack(tensor, "w")
    assert (data.dtype, data.shape, data.name) == (dtype, (3, 4), "w")
    assert address(data) == tensor.data_ptr()
    assert data.to_numpy().tobytes() == tensor.view(torch.uint8).numpy().tobytes()


@each_dtype
def test_what_goes_through_torch_comes_back_the_same(dtype: DType) -> None:
    buffer, raw = buffer_of(dtype)
    back = Buffer.from_dlpack(torch.from_dlpack(buffer))
    assert (back.dtype, back.shape, bytes(back.memory)) == (dtype, (2, 3), bytes(raw))


@each_dtype
def test_a_transposed_tensor_comes_in_as_a_contiguous_copy(dtype: DType) -> None:
    tensor = torch_tensor(dtype).T
    buffer = Buffer.from_dlpack(tensor)
    assert buffer.shape == (4, 3)
    assert bytes(buffer.memory) == tensor.contiguous().view(torch.uint8).numpy().tobytes()
    assert address(buffer) != tensor.data_ptr()


def test_a_slice_of_whole_rows_comes_in_where_it_lies() -> None:
    tensor = torch.arange(12.0).reshape(3, 4)[1:]
    assert address(Buffer.from_dlpack(tensor)) == tensor.data_ptr()


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t[:, 1:3], lambda t: t[::2], lambda t: t[:, ::3], lambda t: t[1, 1],
        lambda t: t[:, None, :1], lambda t: t[:0], lambda t: t[1:1].T, lambda t: t.T[2:],
        lambda t: t[:1].expand(5, 4),
    ],
)  # fmt: skip
def test_views_of_any_strides_come_in(view: Any) -> None:
    tensor = view(torch.arange(12.0).reshape(3, 4))
    assert np.array_equal(Buffer.from_dlpack(tensor).to_numpy(), tensor.numpy())


class Offered:
    """An array that supports only DLPack."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self) -> Any:
        return self._array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        device: tuple[int, int] = self._array.__dlpack_device__()
        return device


@pytest.mark.parametrize("view", [lambda a: a[::-1], lambda a: a[::-2, ::-1], lambda a: a.T[::-1]])
def test_arrays_that_run_backwards_come_in(view: Any) -> None:
    array = view(np.arange(12.0).reshape(3, 4))
    assert np.array_equal(Buffer.from_dlpack(Offered(array)).to_numpy(), array)
    assert np.array_equal(Buffer.from_dlpack(array).to_numpy(), array)


@each("dtype", DType, ids=lambda d: d.value)
def test_numpy_arrays_of_every_dtype_come_in_without_a_copy(dtype: DType) -> None:
    array = np.zeros((2, 4), numpy_dtype(dtype))
    buffer = Buffer.from_dlpack(array)
    assert (buffer.dtype, buffer.shape) == (dtype, (2, 4))
    if dtype is not DType.float4_e2m1fn:  # stored unpacked by NumPy
        assert np.shares_memory(buffer.to_numpy(), array)


def test_a_read_only_array_comes_in_as_a_copy() -> None:
    array = np.arange(3.0)
    array.flags.writeable = False
    buffer = Buffer.from_dlpack(array)
    buffer.to_numpy()[0] = 7
    assert array.tolist() == [0, 1, 2]


def test_a_buffer_comes_in_as_itself() -> None:
    buffer, _ = buffer_of(DType.float32)
    assert Buffer.from_dlpack(buffer) is buffer


def test_weight_data_comes_in_without_a_copy() -> None:
    data = WeightData.from_numpy(np.arange(3.0), "w")
    assert address(WeightData.from_dlpack(data, "again")) == address(data)


def test_memory_lives_as_long_as_a_tensor_made_of_it() -> None:
    buffer, raw = buffer_of(DType.bfloat16)
    tensor = torch.from_dlpack(buffer)
    before = tensor.tolist()
    del buffer
    assert is_held(raw)
    assert tensor.tolist() == before
    del tensor
    assert not is_held(raw)


def test_a_tensor_that_came_in_lives_as_long_as_its_buffer() -> None:
    array = np.arange(6.0)
    alive = weakref.ref(array)
    tensor = torch.from_numpy(array)
    data = WeightData.from_dlpack(tensor, "w")
    del array, tensor
    gc.collect()
    assert alive() is not None
    assert data.to_numpy().tolist() == [0, 1, 2, 3, 4, 5]
    del data
    gc.collect()
    assert alive() is None


def test_a_capsule_that_nobody_takes_holds_nothing() -> None:
    buffer, raw = buffer_of(DType.bfloat16)
    for options in ({}, {"max_version": (1, 0)}):
        capsule = buffer.__dlpack__(**options)
        assert "dltensor" in repr(capsule)
        del capsule
    del buffer
    assert not is_held(raw)


def test_a_capsule_dropped_while_an_exception_flies_holds_nothing() -> None:
    buffer, raw = buffer_of(DType.bfloat16)
    for _ in range(10):
        with pytest.raises(ZeroDivisionError):
            print(buffer.__dlpack__(), 1 / 0)
    del buffer
    assert not is_held(raw)


def test_a_type_that_comes_in_without_a_dtype_is_refused_and_given_back() -> None:
    array = np.zeros(4, np.float16)
    alive = weakref.ref(array)
    with pytest.raises(BufferError, match="no DType matches DLPack type 5 with 32 bits"):
        Buffer.from_dlpack(torch.from_numpy(array).view(torch.complex32))
    del array
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("kind", ["clongdouble", "U3", "M8[s]", "O"])
def test_a_numpy_array_without_a_dtype_is_refused(kind: str) -> None:
    with pytest.raises(EncodingError, match="no DType matches arrays of"):
        Buffer.from_numpy(np.zeros(2, kind))


def test_float4_cannot_go_out() -> None:
    with pytest.raises(BufferError, match="DLPack does not support float4_e2m1fn"):
        buffer_of(DType.float4_e2m1fn, (4,))[0].__dlpack__()


def test_a_copy_is_one_when_it_is_asked_for() -> None:
    buffer, _ = buffer_of(DType.float32)
    assert not np.shares_memory(np.from_dlpack(buffer, copy=True), buffer.to_numpy())
    assert np.shares_memory(np.from_dlpack(buffer, copy=False), buffer.to_numpy())


def test_read_only_memory_goes_out_as_a_copy() -> None:
    buffer = Buffer(memoryview(bytes(8)), DType.float32, (2,))
    array = np.from_dlpack(buffer)
    array[0] = 1
    assert buffer.to_numpy().tolist() == [0, 0]
    with pytest.raises(BufferError):
        buffer.__dlpack__(copy=False)


def test_another_device_is_refused() -> None:
    buffer, _ = buffer_of(DType.float32)
    assert buffer.__dlpack_device__() == (1, 0)
    with pytest.raises((BufferError, ValueError)):
        buffer.__dlpack__(dl_device=(2, 0))


class OnAnotherDevice(Offered):
    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)


def test_an_array_on_another_device_is_refused() -> None:
    with pytest.raises(BufferError, match="copy it to the CPU first"):
        Buffer.from_dlpack(OnAnotherDevice(np.zeros(2)))


def test_quantized_data_goes_out_as_its_bytes() -> None:
    raw = np.arange(68, dtype=np.uint8).reshape(2, 34)
    encoding = QuantizationEncoding.Q8_0
    data = WeightData(Buffer.from_numpy(raw), "w", DType.uint8, (2, 34), encoding)
    assert torch.from_dlpack(data).tolist() == raw.tolist()


def test_memory_on_odd_addresses_goes_out() -> None:
    raw = memoryview(bytearray(13))[1:]
    raw[:] = np.arange(3, dtype=np.float32).tobytes()
    buffer = Buffer(raw, DType.float32, (3,))
    assert np.from_dlpack(buffer).tolist() == [0, 1, 2]
    assert torch.from_dlpack(buffer).tolist() == [0, 1, 2]


def test_what_is_still_held_at_exit_does_no_harm() -> None:
    program = (
        "import numpy as np, torch, weightctl\n"
        "buffer = weightctl.Buffer.from_numpy(np.zeros(4, np.float32))\n"
        "tensor, array = torch.from_dlpack(buffer), np.from_dlpack(buffer)\n"
        "capsule, back = buffer.__dlpack__(), weightctl.Buffer.from_dlpack(torch.zeros(3))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
