"""Bare bytes are blocks where a weight is declared as such."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from each import each
from engine_graphs import F32, loaded, numbers, ran
from rows import in_blocks
from runs import graph_of
from weightctl import DType, QuantizationEncoding
from weightctl.device import CPU
from weightctl.engine.bound_weights import BoundWeights
from weightctl.engine.forms import WeightForm
from weightctl.engine.stored import to_stored_weight
from weightctl.errors import EngineError
from weightctl.graph import Graph, TensorType, Weight, ops
from weightctl.nn import Linear

if TYPE_CHECKING:
    from engine_graphs import Array

Q8_0 = QuantizationEncoding.Q8_0


@pytest.fixture
def quantized() -> tuple[Array, Array]:
    """Return the bytes of four rows of blocks, and the numbers in them."""
    data, held = in_blocks(numbers(4, 64), Q8_0)
    return data.to_numpy(), held


@pytest.mark.parametrize("resident", [False, True])
def test_a_layer_runs_on_the_bytes_that_it_was_loaded_with(
    quantized: tuple[Array, Array], resident: bool
) -> None:
    raw, held = quantized
    layer, x = Linear(64, 4, quantization_encoding=Q8_0), numbers(2, 64, seed=1)
    layer.load_state_dict({"weight": raw})
    graph = graph_of(layer, [TensorType(F32, ("n", 64))])
    found = ran(graph, x, registry=layer.state_dict(), resident=resident)
    np.testing.assert_allclose(found, x @ held.T, rtol=1e-5, atol=1e-5)


def test_a_layer_runs_on_the_bytes_that_it_makes_itself() -> None:
    layer = Linear(32, 4, quantization_encoding=Q8_0)
    graph = graph_of(layer, [TensorType(F32, ("n", 32))])
    found = ran(graph, numbers(2, 32), registry=layer.state_dict())
    assert found.tolist() == [[0] * 4] * 2


@each("shape", [(4, 68), (2, 136), (272,)])
def test_the_rows_of_a_table_are_found_in_bytes_of_any_shape(
    quantized: tuple[Array, Array], shape: tuple[int, ...]
) -> None:
    raw, held = quantized
    with Graph("rows") as graph:
        table = Weight("w", F32, (4, 64), quantization_encoding=Q8_0)
        graph.output(ops.embedding(table, ops.constant([3, 1])), table + 0.0)
    rows, whole = loaded(graph, {"w": raw.reshape(shape)}).execute()
    np.testing.assert_array_equal(rows.to_numpy(), held[[3, 1]])
    np.testing.assert_array_equal(whole.to_numpy(), held)


def test_bytes_that_stay_in_memory_stay_blocks(quantized: tuple[Array, Array]) -> None:
    raw, held = quantized
    form = WeightForm("w", F32, (4, 64), CPU, Q8_0)
    weights = BoundWeights({form: to_stored_weight(raw, "w")}, [form])
    raw[:] = 0
    assert not weights.tensor(form).any()
    assert held.any()


def test_too_few_bytes_are_not_blocks(quantized: tuple[Array, Array]) -> None:
    with Graph("sum") as graph:
        graph.output(Weight("w", F32, (4, 64), quantization_encoding=Q8_0) + 0.0)
    with pytest.raises(
        EngineError, match=r"stored as U8 \[3, 68\], but the graph expects float32 \[4, 64"
    ):
        loaded(graph, {"w": quantized[0][:3]})


def test_bytes_of_a_weight_of_no_encoding_are_numbers() -> None:
    array = np.arange(4, dtype=np.uint8)
    with Graph("same") as graph:
        graph.output(Weight("w", DType.uint8, (4,)))
    np.testing.assert_array_equal(ran(graph, registry={"w": array}), array)
