""""""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from arrays import weights_of
from build import Gguf, Tensor, safetensors_of
from lazy import torch
from llama_cpp import ggml_quantize
from weightctl import (
    Checkpoint,
    DeviceRef,
    DType,
    QuantizationEncoding,
    WeightData,
    Weights,
    open_weights,
)
from weightctl.errors import EncodingError, GraphError, MissingTensorError
from weightctl.graph import Graph, TensorType
from weightctl.shape import Dim
from weightctl.weights import TensorInfo
from weightctl.weights.from_arrays import as_checkpoint, declare_weights

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from weightctl.weights.dlpack import DLPackArray


Q4_K, Q8_0 = QuantizationEncoding.Q4_K, QuantizationEncoding.Q8_0
NUMBERS = np.random.default_rng(0).standard_normal((3, 256), np.float32)
BLOCKS = ggml_quantize("Q4_K", NUMBERS, None)


class Opened(NamedTuple):
    weights: Weights
    path: Path


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    path = tmp_path / "model.safetensors"
    tensors = {
        "embed.weight": ("F32", (3, 256), NUMBERS.tobytes()),
        "layers.0.w": ("BF16", (4, 4), np.ones(16, ml_dtypes.bfloat16).tobytes()),
        "layers.0.b": ("F32", (4,), np.array([1, 2, 3, np.inf], "<f4").tobytes()),
        "ids": ("I64", (2,), np.array([1, 300], "<i8").tobytes()),
    }
    path.write_bytes(safetensors_of(tensors, {"head.weight": "embed.weight", "format": "pt"}))
    return Opened(open_weights(path), path)


@pytest.fixture
def weights(opened: Opened) -> Weights:
    return opened.weights


@pytest.fixture
def quantized(tmp_path: Path) -> Weights:
    path = tmp_path / "model.gguf"
    iq1 = Tensor("w.iq1_s", (1, 256), 19, bytes(50))
    path.write_bytes(Gguf().file([Tensor("w.q4_k", (3, 256), 12, BLOCKS.tobytes()), iq1]))
    return open_weights(path)


def numbers_of(array: DLPackArray) -> Any:
    assert isinstance(array, WeightData)
    return array.to_numpy()


def blocks_of(array: DLPackArray) -> Any:
    assert isinstance(array, WeightData)
    return array.blocks


def test_a_weight_is_what_is_stored_where_nothing_else_is_asked_for(weights: Weights) -> None:
    weight = weights.layers[0].w.allocate()
    assert weight.name == "layers.0.w"
    assert (weight.dtype, weight.shape, weight.device) == (
        (DType.bfloat16, [4, 4], DeviceRef.CPU())
    )
    assert weight.quantization_encoding is None


def test_a_weight_has_the_dtype_and_the_device_that_are_asked_for(weights: Weights) -> None:
    weight = weights.embed.weight.allocate(DType.float16, (3, 256), device=DeviceRef.GPU(0))
    assert (weight.dtype, weight.shape, weight.device) == (
        (DType.float16, [3, 256], DeviceRef.GPU(0))
    )


def test_a_weight_of_blocks_is_bytes_and_knows_its_numbers(quantized: Weights) -> None:
    weight = quantized.w.q4_k.allocate()
    assert (weight.dtype, weight.shape, weight.quantization_encoding) == (
        (DType.uint8, [3, 144], Q4_K)
    )
    assert weight.original_dtype_and_shape == (DType.float32, [3, 256])


def test_blocks_become_numbers_of_the_dtype_asked_for_when_they_are_used(
    quantized: Weights,
) -> None:
    weight = quantized.w.q4_k.allocate(DType.bfloat16, (3, 256), Q4_K)
    assert (weight.dtype, weight.quantization_encoding) == (DType.uint8, Q4_K)
    assert weight.original_dtype_and_shape == (DType.bfloat16, [3, 256])
    assert blocks_of(quantized.allocated_weights["w.q4_k"]).tobytes() == BLOCKS.tobytes()


@pytest.mark.parametrize("encoding", [None, Q4_K], ids=str)
def test_blocks_may_be_asked_for_by_their_bytes(
    encoding: QuantizationEncoding | None, quantized: Weights
) -> None:
    weight = quantized.w.q4_k.allocate(DType.uint8, (3, 144), encoding)
    assert weight.original_dtype_and_shape == (DType.float32, [3, 256])
    assert weight is quantized.w.q4_k.allocate()


def test_blocks_may_be_asked_for_as_their_data_describes_them() -> None:
    stacked = WeightData.stored(
        TensorInfo("w", (3, 1, 256), Q4_K.encoding), memoryview(bytearray(BLOCKS.tobytes()))
    )
    weight = as_checkpoint({"w": stacked})["w"].allocate(
        stacked.dtype, stacked.shape, stacked.quantization_encoding
    )
    assert weight.original_dtype_and_shape == (DType.float32, [3, 1, 256])
    assert (weight.dtype, weight.shape) == (stacked.dtype, stacked.shape)


def test_numbers_packed_into_blocks_keep_their_dtype_for_use(weights: Weights) -> None:
    weight = weights.embed.weight.allocate(quantization_encoding=Q8_0)
    assert (weight.dtype, weight.shape) == (DType.uint8, [3, 272])
    assert weight.original_dtype_and_shape == (DType.float32, [3, 256])


def test_only_what_was_allocated_is_among_the_allocated_weights(weights: Weights) -> None:
    assert weights.allocated_weights == {}
    weights.layers[0].w.allocate()
    assert list(weights.allocated_weights) == ["layers.0.w"]
    weights["ids"].allocate()
    assert list(weights.layers[0].w.allocated_weights) == ["layers.0.w", "ids"]


def test_allocated_data_has_the_dtype_that_was_asked_for(weights: Weights) -> None:
    weights.embed.weight.allocate(DType.float16)
    data = weights.allocated_weights["embed.weight"]
    assert isinstance(data, WeightData)
    assert (data.name, data.dtype, data.shape) == ("embed.weight", DType.float16, [3, 256])
    assert np.array_equal(data.to_numpy(), NUMBERS.astype(np.float16))


@pytest.mark.parametrize(
    "take",
    [
        lambda data: torch.from_dlpack(data).numpy(),
        np.asarray,
        lambda data: data.to_buffer().to_numpy(),
        lambda data: np.frombuffer(data.view(), np.float16).reshape(3, 256),
        lambda data: torch.from_dlpack(data.data).numpy(),
        lambda data: np.asarray(data.data),
        lambda data: data.astype(DType.float64).to_numpy().astype(np.float16),
        lambda data: pickle.loads(pickle.dumps(data)).to_numpy(),
    ],
)
def test_allocated_data_is_converted_however_it_is_taken(
    take: Callable[[Any], Any], weights: Weights
) -> None:
    weights.embed.weight.allocate(DType.float16)
    found = take(weights.allocated_weights["embed.weight"])
    assert found.dtype == np.float16
    assert np.array_equal(found, NUMBERS.astype(np.float16))


def test_allocated_data_is_converted_once_while_it_is_held(weights: Weights) -> None:
    weights.embed.weight.allocate(DType.float16)
    data = numbers = weights.allocated_weights["embed.weight"]
    assert isinstance(data, WeightData)
    numbers = np.from_dlpack(data)
    assert np.shares_memory(numbers, np.from_dlpack(data))
    assert np.shares_memory(numbers, data.to_numpy())


@pytest.mark.parametrize("dtype", [None, DType.float16], ids=str)
def test_nothing_is_read_before_data_is_touched(dtype: DType | None, opened: Opened) -> None:
    weights, path = opened
    weights.embed.weight.allocate(dtype)
    data = weights.allocated_weights["embed.weight"]
    raw = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(raw.index(NUMBERS.tobytes()))
        file.write(bytes(NUMBERS.nbytes))
    assert not numbers_of(data).any()


def test_allocated_numbers_are_packed_into_ggmls_own_blocks(weights: Weights) -> None:
    weights.embed.weight.allocate(quantization_encoding=Q4_K)
    data = weights.allocated_weights["embed.weight"]
    assert isinstance(data, WeightData)
    assert (data.dtype, data.shape, data.quantization_encoding) == (DType.uint8, [3, 144], Q4_K)
    assert data.info.shape == (3, 256)
    assert data.blocks.tobytes() == BLOCKS.tobytes()


@pytest.mark.parametrize("dtype", [DType.float32, DType.float16], ids=str)
def test_allocated_blocks_are_dequantized_for_a_float_dtype(
    dtype: DType, quantized: Weights
) -> None:
    weight = quantized.w.q4_k.allocate(dtype)
    assert (weight.dtype, weight.shape, weight.quantization_encoding) == (dtype, [3, 256], None)
    expected = dequantize(BLOCKS, GGMLQuantizationType.Q4_K).reshape(3, 256)
    found = numbers_of(quantized.allocated_weights["w.q4_k"])
    assert np.array_equal(found, expected.astype(dtype.value))


def test_allocated_blocks_become_other_blocks_through_their_numbers(quantized: Weights) -> None:
    quantized.w.q4_k.allocate(quantization_encoding=Q8_0)
    between = dequantize(BLOCKS, GGMLQuantizationType.Q4_K).reshape(3, 256)
    found = blocks_of(quantized.allocated_weights["w.q4_k"])
    assert found.tobytes() == ggml_quantize("Q8_0", between, None).tobytes()


@pytest.mark.parametrize(
    ("name", "request_", "reason"),
    [
        ("embed.weight", {"dtype": DType.complex64}, "cannot be converted from F32 to complex64"),
        (
            "layers.0.w",
            {"quantization_encoding": Q8_0},
            "have 4 elements, which is not a multiple of the Q8_0 block",
        ),
        (
            "embed.weight",
            {"quantization_encoding": QuantizationEncoding.IQ1_S},
            "cannot be converted to IQ1_S without an importance matrix",
        ),
        (
            "embed.weight",
            {"quantization_encoding": Q8_0, "dtype": DType.int32},
            "Q8_0 blocks hold fractions, but int32 is an integer dtype",
        ),
        (
            "embed.weight",
            {"quantization_encoding": Q8_0, "dtype": DType.uint8, "shape": (3, 256)},
            "3, 256. in bytes: a row is not a whole number of Q8_0 blocks",
        ),
    ],
)
def test_what_cannot_be_converted_is_refused_at_once(
    name: str, request_: dict[str, Any], reason: str, weights: Weights
) -> None:
    with pytest.raises(EncodingError, match=f"`{name}`.*{reason}") as caught:
        weights[name].allocate(**request_)
    assert isinstance(caught.value, ValueError)
    assert weights.allocated_weights == {}


def test_floats_and_blocks_become_integers_as_in_numpy(
    weights: Weights, quantized: Weights
) -> None:
    for node in (weights.embed.weight, quantized.w.q4_k):
        node.allocate(DType.int64)
        found = numbers_of(node.allocated_weights[node.name])
        assert np.array_equal(found, np.asarray(node).astype(np.int64))


def test_blocks_that_can_only_be_read_are_allocated_as_they_are(quantized: Weights) -> None:
    weight = quantized.w.iq1_s.allocate()
    assert weight.original_dtype_and_shape == (DType.float32, [1, 256])
    assert blocks_of(quantized.allocated_weights["w.iq1_s"]).shape == (1, 50)


def test_a_number_that_does_not_fit_is_reported_with_its_tensor_when_it_is_read(
    weights: Weights,
) -> None:
    weights["ids"].allocate(DType.int8)
    with pytest.raises(EncodingError, match="`ids`: element 1 is 300, which int8"):
        numbers_of(weights.allocated_weights["ids"])


def test_an_infinity_in_a_tensor_for_blocks_is_reported_with_its_tensor() -> None:
    numbers = np.ones((1, 32), np.float32)
    numbers[0, 5] = np.inf
    weights = as_checkpoint({"w": WeightData.from_numpy(numbers, "w")})
    weights["w"].allocate(quantization_encoding=Q8_0)
    with pytest.raises(EncodingError, match="`w`: element 5 is inf, which Q8_0 cannot hold"):
        numbers_of(weights.allocated_weights["w"])


@pytest.mark.parametrize("shape", [(256, 3), (3, 255), (3,), (3, 256, 1), ()], ids=str)
def test_another_shape_than_the_tensors_is_refused_by_naming_both(
    shape: tuple[int, ...], weights: Weights
) -> None:
    with pytest.raises(GraphError) as caught:
        weights.embed.weight.allocate(shape=shape)
    assert isinstance(caught.value, ValueError)
    assert f"`embed.weight` has shape [3, 256], not {list(shape)}" in str(caught.value)
    assert weights.allocated_weights == {}


@pytest.mark.parametrize(
    "shape",
    [
        [3, 256],
        (np.int64(3), Dim(256)),
        ("vocab", "hidden"),
        (Dim("vocab"), 256),
        ("n", Dim("n") * 85 + 1),
        iter((3, 256)),
    ],
)
def test_a_shape_may_be_sizes_and_names_that_fit_and_the_weight_has_the_sizes(
    shape: Any, weights: Weights
) -> None:
    weight = weights.embed.weight.allocate(shape=shape)
    assert weight.shape == [3, 256]
    assert weight.shape.is_static


def test_a_name_in_a_shape_has_one_size_wherever_it_stands(weights: Weights) -> None:
    assert weights.layers[0].w.allocate(shape=("n", "n")).shape == [4, 4]
    with pytest.raises(GraphError, match=r"has shape \[3, 256\], not \[n, n\]"):
        weights.embed.weight.allocate(shape=("n", "n"))
    with pytest.raises(GraphError, match=r"has shape \[3, 256\], not \[n, n - 9\]"):
        weights.embed.weight.allocate(shape=("n", Dim("n") - 9))


def test_a_sum_of_names_that_nothing_gives_a_size_is_refused(weights: Weights) -> None:
    with pytest.raises(GraphError, match=r"shape \[2\*a, 256\] of .* the size of `a`"):
        weights.embed.weight.allocate(shape=(Dim("a") * 2, 256))


def test_a_tensor_that_the_checkpoint_lacks_is_a_key_error_with_what_is_near(
    weights: Weights,
) -> None:
    with pytest.raises(KeyError) as caught:
        weights.embed.wieght.allocate(DType.float32, (3, 256))
    assert isinstance(caught.value, MissingTensorError)
    assert "did you mean `embed.weight`" in str(caught.value)
    assert weights.allocated_weights == {}


def test_the_same_request_gives_the_same_weight(weights: Weights) -> None:
    weight = weights.embed.weight.allocate()
    assert weights.embed.weight.allocate(DType.float32, ("a", "b")) is weight
    assert weights["embed"]["weight"].allocate(device=DeviceRef.CPU()) is weight
    assert len(weights.allocated_weights) == 1


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"dtype": DType.float16}, r"float16\[3, 256\] on cpu:0"),
        ({"quantization_encoding": Q8_0}, r"Q8_0 of float32\[3, 256\] on cpu:0"),
        ({"device": DeviceRef.GPU(1)}, r"float32\[3, 256\] on gpu:1"),
    ],
)
def test_another_request_for_a_name_is_refused_by_naming_both(
    other: dict[str, Any], text: str, weights: Weights
) -> None:
    weight = weights.embed.weight.allocate()
    with pytest.raises(
        GraphError,
        match=rf"allocated as float32\[3, 256\] on cpu:0, so it cannot be allocated as {text}",
    ):
        weights.embed.weight.allocate(**other)
    assert weights.embed.weight.allocate() is weight
    assert numbers_of(weights.allocated_weights["embed.weight"]).dtype == np.float32


def test_a_name_is_allocated_in_another_form_for_another_graph() -> None:
    tree = as_checkpoint({"w": np.ones((4, 4), np.float32)})
    with Graph("first", [TensorType(DType.float32, (2, 4))]) as first:
        first.output(first.inputs[0] @ tree.w.allocate())
        with pytest.raises(GraphError, match="is already allocated as"):
            tree.w.allocate(DType.bfloat16)
    with Graph("second", [TensorType(DType.bfloat16, (2, 4))]) as second:
        weight = tree.w.allocate(DType.bfloat16)
        second.output(second.inputs[0] @ weight)
        assert tree.w.allocate(DType.bfloat16) is weight
    assert (first.outputs[0].dtype, second.outputs[0].dtype) == (DType.float32, DType.bfloat16)


def test_a_name_is_one_weight_for_all_threads() -> None:
    tree = as_checkpoint({f"w{n}": np.ones(2, np.float32) for n in range(30)})
    names = [f"w{n}" for n in range(30)] * 16
    with ThreadPoolExecutor(16) as threads:
        made = list(threads.map(lambda name: tree[name].allocate(), names))
    assert len({id(weight) for weight in made}) == 30


def test_a_request_that_failed_leaves_the_name_for_another(weights: Weights) -> None:
    with pytest.raises(GraphError):
        weights.embed.weight.allocate(DType.float16, (1, 1))
    assert weights.embed.weight.allocate(DType.float64).dtype is DType.float64


def test_a_tied_name_gives_a_weight_of_its_own_on_the_same_numbers(weights: Weights) -> None:
    tied, stored = (
        weights[name].allocate(DType.float16) for name in ("head.weight", "embed.weight")
    )
    assert (tied.name, stored.name) == ("head.weight", "embed.weight")
    assert tied is not stored
    found = weights.allocated_weights
    names = [data.name for data in found.values() if isinstance(data, WeightData)]
    assert names == list(found) == ["head.weight", "embed.weight"]
    assert np.shares_memory(numbers_of(found["head.weight"]), numbers_of(found["embed.weight"]))


# Which trees and nodes share allocated weights, and which requests are invalid.


@pytest.fixture
def weights_allocating_nodes() -> Weights:
    return weights_of({"embed.weight": NUMBERS})


def test_trees_in_memory_give_their_own_numbers() -> None:
    array = np.ones((2, 2), np.float32)
    weights = as_checkpoint({"w": WeightData.from_numpy(array, "w")})
    weights["w"].allocate()
    assert np.shares_memory(np.asarray(weights.allocated_weights["w"]), array)


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda weights: pickle.loads(pickle.dumps(weights))]
)
def test_the_copy_of_a_tree_has_allocated_nothing(
    duplicate: Callable[[Any], Any], weights_allocating_nodes: Weights
) -> None:
    weights_allocating_nodes.embed.weight.allocate(DType.float16)
    twin = duplicate(weights_allocating_nodes)
    assert twin.allocated_weights == {}
    assert twin.embed.weight.allocate().dtype is DType.float32
    assert twin.embed.weight.data().to_numpy().tolist() == NUMBERS.tolist()


def test_nodes_of_one_tree_know_what_was_allocated_by_any(
    weights_allocating_nodes: Weights,
) -> None:
    weight = copy.copy(weights_allocating_nodes).embed.weight.allocate()
    assert weights_allocating_nodes.embed.weight.allocate() is weight


def test_a_device_is_taken_by_its_name(weights: Weights) -> None:
    assert weights.embed.weight.allocate(device="gpu:1").device == DeviceRef.GPU(1)


@pytest.mark.parametrize(
    "asked",
    [{"quantization_encoding": 8}, {"device": "tpu"}, {"device": None}],
    ids=str,
)
def test_what_is_not_an_encoding_or_device_is_refused(
    asked: dict[str, Any], weights_allocating_nodes: Weights
) -> None:
    with pytest.raises(GraphError, match=r"(must be a QuantizationEncoding|is not a device)"):
        weights_allocating_nodes.embed.weight.allocate(**asked)
    assert not weights_allocating_nodes.allocated_weights


def test_an_encoding_is_taken_by_its_name(weights_allocating_nodes: Weights) -> None:
    weight = weights_allocating_nodes.embed.weight.allocate(quantization_encoding="q8_0")
    assert weight.quantization_encoding is QuantizationEncoding.Q8_0
    with pytest.raises(
        TypeError, match="'Q9_0' is not a block encoding; use a QuantizationEncoding"
    ):
        weights_allocating_nodes.embed.weight.allocate(quantization_encoding="Q9_0")


@pytest.mark.parametrize("dtype", ["float16", "f16", np.float16, np.dtype("f2"), torch.float16])
def test_a_dtype_is_taken_in_any_spelling(dtype: Any, weights_allocating_nodes: Weights) -> None:
    assert weights_allocating_nodes.embed.weight.allocate(dtype).dtype is DType.float16


def test_what_is_not_a_dtype_is_refused(weights_allocating_nodes: Weights) -> None:
    with pytest.raises(TypeError, match="'float31' is not a dtype; use a DType"):
        weights_allocating_nodes.embed.weight.allocate("float31")
    assert not weights_allocating_nodes.allocated_weights


Q4_K_DECLARED = QuantizationEncoding.Q4_K


@pytest.fixture
def weights_declared() -> Checkpoint:
    return declare_weights()


@pytest.fixture
def declared() -> WeightData:
    return WeightData.declared("w", DType.float32, (2, 3))


def test_weights_are_declared_by_their_place(weights_declared: Checkpoint) -> None:
    weight = weights_declared.model.layers[0].w.allocate(
        DType.float16, (2, "n"), device=DeviceRef.GPU(1)
    )
    assert (weight.name, weight.dtype, weight.device) == (
        ("model.layers.0.w", DType.float16, DeviceRef.GPU(1))
    )
    assert list(weight.shape) == [Dim(2), Dim("n")]


def test_blocks_are_declared_by_their_numbers_or_by_their_bytes(
    weights_declared: Checkpoint,
) -> None:
    by_numbers = weights_declared.a.allocate(DType.bfloat16, (2, 512), Q4_K_DECLARED)
    assert by_numbers.original_dtype_and_shape == (DType.bfloat16, [2, 512])
    by_bytes = weights_declared.b.allocate(DType.uint8, (2, 288), Q4_K_DECLARED)
    assert by_bytes.original_dtype_and_shape == (DType.float32, [2, 512])
    assert by_bytes.shape == by_numbers.shape == [2, 288]
    assert weights_declared.b.allocate(DType.float32, (2, 512), Q4_K_DECLARED) is by_bytes


@pytest.mark.parametrize(
    ("given", "lacking"),
    [
        ({}, "a dtype and a shape"),
        ({"dtype": DType.int8}, "a shape"),
        ({"shape": (2,)}, "a dtype"),
    ],
)
def test_nothing_is_declared_without_dtype_and_shape(
    given: dict[str, Any], lacking: str, weights_declared: Checkpoint
) -> None:
    with pytest.raises(ValueError, match=f"`a.b` cannot be declared without {lacking}"):
        weights_declared.a.b.allocate(**given)


@pytest.mark.parametrize(
    ("dtype", "shape"), [(DType.float32, (2, 100)), (DType.uint8, (2, 143)), (DType.int32, (256,))]
)
def test_blocks_that_cannot_be_are_not_declared(
    dtype: DType, shape: tuple[int, ...], weights_declared: Checkpoint
) -> None:
    with pytest.raises(EncodingError, match="`w`"):
        weights_declared["w"].allocate(dtype, shape, Q4_K_DECLARED)
    assert weights_declared["w"].allocate(DType.float32, (2, 256), Q4_K_DECLARED).shape == [2, 144]


def test_the_root_is_not_a_weight(weights_declared: Checkpoint) -> None:
    with pytest.raises(GraphError, match="the root of a tree is not a weight"):
        weights_declared.allocate(DType.float32, (1,))


def test_the_same_declaration_gives_the_same_weight_and_another_is_refused(
    weights_declared: Checkpoint,
) -> None:
    weight = weights_declared.a.b.allocate(DType.float32, (2, "n"))
    assert weights_declared.a.b.allocate(DType.float32, [2, Dim("n")]) is weight
    with pytest.raises(
        GraphError,
        match=r"float32\[2, n\] on cpu:0, so it cannot be allocated as float32\[2, 3\]",
    ):
        weights_declared.a.b.allocate(DType.float32, (2, 3))


def test_what_is_declared_is_not_there(weights_declared: Checkpoint) -> None:
    weights_declared.a.b.allocate(DType.float32, (2,))
    assert not weights_declared.a.b.exists()
    assert dict(weights_declared.items()) == {}
    assert weights_declared.allocated_weights == {}
    assert list(weights_declared) == []
    assert repr(weights_declared.a.b) == "<Checkpoint a.b: 0 tensors>"


@pytest.mark.parametrize("ask", [Checkpoint.data, lambda node: node.info, lambda node: node.shape])
def test_data_of_what_is_declared_is_a_key_error_that_says_so(
    ask: Callable[[Checkpoint], object], weights_declared: Checkpoint
) -> None:
    weights_declared.a.b.allocate(DType.float32, (2,))
    with pytest.raises(KeyError, match=r"`a\.b` is only declared: this tree has no data") as caught:
        ask(weights_declared.a.b)
    assert isinstance(caught.value, MissingTensorError)


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda weights: pickle.loads(pickle.dumps(weights))]
)
def test_the_copy_of_a_declaring_tree_declares(
    duplicate: Callable[[Any], Any], weights_declared: Checkpoint
) -> None:
    weights_declared.a.b.allocate(DType.float32, (2,))
    twin = duplicate(weights_declared.a)
    assert twin.name == "a"
    assert twin.c.allocate(DType.float32, (2,)).name == "a.c"


def test_an_opened_tree_without_tensors_declares_nothing() -> None:
    with pytest.raises(MissingTensorError, match="no tensor is named `w`"):
        as_checkpoint({})["w"].allocate(DType.float32, (2,))


def test_declared_data_says_what_it_will_be(declared: WeightData) -> None:
    assert declared.is_declared
    assert (declared.name, declared.dtype, declared.shape) == ("w", DType.float32, [2, 3])
    assert (declared.info.shape, declared.info.nbytes) == ((2, 3), 24)
    assert repr(declared) == "WeightData('w', DType.float32, [2, 3])"
    assert not WeightData.from_numpy(np.zeros(2), "w").is_declared


@pytest.mark.parametrize(
    "touch",
    [
        WeightData.to_buffer, WeightData.view, WeightData.to_numpy, np.asarray, np.from_dlpack,
        torch.from_dlpack,
    ],
)  # fmt: skip
def test_touching_declared_data_is_a_clear_error(
    touch: Callable[[Any], object], declared: WeightData
) -> None:
    with pytest.raises(MissingTensorError, match="`w` was declared without data"):
        touch(declared)
    with pytest.raises(MissingTensorError, match="`v` was declared without data"):
        touch(declared.with_name("v"))


def test_the_data_of_what_is_declared_is_an_array_without_numbers(declared: WeightData) -> None:
    with pytest.raises(BufferError, match="declared without data"):
        np.from_dlpack(declared.data)


def test_astype_of_declared_data_changes_the_description(declared: WeightData) -> None:
    made = declared.astype(DType.float16)
    assert made.is_declared
    assert (made.name, made.dtype, made.shape, made.info.nbytes) == ("w", DType.float16, [2, 3], 12)
    assert declared.dtype is DType.float32
    assert declared.astype(DType.float32) is declared


def test_astype_of_declared_blocks_describes_their_numbers() -> None:
    blocks = WeightData.declared("w", DType.uint8, (2, 144), Q4_K_DECLARED)
    made = blocks.astype(DType.bfloat16)
    assert (made.dtype, made.shape, made.quantization_encoding) == (DType.bfloat16, [2, 256], None)


def test_astype_of_declared_data_refuses_what_cannot_be(declared: WeightData) -> None:
    with pytest.raises(EncodingError, match="`w` cannot be converted from F32 to complex64"):
        declared.astype(DType.complex64)
