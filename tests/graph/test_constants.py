"""Numbers that are known when a graph is built."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from each import each
from weightctl import Buffer
from weightctl.device import DeviceRef
from weightctl.dtype import DType
from weightctl.errors import GraphError
from weightctl.graph import Graph, Shape, ops
from weightctl.shape import Dim


def data_of(value: Any, dtype: DType | None = None) -> Buffer:
    with Graph("constants") as graph:
        ops.constant(value, dtype)
    data = graph.nodes[-1].attributes["data"]
    assert isinstance(data, Buffer)
    return data


@each(
    "value, dtype",
    [
        (True, DType.bool),
        (3, DType.int64),
        (0.5, DType.float32),
        ([1, 2], DType.int64),
        ([[1.0], [2.0]], DType.float32),
        (np.float64(2), DType.float64),
        (np.array([1, 2], np.int16), DType.int16),
        (np.array([1], ml_dtypes.bfloat16), DType.bfloat16),
        (torch.ones(2, dtype=torch.bfloat16), DType.bfloat16),
        (Buffer.from_numpy(np.ones(2, np.uint8)), DType.uint8),
    ],
    ids=str,
)
def test_a_constant_without_a_dtype_has_the_one_of_its_numbers(value: Any, dtype: DType) -> None:
    assert data_of(value).dtype is dtype


def test_a_constant_takes_the_dtype_that_is_asked_for() -> None:
    data = data_of([[1, 2], [3, 4]], DType.bfloat16)
    assert data.dtype is DType.bfloat16
    np.testing.assert_array_equal(data.to_numpy().astype(np.int64), [[1, 2], [3, 4]])


def test_an_empty_list_is_of_any_dtype() -> None:
    assert data_of([]).dtype is DType.float32
    assert data_of([], DType.int64).dtype is DType.int64


def test_a_number_is_rounded_once_to_the_dtype() -> None:
    assert data_of(0.1, DType.float64).to_numpy() == 0.1
    assert data_of(0.1, DType.float16).to_numpy() == np.float16(0.1)


@each(
    "value, dtype",
    [
        (1.0, DType.int32),
        (300, DType.uint8),
        (1, DType.bool),
        (70000.0, DType.float16),
        ([1e300, 0.0], None),
        (1000, DType.float8_e4m3fn),
        (np.complex64(1j), DType.float32),
    ],
)
def test_a_number_that_does_not_fit_its_dtype_is_refused(value: Any, dtype: DType | None) -> None:
    with pytest.raises(
        GraphError, match=f"cannot be converted to {(dtype or DType.float32).value}"
    ):
        data_of(value, dtype)


@each("value", ["text", [[1], [2, 3]], 2**70, [object()], np.array("text")])
def test_what_is_not_an_array_of_numbers_is_refused(value: Any) -> None:
    with pytest.raises(GraphError, match="constant: "):
        data_of(value)


def test_an_array_that_changes_later_leaves_the_graph_as_it_was() -> None:
    array = np.zeros(2, np.float32)
    data = data_of(array)
    array[:] = 1
    np.testing.assert_array_equal(data.to_numpy(), [0, 0])


def test_a_constant_is_on_a_device_and_its_numbers_are_not_moved_yet() -> None:
    with Graph("constants") as graph:
        value = ops.constant([1.0], device=DeviceRef.GPU(3))
    assert str(value.type) == "float32[1] on gpu:3"
    assert graph.nodes[-1].attributes["data"].device == DeviceRef.CPU()


@each("value, shape", [("batch", ()), (Dim("batch") * 2, ()), (Shape(("batch", 3)), (2,))])
def test_dimensions_are_values_whose_names_stay_open(value: Any, shape: tuple[int, ...]) -> None:
    with Graph("sizes") as graph:
        size = ops.dims(value)
    assert (size.dtype, size.shape) == (DType.int64, shape)
    assert graph.nodes[-1].attributes["dims"] == value
