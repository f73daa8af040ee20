from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from each import each
from lazy import torch
from rows import in_blocks
from runs import run
from weightctl.device import DeviceRef
from weightctl.dtype import DType, QuantizationEncoding
from weightctl.errors import EngineError, GraphError
from weightctl.graph import Graph, TensorType, Weight, ops
from weightctl.graph.ops.lowering import decode_blocks, torch_dtype
from weightctl.graph.ops.quantized import lower_embedding

if TYPE_CHECKING:
    from weightctl.weights import WeightData

Q4_K, Q8_0 = QuantizationEncoding.Q4_K, QuantizationEncoding.Q8_0


def blocks(encoding: QuantizationEncoding, rows: int, columns: int) -> tuple[WeightData, Any]:
    """Rows of blocks, and the numbers in them."""
    numbers = np.random.default_rng(6).standard_normal((rows, columns), np.float32)
    return in_blocks(numbers, encoding, "w")


def weight(encoding: QuantizationEncoding, *shape: int, dtype: DType = DType.float32) -> Weight:
    return Weight("w", dtype, shape, quantization_encoding=encoding)


@each("encoding", [Q4_K, Q8_0, QuantizationEncoding.Q4_0])
def test_a_quantized_weight_gives_its_numbers(encoding: QuantizationEncoding) -> None:
    data, numbers = blocks(encoding, 4, 512)
    found = run(lambda: ops.dequantize(weight(encoding, 4, 512)), weights={"w": data})
    np.testing.assert_array_equal(found, numbers)


def test_numbers_are_of_the_dtype_that_is_asked_for() -> None:
    data, numbers = blocks(Q4_K, 4, 256)
    half = run(lambda: ops.dequantize(weight(Q4_K, 4, 256), DType.float16), weights={"w": data})
    assert half.dtype == np.float16
    np.testing.assert_array_equal(half, numbers.astype(np.float16))


def test_other_operations_see_the_numbers() -> None:
    data, numbers = blocks(Q8_0, 4, 64)
    quantized = weight(Q8_0, 4, 64)

    def parts(x: Any) -> tuple[Any, ...]:
        return quantized[1:, -3], quantized.reshape([2, -1]), x @ quantized.T

    x = np.ones((1, 64), np.float32)
    sliced, reshaped, product = run(parts, x, weights={"w": data})
    np.testing.assert_array_equal(sliced, numbers[1:, -3])
    np.testing.assert_array_equal(reshaped, numbers.reshape(2, -1))
    np.testing.assert_allclose(product, x @ numbers.T, rtol=1e-5)


def test_a_lookup_gives_the_numbers_of_the_rows_that_are_asked_for() -> None:
    data, numbers = blocks(Q4_K, 50, 256)
    table, ids = weight(Q4_K, 50, 256), np.array([[3, 49], [3, 0]])
    found = run(lambda given: ops.embedding(table, given), ids, weights={"w": data})
    np.testing.assert_array_equal(found, numbers[ids])


def test_a_lookup_decodes_no_other_rows() -> None:
    # The rows are one row of memory; decoded, all of them would take 64 TiB.
    table = torch.zeros(1, 144, dtype=torch.uint8).expand(1 << 36, 144)
    ids = torch.tensor([0, (1 << 36) - 1])
    found = lower_embedding(table, ids, encoding=Q4_K, dtype=DType.float32, device=DeviceRef.CPU())
    assert found.shape == (2, 256)


def test_a_lookup_gives_the_original_dtype() -> None:
    data, numbers = blocks(Q8_0, 5, 32)
    table = weight(Q8_0, 5, 32, dtype=DType.bfloat16)
    found = run(lambda ids: ops.embedding(table, ids), np.array([4]), weights={"w": data})
    assert found.dtype.name == "bfloat16"
    np.testing.assert_array_equal(found, numbers[[4]].astype(found.dtype))


@each("is_quantized", [False, True])
@each("number", [5, -1])
def test_an_id_out_of_bounds_is_refused_when_it_runs(is_quantized: bool, number: int) -> None:
    data, numbers = blocks(Q8_0, 5, 32)
    table = weight(Q8_0, 5, 32) if is_quantized else Weight("w", DType.float32, (5, 32))
    with pytest.raises(EngineError, match=rf"embedding of .*: row {number} does not exist"):
        run(
            lambda ids: ops.embedding(table, ids),
            np.array([number]),
            weights={"w": data if is_quantized else numbers},
        )


def test_a_quantized_weight_and_its_numbers_are_on_its_device() -> None:
    gpu = DeviceRef.GPU(0)
    table = Weight("w", DType.float32, (5, 32), gpu, Q8_0)
    with Graph("placed", [TensorType(DType.int64, ["seq"], gpu)]) as graph:
        rows = ops.embedding(table, graph.inputs[0])
        assert rows.type == TensorType(DType.float32, ["seq", 32], gpu)
        assert ops.dequantize(table).type == TensorType(DType.float32, [5, 32], gpu)
    (declared,) = (node for node in graph.nodes if node.op == "weight")
    assert declared.outputs[0].type == TensorType(DType.uint8, [5, 34], gpu)


def test_a_quantized_table_of_three_dimensions_is_not_a_table() -> None:
    with Graph("experts", [TensorType(DType.int64, ["seq"])]) as graph:
        experts = weight(Q8_0, 2, 3, 32)
        with pytest.raises(
            GraphError, match=r"the table must have 2 dimensions, \[rows, dim\], not 3"
        ):
            ops.embedding(experts, graph.inputs[0])
        assert ops.dequantize(experts).shape == [2, 3, 32]


def test_what_is_not_quantized_is_not_dequantized() -> None:
    with (
        Graph("plain", [TensorType(DType.float32, [3])]) as graph,
        pytest.raises(GraphError, match="not a quantized weight"),
    ):
        ops.dequantize(graph.inputs[0])


def test_numbers_that_are_used_often_are_one_value() -> None:
    quantized = weight(Q8_0, 4, 32)
    with Graph("often") as graph:
        once, twice = quantized * 2.0, quantized + quantized
        half = ops.dequantize(quantized, DType.float16)
        again = ops.dequantize(quantized, DType.float32)
        graph.output(once, twice, half, again)
    ops_used = [node.op for node in graph.nodes]
    assert (ops_used.count("weight"), ops_used.count("dequantize")) == (1, 2)
    assert ops_used[:2] == ["weight", "dequantize"]


def test_numbers_beside_the_value_of_a_quantized_weight_are_of_its_numbers_type() -> None:
    with Graph("beside") as graph:
        value = graph.add_weight(weight(Q8_0, 4, 32, dtype=DType.float16))
        assert (value * 2.5).type == TensorType(DType.float16, [4, 32])
        assert (2.5 - value).type == TensorType(DType.float16, [4, 32])


def test_a_choice_of_a_quantized_weight_is_one_of_its_numbers() -> None:
    data, numbers = blocks(Q8_0, 4, 32)
    quantized = weight(Q8_0, 4, 32)

    def chosen(mask: Any) -> tuple[Any, ...]:
        return ops.where(mask, quantized, 0.0), ops.where(mask, -1, quantized)

    mask = np.arange(32) % 3 == 0
    found = run(chosen, mask, weights={"w": data})
    np.testing.assert_array_equal(found[0], np.where(mask, numbers, 0))
    np.testing.assert_array_equal(found[1], np.where(mask, -1, numbers))


def test_a_quantized_weight_that_is_changed_after_its_use_stays_what_it_was() -> None:
    data, numbers = blocks(Q8_0, 4, 32)
    table, ids = weight(Q8_0, 4, 32), np.array([2, 0])

    def changed(rows: Any) -> tuple[Any, ...]:
        first = ops.embedding(table, rows)
        table.configure(DType.float64, (4, 256), Q4_K)
        return first, ops.embedding(table, rows), table * 1.0

    first, second, whole = run(changed, ids, weights={"w": data})
    assert (table.dtype, table.shape) == (DType.uint8, [4, 144])
    np.testing.assert_array_equal(first, numbers[ids])
    np.testing.assert_array_equal(second, numbers[ids])
    np.testing.assert_array_equal(whole, numbers)


@each("dtype", [DType.float32, DType.bfloat16])
def test_blocks_are_decoded_into_memory_that_is_given(dtype: DType) -> None:
    data, numbers = blocks(Q4_K, 6, 512)
    raw = torch.from_numpy(data.blocks).reshape(2, 3, -1)
    memory = torch.zeros(numbers.size * dtype.encoding.size, dtype=torch.uint8)
    found = decode_blocks(raw, Q4_K, dtype, memory)
    assert found.data_ptr() == memory.data_ptr()
    assert found.shape == (2, 3, 512)
    torch.testing.assert_close(found, decode_blocks(raw, Q4_K.encoding, dtype), rtol=0, atol=0)
    expected = torch.from_numpy(numbers).reshape(2, 3, 512).to(torch_dtype(dtype))
    assert torch.equal(found, expected)


def test_no_blocks_are_not_numbers() -> None:
    assert decode_blocks(torch.zeros(0, 34, dtype=torch.uint8), Q8_0, DType.float32).shape == (
        0,
        32,
    )
    assert decode_blocks(torch.zeros(3, 0, dtype=torch.uint8), Q8_0, DType.float32).shape == (3, 0)
