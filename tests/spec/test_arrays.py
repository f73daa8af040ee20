"""`WeightData` and `Buffer` as arrays: with NumPy, with torch, and where they hold no numbers."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from each import each
from lazy import torch
from weightctl import (
    Buffer,
    Checkpoint,
    DType,
    QuantizationEncoding,
    WeightData,
    convert,
    open_weights,
)
from weightctl.errors import ArgumentTypeError, EncodingError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NUMBERS = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
OTHER = NUMBERS[::-1] / 2
OPERATORS = [
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod,
    operator.pow, operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne,
]  # fmt: skip
# BLAS multiplies a matrix with its own transpose by another routine, which rounds differently.
FUNCTIONS: list[Callable[[Any], Any]] = [
    np.mean, np.sum, np.max, np.std, np.abs, np.sort, np.argmax, np.unique, np.linalg.norm,
    np.squeeze, np.concatenate, np.any, np.transpose, np.isfinite, np.round,
    lambda x: np.add(x, 1), np.add.reduce, lambda x: np.stack([x, x]),
    lambda x: np.where(x, x, 0), lambda x: np.dot(x, x[1:].T), lambda x: np.einsum("ij->j", x),
    lambda x: np.clip(x, 2, 3), lambda x: x.sum(), lambda x: x.mean(axis=0), lambda x: x[0],
    lambda x: x + 1, lambda x: x == 1, lambda x: x.T, lambda x: x.reshape(-1), lambda x: -x,
    lambda x: [row.tolist() for row in x], lambda x: x.tolist(), len, lambda x: x @ x[1:].T,
    lambda x: np.array_equal(x, x), lambda x: np.allclose(x, x), lambda x: x.flatten(),
]  # fmt: skip


def data_of(numbers: Any = NUMBERS) -> WeightData:
    return WeightData.from_numpy(np.asarray(numbers), "w")


@pytest.fixture(scope="module")
def stored_blocks(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    path: Path = tmp_path_factory.mktemp("blocks") / "q.gguf"
    numbers = np.random.default_rng(0).normal(size=(4, 256)).astype(np.float32)
    convert({"w.weight": numbers}, path, quant="Q8_0")
    return open_weights(path).w.weight


@pytest.fixture
def blocks(stored_blocks: Checkpoint) -> WeightData:
    return stored_blocks.data()


@each("made", [data_of(), data_of().to_buffer()], ids=["data", "buffer"])
@each("number", range(len(FUNCTIONS)))
def test_a_function_gives_what_it_gives_of_the_array(number: int, made: Any) -> None:
    found, expected = FUNCTIONS[number](made), FUNCTIONS[number](NUMBERS)
    assert type(found) is type(expected)
    np.testing.assert_array_equal(found, expected)


@each("number", range(len(FUNCTIONS)))
def test_no_function_takes_the_bytes_of_blocks_for_numbers(number: int, blocks: WeightData) -> None:
    decoded = np.asarray(blocks.astype("float32"))
    np.testing.assert_array_equal(FUNCTIONS[number](blocks), FUNCTIONS[number](decoded))


def test_data_and_its_node_are_the_same_array(stored_blocks: Checkpoint) -> None:
    data = stored_blocks.data()
    assert np.asarray(data).tobytes() == np.asarray(stored_blocks).tobytes()
    assert np.asarray(data).dtype == np.asarray(stored_blocks).dtype == np.float32
    assert np.shape(data) == np.shape(stored_blocks) == (4, 256)
    assert (data.ndim, data.size) == (stored_blocks.ndim, stored_blocks.size) == (2, 1024)
    assert torch.equal(data.to_torch(), stored_blocks.to_torch())
    assert torch.equal(data.to_torch(), torch.from_numpy(np.asarray(data)))


def test_the_bytes_of_blocks_have_a_name_of_their_own(blocks: WeightData) -> None:
    assert blocks.blocks.dtype == np.uint8
    assert blocks.blocks.shape == blocks.shape == (4, 272)
    assert torch.equal(torch.from_dlpack(blocks), torch.from_numpy(blocks.blocks))
    with pytest.raises(EncodingError, match="`w` is stored as float32, not in blocks"):
        _ = data_of().blocks


def test_a_tensor_of_torch_shares_memory_with_plain_data() -> None:
    data = data_of()
    data.to_torch()[0, 0] = 9
    assert np.asarray(data)[0, 0] == 9
    assert data.astype("bfloat16").to_torch().dtype is torch.bfloat16


@each("act", OPERATORS, ids=lambda act: act.__name__)
@each("made", [data_of(), data_of().to_buffer()], ids=["data", "buffer"])
def test_an_operator_takes_arrays_numbers_and_tensors_on_either_side(act: Any, made: Any) -> None:
    for other in (OTHER, 2, np.float32(2), data_of(OTHER), data_of(OTHER).to_buffer()):
        plain = np.asarray(other) if isinstance(other, WeightData | Buffer) else other
        np.testing.assert_array_equal(act(made, other), act(NUMBERS, plain))
        np.testing.assert_array_equal(act(other, made), act(plain, NUMBERS))
    tensor, own = torch.from_numpy(OTHER.copy()), torch.from_numpy(NUMBERS)
    for found, expected in (
        (act(made, tensor), act(own, tensor)),
        (act(tensor, made), act(tensor, own)),
    ):
        assert isinstance(found, torch.Tensor)
        assert torch.equal(found, expected)


def test_a_matrix_product_with_a_tensor_is_a_tensor() -> None:
    data, tensor = data_of(), torch.from_numpy(OTHER.copy())
    assert torch.equal(data @ tensor.T, torch.from_numpy(NUMBERS) @ tensor.T)
    assert torch.equal(tensor.T @ data, tensor.T @ torch.from_numpy(NUMBERS))


def test_a_tensor_of_torch_keeps_its_type_with_bfloat16() -> None:
    data, tensor = data_of().astype("bfloat16"), torch.ones(2, 3, dtype=torch.bfloat16)
    for found in (data + tensor, tensor + data):
        assert found.dtype is torch.bfloat16
        assert found.tolist() == (NUMBERS + 1).tolist()


def test_blocks_are_decoded_beside_a_tensor(blocks: WeightData) -> None:
    tensor, decoded = torch.ones(4, 256), blocks.to_torch()
    for act in (operator.add, operator.lt, operator.eq):
        assert torch.equal(act(blocks, tensor), act(decoded, tensor))
        assert torch.equal(act(tensor, blocks), act(tensor, decoded))


def test_one_number_becomes_a_python_number() -> None:
    data = data_of(np.float32(2.5))
    assert (float(data), int(data), complex(data), data.item()) == (2.5, 2, 2.5, 2.5)
    assert float(data.to_buffer()) == 2.5
    with pytest.raises(ValueError, match="size 1"):
        float(data_of())


@pytest.mark.parametrize("name", ["numpy", "detach", "cpu", "nothing"])
def test_an_attribute_of_torch_is_refused_with_what_to_use(name: str) -> None:
    for made in (data_of(), data_of().to_buffer()):
        assert not hasattr(made, name)
        with pytest.raises(AttributeError, match=r"`\.to_numpy\(\)`.*`torch\.from_dlpack`"):
            getattr(made, name)


@pytest.mark.parametrize(
    "write",
    [
        lambda x: np.add(NUMBERS, 1, out=x),
        lambda x: np.sum(NUMBERS, axis=0, out=x),
        lambda x: np.add.at(x, 0, 1),
        lambda x: np.copyto(x, 0),
        lambda x: np.put(x, 0, 1),
        lambda x: np.fill_diagonal(x, 1),
    ],
)
def test_numpy_writes_into_arrays_only(write: Callable[[Any], Any]) -> None:
    data = data_of(NUMBERS.copy())
    with pytest.raises(ArgumentTypeError, match="cannot write into a weight"):
        write(data)
    assert np.array_equal(data, NUMBERS)


def test_data_and_buffers_are_hashed_by_what_they_are() -> None:
    data = data_of()
    assert {data: 1, data.to_buffer(): 2}[data] == 1


@pytest.mark.parametrize(
    ("given", "says"),
    [(torch.ones(2), "`from_dlpack`"), ([1, 2], "`np.asarray`"), (3, "`np.asarray`")],
)
def test_from_numpy_takes_arrays_of_numpy_only(given: Any, says: str) -> None:
    with pytest.raises(TypeError, match="a NumPy array is expected") as caught:
        WeightData.from_numpy(given, "w")
    assert says in str(caught.value)


def test_data_takes_an_encoding_by_its_name() -> None:
    raw = np.zeros((2, 34), np.uint8)
    data = WeightData(raw, "w", "uint8", (2, 34), "Q8_0")
    assert data.quantization_encoding is QuantizationEncoding.Q8_0
    assert data.info.shape == (2, 32)


ARRAY: Any = np.ones(2, np.float32)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (([1, 2], "w", "float32", (2,)), "the data of `w` is a list, which is not an array"),
        ((ARRAY, 3, "float32", (2,)), "3 is not a tensor name; use a string"),
        (
            (ARRAY, "w", "float16", (2,)),
            r"`w` is declared as float16 \[2\], but its data is float32 \[2\]",
        ),
        (
            (ARRAY, "w", "float32", (3,)),
            r"`w` is declared as float32 \[3\], but its data is float32 \[2\]",
        ),
        (
            (torch.ones(2), "w", "float32", (1, 2)),
            r"`w` is declared as float32 \[1, 2\], but its data is float32 \[2\]",
        ),
        ((ARRAY, "w", "float32", (2,), "Q9_0"), "use a QuantizationEncoding"),
    ],
)
def test_data_that_is_not_what_it_is_said_to_be_is_refused_at_once(given: Any, says: str) -> None:
    with pytest.raises(EncodingError, match=says):
        WeightData(*given)


def test_a_name_of_data_stays_text() -> None:
    data: Any = data_of()
    with pytest.raises(TypeError, match="None is not a tensor name; use a string"):
        data.name = None
    assert data.name == "w"


def test_complex_numbers_are_refused_with_what_to_do() -> None:
    for numbers, dtype in ((np.ones(2, np.complex64), DType.float32), (NUMBERS, DType.complex64)):
        with pytest.raises(EncodingError, match="complex numbers can only be copied"):
            data_of(numbers).astype(dtype)
