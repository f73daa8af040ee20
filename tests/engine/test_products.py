"""Products with weights: blocks are decoded in tiles, and resident weights are cast once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from each import each
from engine_graphs import CPU, F32, loaded, numbers, ran
from rows import in_blocks
from weightctl import DType, QuantizationEncoding
from weightctl.engine import InferenceSession, products
from weightctl.engine.bound_weights import BoundWeights
from weightctl.engine.forms import WeightForm
from weightctl.engine.stored import InMemory, to_stored_weight
from weightctl.errors import EngineError
from weightctl.graph import Graph, TensorType, Weight
from weightctl.graph.ops.lowering import dtype_of
from weightctl.nn import Linear

Q8_0, Q4_0 = QuantizationEncoding.Q8_0, QuantizationEncoding.Q4_0


def multiplying(outputs: int, inputs: int, kind: QuantizationEncoding) -> Graph:
    with Graph("product", [TensorType(F32, ("n", inputs))]) as graph:
        weight = Weight("w", F32, (outputs, inputs), quantization_encoding=kind)
        graph.output(graph.inputs[0] @ weight.T)
    return graph


@each("kind", [Q8_0, Q4_0])
@each("tile", [1, 3 * 64 * 4, 2**21])
@each("resident", [False, True])
def test_a_product_with_tiles_is_that_with_the_values_of_blocks(
    kind: QuantizationEncoding, tile: int, resident: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "_TILE", tile)
    monkeypatch.setattr(products, "row_multiplier", lambda _: None)
    data, held = in_blocks(numbers(11, 64), kind)
    x = numbers(9, 64, seed=1)
    found = ran(multiplying(11, 64, kind), x, registry={"w": data}, resident=resident)
    np.testing.assert_allclose(found, x @ held.T, rtol=1e-5, atol=1e-5)


@each("kind", [Q8_0, Q4_0])
@each("rows", [3, 9])
def test_a_product_with_blocks_is_that_with_their_values(
    kind: QuantizationEncoding, rows: int
) -> None:
    data, held = in_blocks(numbers(11, 64), kind)
    x = numbers(rows, 64, seed=1)
    found = ran(multiplying(11, 64, kind), x, registry={"w": data})
    np.testing.assert_allclose(found, x @ held.T, rtol=1e-5, atol=1e-5)


@each("has_kernel", [True, False])
def test_blocks_are_decoded_in_several_threads(
    has_kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "_TILE", 64 * 4)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    if not has_kernel:
        monkeypatch.setattr(products, "row_multiplier", lambda _: None)
    data, held = in_blocks(numbers(32, 64), Q8_0)
    for rows in (2, 9):
        x = numbers(rows, 64, seed=1)
        found = ran(multiplying(32, 64, Q8_0), x, registry={"w": data})
        np.testing.assert_allclose(found, x @ held.T, rtol=1e-5, atol=1e-5)


def test_a_product_without_rows_reads_no_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InMemory, "raw", lambda _: pytest.fail("the blocks were read"))
    data, _ = in_blocks(numbers(4, 64), Q8_0)
    empty = np.zeros((0, 64), np.float32)
    assert ran(multiplying(4, 64, Q8_0), empty, registry={"w": data}).shape == (0, 4)


def test_an_error_of_a_product_names_the_shape_of_the_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(products, "row_multiplier", lambda _: None)
    monkeypatch.setattr(products, "decode_blocks", fail)
    data, _ = in_blocks(numbers(4, 64), Q8_0)
    with pytest.raises(EngineError, match=r"float32\[7, 64\] and float32\[64, 4\].*no memory"):
        ran(multiplying(4, 64, Q8_0), numbers(7, 64), registry={"w": data})


def test_a_resident_weight_is_cast_once() -> None:
    layer = Linear(64, 4, dtype=DType.bfloat16)
    layer.name_weights()
    with Graph("cast", [TensorType(F32, ("n", 64))]) as graph:
        graph.output(layer(graph.inputs[0]))
    held = torch.randn(4, 64).to(torch.bfloat16)
    model = loaded(graph, {"weight": held}, resident=True)
    made = model._schedule.forms  # what is kept is not seen otherwise
    assert [(form.dtype, form.read_as, form.is_transposed) for form in made] == [
        (DType.bfloat16, DType.float32, True)
    ]
    assert [each.op.name for each in model._schedule.operations] == ["matmul"]
    x = numbers(2, 64)
    (found,) = model.execute(x)
    np.testing.assert_allclose(found.to_numpy(), x @ held.float().numpy().T, rtol=1e-5, atol=1e-5)


@each("rows", [2, 9])
@each("kind", [torch.bfloat16, torch.float16])
@each("resident", [False, True])
def test_a_product_reads_short_floats_as_they_are_stored(
    rows: int, kind: torch.dtype, resident: bool
) -> None:
    with Graph("short", [TensorType(F32, ("n", 64))]) as graph:
        graph.output(graph.inputs[0] @ Weight("w", F32, (5, 64)).T)
    held, x = torch.randn(5, 64).to(kind), numbers(rows, 64)
    found = ran(graph, x, registry={"w": held}, resident=resident)
    np.testing.assert_allclose(found, x @ held.float().numpy().T, rtol=1e-5, atol=1e-5)


def test_one_cast_weight_serves_all_names_of_a_tensor() -> None:
    place = to_stored_weight(torch.randn(4, 64).to(torch.bfloat16), "w")
    kind = WeightForm("w", DType.bfloat16, (4, 64), CPU, read_as=F32)
    forms = [kind._replace(name="a"), kind._replace(name="b")]
    weights = BoundWeights({form.base: place for form in forms}, forms)
    first, second = (weights.ready(form) for form in forms)
    assert first is not None
    assert second is not None
    assert first.data_ptr() == second.data_ptr()


@each("kind", [torch.bfloat16, torch.float16])
@each("kernels", [False, True])
@each("rows", [3, 9])
def test_vectors_are_rounded_on_request_where_the_weights_are_in_bfloat16(
    kind: torch.dtype, rows: int, kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kernels:
        monkeypatch.setattr(products, "multiplies_bf16", lambda: False)
    layer = Linear(64, 11, dtype=dtype_of(kind))
    layer.name_weights()
    with Graph("product", [TensorType(F32, ("n", 64))]) as graph:
        graph.output(graph.inputs[0] @ layer.weight.cast(F32).T)
    x, weight = torch.from_numpy(numbers(rows, 64, seed=1)), torch.from_numpy(numbers(11, 64))
    weight, registry = weight.to(kind), {"weight": weight.to(kind)}
    for rounds in (False, True):
        given = x.bfloat16().float() if rounds and kind is torch.bfloat16 else x
        (found,) = InferenceSession().load(graph, registry, rounds_bf16=rounds).execute(x)
        expected = (given @ weight.float().T).numpy()
        np.testing.assert_allclose(found.to_numpy(), expected, rtol=1e-5, atol=1e-5)


def test_products_of_many_rows_are_those_of_torch() -> None:
    data, held = in_blocks(numbers(11, 64), Q8_0)
    x = numbers(300, 64, seed=1)
    found = ran(multiplying(11, 64, Q8_0), x, registry={"w": data})
    np.testing.assert_allclose(found, x @ held.T, rtol=1e-5, atol=1e-5)
