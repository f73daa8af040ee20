""""""

from __future__ import annotations

import copy
import os
import pickle
from math import prod
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from hypothesis import given, settings
from hypothesis import strategies as st

from build import Gguf, Tensor, safetensors_of
from each import each
from lazy import torch
from weightctl import Buffer, DType, QuantizationEncoding, Shape, WeightData, open_weights
from weightctl.codecs.scalar import numpy_dtype
from weightctl.dtype import ENCODINGS, unknown_encoding
from weightctl.errors import EncodingError, FormatError
from weightctl.formats.pickles.machine import load
from weightctl.split import Cut, Part, part_shape
from weightctl.storage.base import HeldRange
from weightctl.storage.files import open_reader
from weightctl.weights import TensorInfo
from weightctl.weights.byte_ranges import (
    boxes,
    byte_part,
    byte_shape,
    collect,
    find_overlaps,
    scatter,
)
from weightctl.weights.strided import gather

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from weightctl.storage.base import Reader


FLOATS = [DType.float16, DType.bfloat16, DType.float32, DType.float64]
SATURATING = {
    DType.float8_e4m3fn: 448, DType.float8_e4m3fnuz: 240, DType.float8_e5m2fnuz: 57344,
    DType.float4_e2m1fn: 6,
}  # fmt: skip
OVERFLOWING = [DType.float16, DType.bfloat16, DType.float8_e5m2]


def data_of(numbers: object, dtype: DType = DType.float32) -> WeightData:
    return WeightData.from_numpy(np.array(numbers, numpy_dtype(dtype)), "layer.weight")


def values(data: WeightData) -> list[float]:
    return [float(number) for number in data.to_numpy().reshape(-1)]


def quantized(shape: tuple[int, ...] = (2, 3, 64)) -> tuple[WeightData, NDArray[np.uint8]]:
    info = TensorInfo("w", shape, QuantizationEncoding.Q8_0.encoding)
    raw = np.arange(info.nbytes, dtype=np.uint8) % 60  # scales without infinities
    return WeightData.stored(info, memoryview(bytearray(raw))), raw.reshape(6, 68)


def test_an_array_whose_mask_would_be_lost_is_refused() -> None:
    masked = np.ma.masked_array([1.0, 2.0], [True, False])
    with pytest.raises(EncodingError, match="mask of a masked array"):
        WeightData.from_numpy(masked, "w")
    with pytest.raises(EncodingError, match="mask of a masked array"):
        WeightData(masked, "w", DType.float64, (2,)).to_buffer()


def test_an_array_gives_dtype_and_shape() -> None:
    data = WeightData.from_numpy(np.zeros((5, 10), np.float16), "layer.weight")
    assert (data.name, data.dtype, data.shape) == ("layer.weight", DType.float16, (5, 10))
    assert isinstance(data.shape, Shape)
    assert data.quantization_encoding is None
    assert data.info == TensorInfo("layer.weight", (5, 10), DType.float16.encoding)
    assert repr(data) == "WeightData('layer.weight', DType.float16, [5, 10])"


@each(
    ("dtype", "shape"),
    [(d, s) for d in DType for s in [(), (0,), (2,), (3, 2, 2)] if d.encoding.fits(s)],
    ids=str,
)
def test_an_array_of_any_dtype_and_shape_comes_back(dtype: DType, shape: tuple[int, ...]) -> None:
    array = np.ones(shape, numpy_dtype(dtype))
    data = WeightData.from_numpy(array, "w")
    back = data.to_numpy()
    assert (data.dtype, data.shape, back.dtype) == (dtype, shape, array.dtype)
    assert np.array_equal(back, array)
    assert data.to_buffer().nbytes == dtype.encoding.nbytes(shape)


def test_a_contiguous_array_is_not_copied() -> None:
    array = np.zeros(3)
    assert np.shares_memory(WeightData.from_numpy(array, "w").to_numpy(), array)


@pytest.mark.parametrize("kind", [">f4", ">i2", ">c8"])
def test_an_array_in_the_other_byte_order_is_turned(kind: str) -> None:
    data = WeightData.from_numpy(np.array([1, 2], kind), "w")
    assert data.to_numpy().dtype == np.dtype(kind).newbyteorder("=")
    assert data.to_numpy().tolist() == [1, 2]


def test_data_may_be_any_array_that_offers_dlpack() -> None:
    tensor = torch.arange(4.0).reshape(2, 2)
    data = WeightData(tensor, "w", DType.float32, [2, 2])
    assert data.data is tensor
    assert values(data.astype(DType.float16)) == [0, 1, 2, 3]
    assert bytes(data.view(4, 8)) == np.float32(1).tobytes()


class OnlyDLPack:
    """An array that does not describe itself."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.__dlpack__, self.__dlpack_device__ = tensor.__dlpack__, tensor.__dlpack_device__


@pytest.mark.parametrize(
    ("dtype", "shape"), [(DType.int32, (2,)), (DType.float32, (3,)), (DType.float32, (1, 2))]
)
def test_an_array_that_does_not_describe_itself_is_checked_on_use(
    dtype: DType, shape: tuple[int, ...]
) -> None:
    data = WeightData(OnlyDLPack(torch.ones(2)), "w", dtype, shape)
    with pytest.raises(
        EncodingError, match=r"`w` is declared as .*, but its data is float32 \[2\]"
    ):
        data.to_buffer()


def test_to_buffer_turns_the_data_into_a_buffer() -> None:
    data = WeightData(torch.zeros(5, 10), "w", DType.float32, (5, 10))
    buffer = data.to_buffer()
    assert isinstance(buffer, Buffer)
    assert data.data is buffer is data.to_buffer()


def test_a_buffer_prints_its_shape() -> None:
    assert str(data_of(np.zeros((5, 10))).to_buffer()) == "Buffer([5, 10])"
    assert str(data_of(1).to_buffer()) == "Buffer([])"


def test_a_buffer_says_what_it_holds() -> None:
    buffer = data_of(np.zeros((5, 10)), DType.bfloat16).to_buffer()
    assert (buffer.dtype, buffer.shape, buffer.size, buffer.nbytes) == (
        (DType.bfloat16, (5, 10), 50, 100)
    )
    assert str(buffer.device) == "cpu:0"


def test_a_buffer_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(
        EncodingError,
        match=r"an array of shape \[2, 2\] and dtype float32 needs 16 bytes, but 15 were given",
    ):
        Buffer(memoryview(bytes(15)), DType.float32, (2, 2))


@each("dtype", DType, ids=lambda d: d.value)
def test_a_buffer_can_be_pickled_and_copied(dtype: DType) -> None:
    buffer = data_of([1, 0], dtype).to_buffer()
    for twin in (pickle.loads(pickle.dumps(buffer)), copy.deepcopy(buffer)):
        assert (twin.dtype, twin.shape, bytes(twin.memory)) == (dtype, (2,), bytes(buffer.memory))


def test_numpy_sees_the_numbers() -> None:
    data = data_of([1, 2])
    assert np.asarray(data).dtype == np.float32
    assert np.shares_memory(np.asarray(data), data.to_numpy())
    assert not np.shares_memory(np.array(data), data.to_numpy())
    assert np.asarray(data, np.float64).tolist() == [1, 2]
    with pytest.raises(ValueError, match="copy"):
        np.asarray(data, np.float64, copy=False)


@each("dtype", DType, ids=lambda d: d.value)
def test_astype_to_its_own_dtype_is_the_data_itself(dtype: DType) -> None:
    data = data_of([1, 1], dtype)
    assert data.astype(dtype) is data


def test_astype_keeps_name_and_shape() -> None:
    data = data_of([[1.5, 2], [3, 4]]).astype(DType.float16)
    assert (data.name, data.dtype, data.shape) == ("layer.weight", DType.float16, (2, 2))
    assert data.info == TensorInfo("layer.weight", (2, 2), DType.float16.encoding)
    assert values(data) == [1.5, 2, 3, 4]


@pytest.mark.parametrize("dtype", [DType.float16, DType.bfloat16], ids=lambda d: d.value)
def test_float32_is_rounded_as_torch_does(dtype: DType) -> None:
    bits = np.random.default_rng(7).integers(0, 1 << 32, 20_000, np.uint32)
    numbers = bits.view(np.float32)
    expected = torch.from_numpy(numbers).to(getattr(torch, dtype.value)).to(torch.float64).numpy()
    found = data_of(numbers).astype(dtype).to_numpy().astype(np.float64)
    assert np.array_equal(found, expected, equal_nan=True)
    signed = ~np.isnan(numbers)
    assert np.array_equal(np.signbit(found[signed]), np.signbit(expected[signed]))


def test_float64_is_rounded_once() -> None:
    # Just above the middle of two bfloat16 values; as float32, it would be the middle and round
    # down.
    number = 1 + 2**-8 + 2**-40
    assert values(data_of([number], DType.float64).astype(DType.bfloat16)) == [1 + 2**-7]


@pytest.mark.parametrize("dtype", OVERFLOWING, ids=lambda d: d.value)
def test_what_is_too_large_becomes_an_infinity_where_there_is_one(dtype: DType) -> None:
    numbers = [1e300, -1e300, np.inf, -np.inf]
    assert values(data_of(numbers, DType.float64).astype(dtype)) == [np.inf, -np.inf] * 2


@pytest.mark.parametrize("dtype", SATURATING, ids=lambda d: d.value)
def test_what_is_too_large_is_held_at_the_largest_where_there_is_no_infinity(dtype: DType) -> None:
    largest = SATURATING[dtype]
    numbers = [1e300, -1e300, np.inf, -np.inf]
    assert values(data_of(numbers, DType.float64).astype(dtype)) == [largest, -largest] * 2


@pytest.mark.parametrize(
    "dtype", [d for d in DType if d.is_float and d is not DType.float4_e2m1fn], ids=str
)
def test_nan_stays_nan(dtype: DType) -> None:
    for source in FLOATS:
        assert np.isnan(values(data_of([np.nan], source).astype(dtype))).all()


def test_nan_cannot_become_float4() -> None:
    with pytest.raises(EncodingError, match="element 1 is nan, which float4_e2m1fn cannot hold"):
        data_of([1, np.nan]).astype(DType.float4_e2m1fn)


@pytest.mark.parametrize("number", [0.0, -1.0])
def test_a_number_that_is_not_a_scale_cannot_become_float8_e8m0fnu(number: float) -> None:
    with pytest.raises(EncodingError, match="which float8_e8m0fnu cannot hold"):
        data_of([1, number]).astype(DType.float8_e8m0fnu)


@each("source", [d for d in DType if d.is_integer], ids=str)
@each("target", [d for d in DType if d.is_float], ids=str)
def test_integers_become_floats(source: DType, target: DType) -> None:
    assert values(data_of([1, 2, 4, 4], source).astype(target)) == [1, 2, 4, 4]


def test_truth_values_become_numbers() -> None:
    assert values(data_of([0, 1], DType.bool).astype(DType.bfloat16)) == [0, 1]
    assert values(data_of([0, 1], DType.bool).astype(DType.int16)) == [0, 1]


@each("source", [d for d in DType if d.is_float], ids=str)
@each("target", [DType.int8, DType.uint64, DType.bool], ids=str)
def test_floats_become_integers_and_truth_values_as_in_numpy(source: DType, target: DType) -> None:
    data = data_of([1, 4], source)
    assert values(data.astype(target)) == data.to_numpy().astype(target.value).tolist()


def test_floats_that_become_integers_lose_their_fractions() -> None:
    numbers = np.array([1.9, -1.9, 0.5, -127.9], np.float32)
    made = WeightData.from_numpy(numbers, "w").astype(DType.int8)
    assert made.to_numpy().tolist() == numbers.astype(np.int8).tolist() == [1, -1, 0, -127]


@pytest.mark.parametrize(
    ("number", "target"),
    [(128.0, DType.int8), (-1.0, DType.uint8), (2.0**63, DType.int64), (2.0**64, DType.uint64),
     (np.nan, DType.int32), (np.inf, DType.int64)],
)  # fmt: skip
def test_a_float_that_an_integer_cannot_hold_is_an_error(number: float, target: DType) -> None:
    data = WeightData.from_numpy(np.array([0.0, number]), "w")
    with pytest.raises(EncodingError, match=f"`w`: element 1 is .* {target.value} cannot hold"):
        data.astype(target)


@pytest.mark.parametrize("dtype", [DType.float32, DType.int8, DType.bool], ids=str)
def test_complex_numbers_stay_complex(dtype: DType) -> None:
    with pytest.raises(EncodingError, match="cannot be converted from"):
        data_of([1], dtype).astype(DType.complex64)
    with pytest.raises(EncodingError, match="cannot be converted from"):
        data_of([1], DType.complex64).astype(dtype)


def test_an_integer_that_does_not_fit_is_an_error() -> None:
    data = data_of([-1, 300], DType.int64)
    assert values(data.astype(DType.int16)) == [-1, 300]
    with pytest.raises(
        EncodingError, match=r"`layer\.weight`: element 1 is 300, which int8 .*\n.*clip"
    ):
        data.astype(DType.int8)
    with pytest.raises(EncodingError, match="element 0 is -1, which uint16 cannot hold"):
        data.astype(DType.uint16)


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (2, 1, 3)], ids=str)
def test_any_shape_is_converted(shape: tuple[int, ...]) -> None:
    data = data_of(np.ones(shape)).astype(DType.bfloat16)
    assert data.shape == shape
    assert data.to_numpy().shape == shape


def test_two_float4_share_a_byte_the_first_in_the_low_bits() -> None:
    data = data_of([[0.5, 1, 1.5], [-6, 0, -0.5]]).astype(DType.float4_e2m1fn)
    assert bytes(data.view()).hex() == "21f390"
    assert data.to_numpy().dtype == ml_dtypes.float4_e2m1fn
    assert values(data.astype(DType.float32)) == [0.5, 1, 1.5, -6, 0, -0.5]


@pytest.mark.parametrize("shape", [(), (3,), (3, 3)], ids=str)
def test_an_odd_number_of_float4_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(EncodingError):
        data_of(np.ones(shape)).astype(DType.float4_e2m1fn)
    with pytest.raises(EncodingError):
        data_of(np.ones(shape), DType.float4_e2m1fn)


def test_quantized_data_is_rows_of_bytes_with_a_logical_side() -> None:
    data, raw = quantized()
    assert (data.dtype, data.shape) == (DType.uint8, (6, 68))
    assert data.quantization_encoding is QuantizationEncoding.Q8_0
    assert data.info == TensorInfo("w", (2, 3, 64), QuantizationEncoding.Q8_0.encoding)
    assert np.array_equal(data.blocks, raw)
    assert repr(data) == "WeightData('w', QuantizationEncoding.Q8_0, [2, 3, 64])"


@pytest.mark.parametrize("dtype", [*FLOATS, DType.float8_e4m3fn], ids=str)
def test_astype_dequantizes(dtype: DType) -> None:
    data, raw = quantized()
    found = data.astype(dtype)
    expected = dequantize(raw, GGMLQuantizationType.Q8_0).reshape(2, 3, 64)
    assert (found.dtype, found.shape, found.quantization_encoding) == (dtype, (2, 3, 64), None)
    same = data_of(expected).astype(dtype)
    assert bytes(found.view()) == bytes(same.view())


@pytest.mark.parametrize("shape", [(0, 64), (3, 0), (2, 0, 64)], ids=str)
def test_empty_quantized_data_is_dequantized(shape: tuple[int, ...]) -> None:
    info = TensorInfo("w", shape, QuantizationEncoding.Q8_0.encoding)
    data = WeightData.stored(info, memoryview(bytearray()))
    assert data.astype(DType.float16).shape == shape


def test_quantized_data_stays_itself_as_bytes_and_is_dequantized_for_integers() -> None:
    data, _ = quantized()
    assert data.astype(DType.uint8) is data
    numbers = data.astype(DType.float32).to_numpy()
    assert np.array_equal(data.astype(DType.int32).to_numpy(), numbers.astype(np.int32))


@pytest.mark.parametrize("shape", [(), (2, 35)], ids=str)
def test_quantized_data_that_is_not_whole_blocks_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(EncodingError, match="not a whole number of Q8_0 blocks"):
        WeightData(np.zeros(shape, np.uint8), "w", DType.uint8, shape, QuantizationEncoding.Q8_0)


def test_data_of_an_unknown_encoding_is_not_interpreted() -> None:
    info = TensorInfo("w", (4,), unknown_encoding("gguf", 99, 4, 8))
    with pytest.raises(
        EncodingError, match="weightctl does not support gguf type 99, the encoding of `w`"
    ):
        WeightData.stored(info, memoryview(bytes(8)))


def test_a_new_name_leaves_the_old_one() -> None:
    data, _ = quantized()
    other = data.with_name("v")
    assert (data.name, data.info.name) == ("w", "w")
    assert (other.name, other.info.name, other.info.shape) == ("v", "v", (2, 3, 64))
    assert other.to_buffer() is data.to_buffer()


@pytest.mark.parametrize("container", ["safetensors", "gguf"])
def test_writing_into_mapped_data_never_changes_the_file(container: str, tmp_path: Path) -> None:
    raw = np.arange(4, dtype="<f4").tobytes()
    made = {
        "safetensors": safetensors_of({"w": ("F32", (4,), raw)}),
        "gguf": Gguf().file([Tensor("w", (4,), 0, raw)]),
    }[container]
    path = tmp_path / "model"
    path.write_bytes(made)
    weights = open_weights(path)
    data = weights.w.data()
    data.to_numpy()[:] = 7
    np.from_dlpack(data)[0] = 8
    torch.from_dlpack(data)[1] = 9
    assert values(data) == [8, 9, 7, 7]
    assert values(weights.w.data()) == [0, 1, 2, 3]
    assert path.read_bytes() == made


def test_data_outlives_the_tree_it_came_from(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors_of({"w": ("U8", (4,), b"\1\2\3\4")}))
    array = open_weights(path).w.data().to_numpy()
    path.unlink()
    assert array.tolist() == [1, 2, 3, 4]


# Elements that are not contiguous are gathered as NumPy does.


EXAMPLES = settings(max_examples=150, deadline=None, derandomize=True, database=None)


@st.composite
def views(draw: st.DrawFn) -> np.ndarray:
    """Draw any view of an array: transposed, sliced with steps, expanded."""
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    kind = draw(st.sampled_from(["u1", "u2", "f4", "f8", "c16"]))
    array = np.arange(np.prod(shape)).astype(kind).reshape(shape)
    array = array.transpose(draw(st.permutations(range(array.ndim))))
    array = array[tuple(slice(None, None, draw(st.integers(1, 3))) for _ in array.shape)]
    axis = draw(st.integers(0, array.ndim - 1))
    if draw(st.booleans()):
        array = np.broadcast_to(array[..., None], (*array.shape, draw(st.integers(1, 4))))
    return np.moveaxis(array, axis, 0)


@EXAMPLES
@given(views(), st.data())
def test_any_run_of_elements_is_that_of_the_whole(array: np.ndarray, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, array.size))
    stop = data.draw(st.integers(start, array.size))
    base = array
    while isinstance(base.base, np.ndarray):
        base = base.base
    begin = array.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    memory = memoryview(base).cast("B")[begin:]
    out = bytearray((stop - start) * array.itemsize)
    if out:
        gather(
            HeldRange(memory), array.itemsize, array.shape,
            strides=array.strides, start=start, out=memoryview(out),
        )  # fmt: skip
    assert bytes(out) == array.tobytes()[start * array.itemsize : stop * array.itemsize]


@pytest.mark.parametrize("pieces", [1, 3, 7])
def test_pieces_make_the_whole(pieces: int) -> None:
    array = np.arange(2 * 3 * 5 * 7, dtype="u4").reshape(2, 3, 5, 7).transpose(3, 1, 0, 2)
    memory = memoryview(array.base).cast("B")
    whole = bytearray()
    for places in np.array_split(np.arange(array.size), pieces):
        out = bytearray(len(places) * 4)
        gather(
            HeldRange(memory), 4, array.shape,
            strides=array.strides, start=int(places[0]), out=memoryview(out),
        )  # fmt: skip
        whole += out
    assert bytes(whole) == array.tobytes()


def test_a_scalar_is_one_element() -> None:
    out = bytearray(2)
    gather(HeldRange(memoryview(b"abcd")), 2, (), strides=(), start=0, out=memoryview(out))
    assert bytes(out) == b"ab"


# Ranges of files are read on demand, and no more than requested.


LETTERS = bytes(range(97, 123))


class Counted(HeldRange):
    """Bytes in memory that record each read."""

    def __init__(self, memory: memoryview) -> None:
        super().__init__(memory)
        self.reads: list[int] = []

    def read(self, start: int, nbytes: int) -> bytes:
        found = super().read(start, nbytes)
        self.reads.append(len(found))
        return found


@pytest.fixture
def file(tmp_path: Path) -> Reader:
    (tmp_path / "letters").write_bytes(LETTERS)
    return open_reader(str(tmp_path / "letters"))


@pytest.mark.parametrize(
    ("start", "nbytes", "expected"),
    [(0, 3, b"abc"), (24, 9, b"yz"), (26, 1, b""), (99, 1, b""), (3, 0, b""), (3, -1, b"")],
)
def test_a_read_ends_where_the_file_does(
    start: int, nbytes: int, expected: bytes, file: Reader
) -> None:
    assert file.read(start, nbytes) == expected
    assert file.range().read(start, nbytes) == expected
    assert HeldRange(memoryview(LETTERS)).read(start, nbytes) == expected


def test_the_end_of_a_file_is_all_of_a_small_one(file: Reader) -> None:
    assert (file.read_end(2), file.read_end(99)) == (b"yz", LETTERS)


@pytest.mark.parametrize(("start", "stop"), [(2, 5), (2, 99), (30, 40), (5, 2)])
def test_a_part_of_a_range_ends_where_the_range_does(start: int, stop: int, file: Reader) -> None:
    for whole in (file.range(1), HeldRange(memoryview(LETTERS)[1:])):
        part = whole.part(start, stop)
        expected = LETTERS[1:][start:stop]
        assert (len(part), part.read(0, 99)) == (len(expected), expected)
        assert part.read(1, 1) == expected[1:2]


@pytest.mark.parametrize("size", [0, 5])
def test_a_read_behind_a_new_end_is_an_error(size: int, file: Reader) -> None:
    os.truncate(file.path, size)
    message = f"byte {max(size, 2)}: the file ends here: it became shorter while it was read"
    with pytest.raises(FormatError, match=message) as caught:
        file.read(2, 8)
    assert "try again" in caught.value.hint


def nothing(identity: Any) -> Any:
    raise ValueError(identity)


def test_long_bytes_in_a_pickle_are_not_read() -> None:
    arrays = [bytes(5_000_000), "a text", bytes(5_000_000)]
    raw = pickle.dumps(arrays, 4)
    data = Counted(memoryview(raw))
    (first, text, last), end = load(data, 0, {}, nothing)
    assert (text, end) == ("a text", len(raw))
    assert raw[first.start : first.stop] == raw[last.start : last.stop] == bytes(5_000_000)
    assert sum(data.reads) < 100_000


@pytest.mark.parametrize("step", [64, 1 << 14, 3 << 18])
def test_elements_far_apart_are_read_in_small_pieces(step: int) -> None:
    memory = np.arange(24 * step, dtype="u1")
    memory[::step] = range(24)
    data, out = Counted(memory.data), bytearray(24)
    gather(data, 1, (4, 6), strides=(step, 4 * step), start=0, out=memoryview(out))
    assert bytes(out) == memory[::step].reshape(6, 4).T.tobytes()
    assert max(data.reads) <= 1 << 20
    assert sum(data.reads) <= len(memory)


# Parts of tensors in bytes, compared with NumPy's selection of the same elements.


@st.composite
def cut_shapes(draw: st.DrawFn) -> tuple[tuple[int, ...], Part]:
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=4)))
    cuts: list[Cut] = []
    for axis, size in enumerate(shape):
        ends = sorted(draw(st.sets(st.integers(0, size), max_size=4)))
        ranges = tuple(zip(ends[::2], ends[1::2], strict=False))
        is_cut: bool = draw(st.booleans())
        if ranges and is_cut:
            cuts.append(Cut(axis, ranges))
    return shape, tuple(cuts)


def picked(array: NDArray[Any], part: Part) -> NDArray[Any]:
    indices = [np.arange(size) for size in array.shape]
    for cut in part:
        indices[cut.axis] = np.concatenate([np.arange(*range_) for range_ in cut.ranges])
    return array[np.ix_(*indices)]


def is_picked(array: NDArray[Any], part: Part) -> NDArray[np.bool_]:
    numbers = np.arange(array.size).reshape(array.shape)
    return np.isin(numbers, picked(numbers, part))


@given(cut_shapes(), st.integers(1, 60))
def test_boxes_are_all_bytes_in_order(cut: tuple[tuple[int, ...], Part], limit: int) -> None:
    shape, _ = cut
    numbers = np.arange(prod(shape)).reshape(shape)
    seen = [numbers[box.place][box.start : box.stop].reshape(-1) for box in boxes(shape, limit)]
    assert np.concatenate(seen).tolist() == list(range(numbers.size))
    assert all(each.size <= limit for each in seen)


@given(cut_shapes(), st.integers(1, 60))
def test_a_part_is_scattered_as_numpy_picks_it_and_collected_back(
    cut: tuple[tuple[int, ...], Part], limit: int
) -> None:
    shape, part = cut
    whole = np.random.default_rng(1).integers(1, 256, shape, np.uint8)
    own, back = bytearray(prod(part_shape(shape, part))), np.zeros_like(whole)
    expected = 0
    for box in boxes(shape, limit):
        held = memoryview(bytearray(whole[box.place][box.start : box.stop].tobytes()))
        into = memoryview(bytearray(len(held)))
        for overlap in find_overlaps(shape, part, box):
            out = memoryview(own)[overlap.offset : overlap.offset + overlap.nbytes]
            scatter(shape, box, held, overlap, out)
            collect(shape, box, into, overlap, out)
            assert overlap.offset == expected
            expected += overlap.nbytes
            if overlap.is_contiguous:
                assert held[overlap.start : overlap.start + overlap.nbytes] == out
        piece = back[box.place][box.start : box.stop]
        piece[...] = np.frombuffer(into, np.uint8).reshape(piece.shape)
    assert bytes(own) == picked(whole, part).tobytes()
    assert (back == np.where(is_picked(whole, part), whole, 0)).all()


def test_the_columns_of_blocks_are_cut_as_the_bytes_of_whole_blocks() -> None:
    info = TensorInfo("w", (3, 96), ENCODINGS["Q8_0"])
    assert byte_shape(info) == (3, 3 * 34)
    part = byte_part(info, (Cut(0, ((1, 2),)), Cut(1, ((32, 96),))))
    assert part == (Cut(0, ((1, 2),)), Cut(1, ((34, 102),)))


def test_a_scalar_is_a_run_of_its_bytes() -> None:
    info = TensorInfo("w", (), ENCODINGS["F32"])
    assert byte_shape(info) == (4,)
    assert [(box.start, box.stop) for box in boxes((4,), 100)] == [(0, 4)]
    assert list(boxes((0, 4), 100)) == []
