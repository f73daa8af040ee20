"""Weights are found in trees and mappings, become what the graph wants, or are all named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from arrays import stored, weights_of
from each import each
from engine_graphs import F32, counted, loaded, numbers, ran, stack, stack_weights
from weightctl import DeviceRef, DType, Plan, QuantizationEncoding, WeightData, open_weights, save
from weightctl.dtype import ENCODINGS
from weightctl.engine import InferenceSession
from weightctl.errors import EngineError, FormatError
from weightctl.graph import Graph, Weight, ops
from weightctl.plan.cast import cast

if TYPE_CHECKING:
    from pathlib import Path

    from weightctl.dtype import Encoding

Q8_0 = QuantizationEncoding.Q8_0


def given(name: str, dtype: DType, shape: tuple[int, ...], **options: Any) -> Graph:
    """Return a graph whose output is a weight."""
    with Graph("weight") as graph:
        graph.output(Weight(name, dtype, shape, **options))
    return graph


def encoded(array: np.ndarray[Any, Any], encoding: Encoding, path: Path) -> Path:
    """Write a GGUF of one tensor, `w.weight`, in an encoding."""
    plan = Plan.copy(weights_of({"w.weight": array}), "gguf")
    save(cast(plan, encoding), path)
    return path


def test_the_weights_of_a_checkpoint_are_found_by_name(tiny_llama: Path) -> None:
    tree = open_weights(tiny_llama)
    name = "model.layers.0.self_attn.q_proj.weight"
    info = tree[name].info
    expected = tree[name].data().astype(DType.float32).to_numpy()
    found = ran(given(name, DType.float32, info.shape), registry=tree)
    np.testing.assert_array_equal(found, expected)


def test_a_node_of_a_tree_is_a_registry_of_what_is_below_it(tiny_llama: Path) -> None:
    layer = open_weights(tiny_llama).model.layers[0]
    info = layer.input_layernorm.weight.info
    found = ran(given("input_layernorm.weight", DType.float32, info.shape), registry=layer)
    assert found.shape == info.shape


@each("kind", ["numpy", "read-only", "strided", "torch", "data", "buffer", "node", "big-endian"])
def test_a_mapping_may_hold_arrays_of_any_kind(kind: str) -> None:
    array = numbers(3, 4)
    read_only = array.copy()
    read_only.flags.writeable = False
    values: dict[str, Any] = {
        "numpy": array,
        "read-only": read_only,
        "strided": np.repeat(array, 2, axis=1)[:, ::2],
        "torch": torch.from_numpy(array),
        "data": WeightData.from_numpy(array, "other"),
        "buffer": WeightData.from_numpy(array, "other").to_buffer(),
        "node": weights_of({"other": array}).other,
        "big-endian": array.astype(">f4"),
    }
    found = ran(given("w", DType.float32, (3, 4)), registry={"w": values[kind]})
    np.testing.assert_array_equal(found, array)


def test_weights_in_memory_are_used_without_a_copy() -> None:
    array = np.zeros(3, np.float32)
    with Graph("sum") as graph:
        graph.output(Weight("w", F32, (3,)) + 1.0)
    for registry in ({"w": array}, weights_of({"w": array})):
        for resident in (False, True):
            model = loaded(graph, registry, resident=resident)
            array[:] = 5
            assert model.execute()[0].to_numpy().tolist() == [6, 6, 6]
            array[:] = 0


@each("resident", [False, True])
@each(
    "stored_as, wanted",
    [("bfloat16", "float32"), ("float16", "float32"), ("float8_e4m3fn", "bfloat16"),
     ("int8", "float32"), ("bool", "int64")],
)  # fmt: skip
def test_numbers_become_a_dtype_that_holds_them_all(
    stored_as: str, wanted: str, resident: bool
) -> None:
    tensor = torch.tensor([1, 0, 1]).to(getattr(torch, stored_as))
    graph = given("w", DType(wanted), (3,))
    (buffer,) = loaded(graph, {"w": tensor}, resident=resident).execute()
    assert buffer.dtype is DType(wanted)
    assert torch.from_dlpack(buffer).tolist() == [1, 0, 1]


@each("resident", [False, True])
@each("wanted", ["float32", "bfloat16"])
@each("name", ["Q8_0", "Q4_K"])
def test_blocks_become_the_numbers_that_they_encode(
    name: str, wanted: str, resident: bool, tmp_path: Path
) -> None:
    tree = open_weights(encoded(numbers(4, 256), ENCODINGS[name], tmp_path / "a.gguf"))
    expected = tree["w.weight"].data().astype(DType(wanted)).to_numpy()
    for encoding in (None, QuantizationEncoding(name)):
        graph = given("w.weight", DType(wanted), (4, 256), quantization_encoding=encoding)
        (found,) = loaded(graph, tree, resident=resident).execute()
        assert found.dtype is DType(wanted)
        np.testing.assert_array_equal(found.to_numpy(), expected)


def test_a_weight_declared_as_blocks_may_be_stored_as_others_or_as_numbers(tmp_path: Path) -> None:
    array = numbers(4, 256)
    graph = given("w.weight", DType.float32, (4, 256), quantization_encoding=Q8_0)
    tree = open_weights(encoded(array, ENCODINGS["Q6_K"], tmp_path / "a.gguf"))
    expected = tree["w.weight"].data().astype(DType.float32).to_numpy()
    np.testing.assert_array_equal(ran(graph, registry=tree), expected)
    np.testing.assert_array_equal(ran(graph, registry={"w.weight": array}), array)


def test_an_operation_that_takes_blocks_gets_those_that_are_stored(tmp_path: Path) -> None:
    tree = open_weights(encoded(numbers(4, 64), ENCODINGS["Q8_0"], tmp_path / "a.gguf"))
    expected = tree["w.weight"].data().astype(DType.float32).to_numpy()
    with Graph("rows") as graph:
        table = Weight("w.weight", DType.float32, (4, 64), quantization_encoding=Q8_0)
        graph.output(ops.embedding(table, ops.constant([3, 1])))
    for registry in (tree, {"w.weight": tree["w.weight"].data().to_numpy()}):
        for resident in (False, True):
            found = ran(graph, registry=registry, resident=resident)
            np.testing.assert_array_equal(found, expected[[3, 1]])
    with pytest.raises(
        EngineError, match=r"stored as F32 \[4, 64\], but the graph reads it as Q8_0 \[4, 64\]"
    ):
        loaded(graph, {"w.weight": numbers(4, 64)})


def test_all_weights_that_do_not_fit_are_named_at_once() -> None:
    weights: dict[str, Any] = stack_weights()
    weights["layers.0.q"] = weights.pop("layers.0.b")
    weights["layers.1.w"] = numbers(8, 9)
    weights["layers.2.w"] = numbers(8, 8).astype(np.float64)
    weights["layers.2.b"] = "no array"
    with pytest.raises(EngineError) as caught:
        loaded(stack(), weights)
    assert caught.value.message.splitlines() == [
        "4 weights of graph `stack` cannot be loaded:",
        "  `layers.0.b`: missing (did you mean `layers.0.q`?)",
        "  `layers.1.w`: stored as F32 [8, 9], but the graph expects float32 [8, 8]",
        "  `layers.2.w`: stored as F64; float32 cannot hold all of its values",
        "  `layers.2.b`: str is not an array",
    ]


def test_a_missing_weight_of_a_tree_has_a_hint(tmp_path: Path) -> None:
    arrays = {f"model.{name}": array for name, array in stack_weights().items()}
    arrays["model.layers.2.weight"] = arrays.pop("model.layers.2.w")
    tree = open_weights(stored(tmp_path / "a.safetensors", **arrays))
    says = r"`layers\.2\.w`: missing \(did you mean `layers\.2\.weight`\?\)"
    with pytest.raises(EngineError, match=says):
        loaded(stack(), tree.model)


def test_a_graph_with_weights_asks_for_a_registry() -> None:
    with pytest.raises(EngineError, match="weights_registry"):
        loaded(stack())


def test_what_is_only_declared_is_refused_as_such() -> None:
    declared = WeightData.declared("w", DType.float32, (3,))
    with pytest.raises(EngineError, match="`w`: `w` was declared without data"):
        loaded(given("w", DType.float32, (3,)), {"w": declared})


def test_a_weight_of_unknown_size_is_refused() -> None:
    with pytest.raises(EngineError, match=r"`w` is declared as \[rows, 3\]"):
        loaded(given("w", DType.float32, ("rows", 3)), {"w": numbers(2, 3)})  # type: ignore[arg-type]


def test_two_names_of_one_tensor_are_read_once(tmp_path: Path) -> None:
    shared = torch.zeros(4)
    torch.save({"a": shared, "b": shared}, tmp_path / "a.pt")
    tree, reads = counted(open_weights(tmp_path / "a.pt"))
    with Graph("tied") as graph:
        graph.output(Weight("a", F32, (4,)) + Weight("b", F32, (4,)))
    model = loaded(graph, tree, resident=True)
    model.execute()
    assert sum(reads.values()) == 1


def test_a_file_that_changed_since_it_was_opened_gives_no_answer(tmp_path: Path) -> None:
    path = stored(tmp_path / "a.safetensors", w=numbers(4))
    model = loaded(given("w", DType.float32, (4,)), open_weights(path))
    with path.open("ab") as file:
        file.write(b"more")
    with pytest.raises(FormatError, match="changed while it was read"):
        model.execute()


def test_a_weight_on_another_device_of_the_session_is_found() -> None:
    from weightctl.engine import InferenceSession

    other = DeviceRef.CPU(1)
    with Graph("elsewhere") as graph:
        graph.output(Weight("w", F32, (2,), other) + ops.constant([1.0, 1.0], device=other))
    model = InferenceSession([DeviceRef.CPU(), other]).load(graph, {"w": np.ones(2, np.float32)})
    assert model.execute()[0].to_numpy().tolist() == [2, 2]


FLOAT16, BLOCKS = {"dtype": DType.float16}, {"quantization_encoding": Q8_0}


@each("resident", [False, True])
@each("asked", [FLOAT16, BLOCKS], ids=["numbers", "blocks"])
def test_what_was_allocated_is_for_the_weight_that_was_given_alone(
    asked: dict[str, Any], resident: bool
) -> None:
    array = numbers(2, 32)
    tree = weights_of({"w": array})
    weight = tree.w.allocate(**asked)
    (data,) = tree.allocated_weights.values()
    assert isinstance(data, WeightData)
    with Graph("own") as graph:
        graph.output(weight.cast(F32))
    found = ran(graph, registry=tree, resident=resident)
    np.testing.assert_array_equal(found, data.astype(F32).to_numpy())
    for declared in ({}, {"quantization_encoding": Q8_0}):
        other = given("w", F32, (2, 32), **declared)
        np.testing.assert_array_equal(ran(other, registry=tree, resident=resident), array)


def test_a_weight_of_another_tree_is_what_this_one_stores() -> None:
    array, other = numbers(2, 32), weights_of({"w": numbers(2, 32)})
    tree = weights_of({"w": array})
    tree.w.allocate(quantization_encoding=Q8_0)
    with Graph("other") as graph:
        graph.output(other.w.allocate(quantization_encoding=Q8_0) + 0.0)
    np.testing.assert_array_equal(ran(graph, registry=tree), array)


def test_a_subgraph_takes_what_was_allocated_by_each_name_it_is_called_for() -> None:
    tree = weights_of({f"{layer}.w": numbers(4, seed=layer) for layer in range(2)})
    weights = [tree[layer].w.allocate(DType.float16) for layer in range(2)]
    with Graph("outer") as graph:
        with graph.add_subgraph("inner", [], weight_prefix="0.") as inner:
            inner.output(weights[0])
        graph.output(*(ops.call(inner, prefix=f"{layer}.")[0] for layer in range(2)))
    for layer, found in enumerate(loaded(graph, tree).execute()):
        expected = numbers(4, seed=layer).astype(np.float16)
        np.testing.assert_array_equal(found.to_numpy(), expected)


@each("resident", [False, True])
def test_a_weight_that_is_changed_later_stays_what_it_was_in_the_graph(resident: bool) -> None:
    weight = Weight("w", F32, (4,))
    with Graph("sum") as graph:
        graph.output(weight + 1.0)
    weight.name = "other"
    with pytest.warns(
        UserWarning, match="keep `other` with device cpu:0; only graphs .* use gpu:3"
    ):
        weight.device = DeviceRef.GPU(3)
    weight.configure(DType.float64, (2, 32), Q8_0)
    found = ran(graph, registry={"w": np.ones(4, np.float32)}, resident=resident)
    assert (found.dtype, found.tolist()) == (np.float32, [2] * 4)


@each("resident", [False, True])
def test_integers_that_may_not_fit_are_refused_and_do_not_wrap(resident: bool) -> None:
    with Graph("narrow") as graph:
        graph.output(Weight("w", DType.int32, (2,)))
    with pytest.raises(EngineError, match="stored as I64; int32 cannot hold all of its values"):
        InferenceSession().load(graph, {"w": np.array([1, 2**40])}, resident=resident)
