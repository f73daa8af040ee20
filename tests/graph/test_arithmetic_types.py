"""Which dtypes and Python numbers go together, and what the functions of a family add."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from each import each
from weightctl.device import DeviceRef
from weightctl.dtype import DType
from weightctl.errors import GraphError
from weightctl.graph import Graph, TensorType, Value, ops
from weightctl.graph.ops import binary, unary
from weightctl.graph.ops.binary import ARITHMETIC_FUNCTIONS, COMPARISON_FUNCTIONS
from weightctl.graph.ops.unary import UNARY_FUNCTIONS
from weightctl.shape import Dim

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def graph() -> Iterator[Graph]:
    kinds = (DType.float16, DType.int32, DType.bool, DType.uint8)
    with Graph("types", [TensorType(kind, (2,)) for kind in kinds]) as graph:
        yield graph


@each(
    "family, functions, operands",
    [
        ("arithmetic", set(ARITHMETIC_FUNCTIONS), 2),
        ("comparison", set(COMPARISON_FUNCTIONS), 2),
        ("unary", set(UNARY_FUNCTIONS), 1),
        ("reduce", {"sum", "mean", "max", "min"}, 1),
    ],
)
def test_each_function_of_a_family_adds_itself(
    family: str, functions: set[str], operands: int
) -> None:
    for function in functions:
        kind = DType.bool if function.startswith("logical") else DType.float32
        with Graph("family", [TensorType(kind, (2,))]) as graph:
            getattr(ops, function)(*graph.inputs * operands)
        assert graph.nodes[-1].op == family
        assert graph.nodes[-1].attributes["function"] == function


def test_every_function_of_one_or_two_tensors_has_a_name_in_torch() -> None:
    of_their_own = {"cast", "clamp", "gelu", "print_value", "where"}
    functions = {name for module in (unary, binary) for name in module.__all__ if name.islower()}
    tables = (ARITHMETIC_FUNCTIONS, COMPARISON_FUNCTIONS, UNARY_FUNCTIONS)
    assert functions - of_their_own == {name for table in tables for name in table}


def test_a_number_takes_the_dtype_of_the_tensor_beside_it(graph: Graph) -> None:
    half, whole, truth, _ = graph.inputs
    assert (half + 1).dtype is DType.float16
    assert (0.5 * half).dtype is DType.float16
    assert (whole - 1).dtype is DType.int32
    assert (whole > 3).dtype is DType.bool
    assert (truth == True).dtype is DType.bool  # noqa: E712  # a value, not a comparison


def test_a_fraction_beside_integers_is_refused_with_what_to_do(graph: Graph) -> None:
    with pytest.raises(GraphError, match="cast"):
        graph.inputs[1] + 0.5


def test_a_number_that_the_dtype_beside_it_cannot_hold_is_refused(graph: Graph) -> None:
    half, _, _, byte = graph.inputs
    for too_large in (lambda: half + 1e9, lambda: byte + 256, lambda: byte * -1):
        with pytest.raises(GraphError, match="cannot be converted to"):
            too_large()


def test_infinity_is_a_number_of_every_float_type(graph: Graph) -> None:
    assert (graph.inputs[0] + -math.inf).dtype is DType.float16


def test_integers_are_divided_by_two_slashes(graph: Graph) -> None:
    whole = graph.inputs[1]
    assert (whole // 2).dtype is DType.int32
    with pytest.raises(GraphError, match="use `//`"):
        whole / 2


def test_tensors_of_two_dtypes_are_not_promoted(graph: Graph) -> None:
    half, whole = graph.inputs[:2]
    with pytest.raises(GraphError, match=r"add of float16\[2\] and int32\[2\]"):
        half + whole
    assert (half + whole.cast(DType.float16)).dtype is DType.float16


def choice(graph: Graph, left: Any, right: Any) -> Value:
    return ops.where(graph.inputs[2], left, right)


def test_a_number_beside_a_choice_takes_the_dtype_of_the_other(graph: Graph) -> None:
    half = graph.inputs[0]
    assert choice(graph, half, -math.inf).dtype is DType.float16
    assert choice(graph, 0, half).dtype is DType.float16


def test_arrays_and_dimensions_to_choose_from_keep_their_dtypes(graph: Graph) -> None:
    assert choice(graph, np.zeros(2, np.int16), 0).dtype is DType.int16
    assert choice(graph, Dim("batch"), 0).dtype is DType.int64


def test_two_numbers_to_choose_from_are_floats_where_one_has_a_fraction(graph: Graph) -> None:
    assert choice(graph, 1, 2).dtype is DType.int64
    assert choice(graph, 1, 2.5).dtype is DType.float32


def test_operands_on_two_devices_are_refused() -> None:
    there = TensorType(DType.float32, (2,), DeviceRef.GPU(0))
    with (
        Graph("devices", [TensorType(DType.float32, (2,)), there]) as graph,
        pytest.raises(GraphError, match="cpu:0 and gpu:0"),
    ):
        ops.matmul(*graph.inputs)


def test_top_k_gives_values_and_indices() -> None:
    with Graph("top", [TensorType(DType.float32, ("batch", 9))]) as graph:
        values, indices = ops.top_k(graph.inputs[0], 3)
    assert str(values.type) == "float32[batch, 3]"
    assert str(indices.type) == "int64[batch, 3]"
