"""`load_state_dict` and `InferenceSession.load` take the same values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from arrays import stored
from each import each
from rows import in_blocks
from weightctl import open_weights
from weightctl.device import CPU
from weightctl.dtype import DType, QuantizationEncoding
from weightctl.engine import InferenceSession
from weightctl.errors import EngineError, WeightctlError
from weightctl.graph import Graph, TensorType, Weight, ops
from weightctl.nn import Embedding, LayerList, Linear, Module, Parallel
from weightctl.split import Grid
from weightctl.weights import WeightData

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from weightctl.graph import Value

    Load = Callable[[Module, Graph, Any], list[list[float]]]

E = np.arange(40, dtype=np.float32).reshape(10, 4)
X = TensorType(DType.float32, ("batch", 4))
ONES = np.ones((1, 4), np.float32)
SUMS = [E.sum(axis=1).tolist()]
Q8_0 = QuantizationEncoding.Q8_0


class Tied(Module):
    """A table whose rows are also the weights of the layer behind it."""

    def __init__(self) -> None:
        self.embed = Embedding(10, 4)
        self.head = Linear(4, 10)
        self.head.set_shared_weight("weight", self.embed.weight)

    def __call__(self, x: Value) -> Value:
        return self.head(x)


def built(model: Module) -> Graph:
    model.name_weights()
    with Graph("tied", [X]) as graph:
        graph.output(model(graph.inputs[0]))
    return graph


def by_state(model: Module, graph: Graph, values: Any) -> list[list[float]]:
    model.load_state_dict(values)
    return InferenceSession().load(graph, model.state_dict())(ONES)[0].to_numpy().tolist()


def by_registry(_: Module, graph: Graph, values: Any) -> list[list[float]]:
    return InferenceSession().load(graph, values)(ONES)[0].to_numpy().tolist()


both = each("load", [by_state, by_registry])


@both
@each(
    "values",
    [
        {"head.weight": E},
        {"embed.weight": E},
        {"embed.weight": E, "head.weight": E.copy()},
        {"embed.weight": E, "head.weight": E.astype(np.float64)},
        {"embed.weight": E.astype(np.float16), "head.weight": torch.from_numpy(E)},
    ],
    ids=["second", "first", "both", "float64", "float16"],
)
def test_a_shared_weight_is_found_by_each_of_its_names(load: Load, values: Any) -> None:
    model = Tied()
    assert load(model, built(model), values) == SUMS


@both
@each(
    "head, says",
    [
        (E + 1, "the values differ"),
        (E.astype(np.float64) + 1e-9, "the values differ"),
        (E[:9], r"the shapes differ: \[10, 4\] and \[9, 4\]"),
        (E.astype(np.int64), "the types differ: float32 and int64"),
    ],
    ids=["values", "float64", "shape", "int64"],
)
def test_two_names_of_one_weight_with_different_values_are_refused(
    load: Load, head: Any, says: str
) -> None:
    model = Tied()
    with pytest.raises(WeightctlError, match=rf"`head\.weight` is another name of .*, but {says}"):
        load(model, built(model), {"embed.weight": E, "head.weight": head})


@both
def test_both_names_in_a_file_are_compared(load: Load, tmp_path: Path) -> None:
    model = Tied()
    graph = built(model)
    same = stored(tmp_path / "same.safetensors", **{"embed.weight": E, "head.weight": E})
    other = stored(tmp_path / "other.safetensors", **{"embed.weight": E, "head.weight": -E})
    assert load(model, graph, open_weights(same)) == SUMS
    with pytest.raises(WeightctlError, match=r"`head\.weight` is another name"):
        load(model, graph, open_weights(other))


def test_a_shared_weight_of_a_called_layer_is_found_by_its_second_name() -> None:
    class Stack(Module):
        def __init__(self) -> None:
            self.layers = LayerList([Tied(), Tied()])

        def __call__(self, x: Value) -> list[Value]:
            subgraph = self.layers[0].build_subgraph("tied", [x.type], "layers.0.")
            return [ops.call(subgraph, x, prefix=f"layers.{each}.")[0] for each in range(2)]

    stack = Stack()
    with Graph("stack", [X]) as graph:
        graph.output(*stack(graph.inputs[0]))
    values = {"layers.0.head.weight": E, "layers.1.head.weight": -E}
    first, second = InferenceSession().load(graph, values)(ONES)
    assert first.to_numpy().tolist() == SUMS
    assert np.array_equal(second.to_numpy(), -first.to_numpy())


def test_shards_of_a_shared_weight_are_cut_from_its_second_name() -> None:
    model = Tied()
    model.name_weights()
    head = Parallel(model.head, [CPU, CPU], grid=Grid(2))
    with Graph("cut", [X]) as graph:
        graph.output(head(graph.inputs[0]))
    (found,) = InferenceSession().load(graph, {"head.weight": E})(ONES)
    assert found.to_numpy().tolist() == SUMS


def test_a_second_name_that_another_weight_of_the_graph_has_is_that_weights() -> None:
    model, other = Tied(), Weight("head.weight", DType.float32, (10, 4))
    model.name_weights()
    with Graph("two", [X]) as graph:
        graph.output(model(graph.inputs[0]), graph.inputs[0] @ other.T)
    one, two = InferenceSession().load(graph, {"embed.weight": E, "head.weight": -E})(ONES)
    assert np.array_equal(one.to_numpy(), -two.to_numpy())


@both
@each("dtype", [DType.float32, DType.bfloat16], ids=str)
def test_blocks_are_decoded_for_a_weight_of_floats(load: Load, dtype: DType) -> None:
    class Wide(Module):
        def __init__(self) -> None:
            self.weight = Weight("weight", dtype, (2, 64))

        def __call__(self, _: Value) -> Value:
            return self.weight.cast("float32")

    model, numbers = Wide(), np.random.default_rng(0).normal(size=(2, 64)).astype(np.float32)
    value: WeightData = in_blocks(numbers, Q8_0, "weight")[0]
    expected = value.astype("float32").astype(dtype).astype("float32").to_numpy()
    assert load(model, built(model), {"weight": value}) == expected.reshape(2, 64).tolist()
    assert model.weight.quantization_encoding is None
    model.load_state_dict({"weight": value}, override_quantization_encoding=True)
    assert model.weight.quantization_encoding is Q8_0


@both
def test_unaligned_values_are_copied(load: Load) -> None:
    memory = np.zeros(E.nbytes + 1, np.uint8)
    unaligned = memory[1:].view(np.float32).reshape(E.shape)
    unaligned[:] = E
    model = Tied()
    assert load(model, built(model), {"embed.weight": unaligned}) == SUMS


@both
@each(
    "value, says",
    [
        (E.astype(np.float64), "`astype`|WeightData.astype"),
        (E.tolist(), "NumPy arrays, torch tensors"),
        (None, "NumPy arrays, torch tensors"),
        (np.ma.masked_array(E, E > 3), r"use `filled\(\)` to get a plain array"),
        (torch.empty(10, 4, device="meta"), "load its data first"),
        (torch.from_numpy(E).to_sparse(), r"`to_dense\(\)`"),
        (
            WeightData.declared("w", DType.float32, (10, 4)),
            ("open a checkpoint that has the tensor"),
        ),
    ],
    ids=["float64", "list", "none", "masked", "meta", "sparse", "declared"],
)
def test_what_is_refused_comes_with_what_to_do(load: Load, value: Any, says: str) -> None:
    model = Tied()
    with pytest.raises(WeightctlError, match=r"`embed\.weight`") as caught:
        load(model, built(model), {"embed.weight": value})
    assert caught.match(rf"(?s)hint: .*({says})")
    assert (
        "names and shapes must match the stored tensors; `weightctl ls --flat` lists them for "
        "a file"
    ) not in caught.value.hint


def test_a_registry_may_hold_more_than_a_graph_uses() -> None:
    model = Tied()
    values = {"embed.weight": E, "typo.weight": E, "more": None}
    assert by_registry(model, built(model), values) == SUMS


def test_each_kind_of_problem_of_a_registry_has_its_own_hint() -> None:
    with Graph("kinds") as graph:
        graph.output(*(Weight(name, DType.float32, (2,)) for name in "abc"))
    values = {"a": np.ones(2), "b": np.ones(3, np.float32)}
    with pytest.raises(EngineError) as caught:
        InferenceSession().load(graph, values)
    assert "`astype`" in caught.value.hint
    assert (
        "names and shapes must match the stored tensors; `weightctl ls --flat` lists them for "
        "a file"
    ) in caught.value.hint
