from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from weightctl import Checkpoint, DeviceRef, DType, QuantizationEncoding, WeightData
from weightctl.errors import EncodingError, GraphError, MissingTensorError
from weightctl.shape import Dim
from weightctl.weights.from_arrays import as_checkpoint, declare_weights

if TYPE_CHECKING:
    from collections.abc import Callable

Q4_K = QuantizationEncoding.Q4_K


@pytest.fixture
def weights() -> Checkpoint:
    return declare_weights()


@pytest.fixture
def declared() -> WeightData:
    return WeightData.declared("w", DType.float32, (2, 3))


def test_weights_are_declared_by_their_place(weights: Checkpoint) -> None:
    weight = weights.model.layers[0].w.allocate(DType.float16, (2, "n"), device=DeviceRef.GPU(1))
    assert (weight.name, weight.dtype, weight.device) == (
        ("model.layers.0.w", DType.float16, DeviceRef.GPU(1))
    )
    assert list(weight.shape) == [Dim(2), Dim("n")]


def test_blocks_are_declared_by_their_numbers_or_by_their_bytes(weights: Checkpoint) -> None:
    by_numbers = weights.a.allocate(DType.bfloat16, (2, 512), Q4_K)
    assert by_numbers.original_dtype_and_shape == (DType.bfloat16, [2, 512])
    by_bytes = weights.b.allocate(DType.uint8, (2, 288), Q4_K)
    assert by_bytes.original_dtype_and_shape == (DType.float32, [2, 512])
    assert by_bytes.shape == by_numbers.shape == [2, 288]
    assert weights.b.allocate(DType.float32, (2, 512), Q4_K) is by_bytes


@pytest.mark.parametrize(
    ("given", "lacking"),
    [
        ({}, "a dtype and a shape"),
        ({"dtype": DType.int8}, "a shape"),
        ({"shape": (2,)}, "a dtype"),
    ],
)
def test_nothing_is_declared_without_dtype_and_shape(
    given: dict[str, Any], lacking: str, weights: Checkpoint
) -> None:
    with pytest.raises(ValueError, match=f"`a.b` cannot be declared without {lacking}"):
        weights.a.b.allocate(**given)


@pytest.mark.parametrize(
    ("dtype", "shape"), [(DType.float32, (2, 100)), (DType.uint8, (2, 143)), (DType.int32, (256,))]
)
def test_blocks_that_cannot_be_are_not_declared(
    dtype: DType, shape: tuple[int, ...], weights: Checkpoint
) -> None:
    with pytest.raises(EncodingError, match="`w`"):
        weights["w"].allocate(dtype, shape, Q4_K)
    assert weights["w"].allocate(DType.float32, (2, 256), Q4_K).shape == [2, 144]


def test_the_root_is_not_a_weight(weights: Checkpoint) -> None:
    with pytest.raises(GraphError, match="the root of a tree is not a weight"):
        weights.allocate(DType.float32, (1,))


def test_the_same_declaration_gives_the_same_weight_and_another_is_refused(
    weights: Checkpoint,
) -> None:
    weight = weights.a.b.allocate(DType.float32, (2, "n"))
    assert weights.a.b.allocate(DType.float32, [2, Dim("n")]) is weight
    with pytest.raises(
        GraphError,
        match=r"float32\[2, n\] on cpu:0, so it cannot be allocated as float32\[2, 3\]",
    ):
        weights.a.b.allocate(DType.float32, (2, 3))


def test_what_is_declared_is_not_there(weights: Checkpoint) -> None:
    weights.a.b.allocate(DType.float32, (2,))
    assert not weights.a.b.exists()
    assert dict(weights.items()) == {}
    assert weights.allocated_weights == {}
    assert list(weights) == []
    assert repr(weights.a.b) == "<Checkpoint a.b: 0 tensors>"


@pytest.mark.parametrize("ask", [Checkpoint.data, lambda node: node.info, lambda node: node.shape])
def test_data_of_what_is_declared_is_a_key_error_that_says_so(
    ask: Callable[[Checkpoint], object], weights: Checkpoint
) -> None:
    weights.a.b.allocate(DType.float32, (2,))
    with pytest.raises(KeyError, match=r"`a\.b` is only declared: this tree has no data") as caught:
        ask(weights.a.b)
    assert isinstance(caught.value, MissingTensorError)


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda weights: pickle.loads(pickle.dumps(weights))]
)
def test_the_copy_of_a_declaring_tree_declares(
    duplicate: Callable[[Any], Any], weights: Checkpoint
) -> None:
    weights.a.b.allocate(DType.float32, (2,))
    twin = duplicate(weights.a)
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
    blocks = WeightData.declared("w", DType.uint8, (2, 144), Q4_K)
    made = blocks.astype(DType.bfloat16)
    assert (made.dtype, made.shape, made.quantization_encoding) == (DType.bfloat16, [2, 256], None)


def test_astype_of_declared_data_refuses_what_cannot_be(declared: WeightData) -> None:
    with pytest.raises(EncodingError, match="`w` cannot be converted from F32 to complex64"):
        declared.astype(DType.complex64)
