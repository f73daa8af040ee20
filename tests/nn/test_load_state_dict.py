"""Values are loaded into a model: which are taken, and what does not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest

from arrays import stored, weights_of
from each import each
from lazy import torch
from rows import in_blocks
from runs import run
from small_modules import Block, Scale, Stack, all_weights, random_values, refusal
from weightctl import open_weights
from weightctl.device import CPU
from weightctl.dtype import ENCODINGS, DType, QuantizationEncoding
from weightctl.engine import InferenceSession
from weightctl.errors import EngineError, StateDictError, WeightctlError
from weightctl.graph import Graph, TensorType, Weight, ops
from weightctl.nn import Embedding, LayerList, Linear, Module, Parallel
from weightctl.shape import Shape
from weightctl.split import Grid
from weightctl.weights import Buffer, WeightData, Weights
from weightctl.weights.tree import Checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from weightctl.graph import Value
    from weightctl.shape import ShapeLike

    Array = np.ndarray[Any, Any]
    Load = Callable[[Module, Graph, Any], list[list[float]]]


Q8_0, Q4_0 = QuantizationEncoding.Q8_0, QuantizationEncoding.Q4_0


class Single(Module):
    """One weight."""

    def __init__(
        self,
        shape: ShapeLike = (2, 64),
        encoding: QuantizationEncoding | None = None,
        dtype: DType = DType.float32,
    ) -> None:
        self.weight = Weight("weight", dtype, shape, quantization_encoding=encoding)


def blocks(
    encoding: QuantizationEncoding, shape: tuple[int, ...] = (2, 64), name: str = "weight"
) -> WeightData:
    numbers = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    return in_blocks(numbers.reshape(-1, shape[-1]), encoding, name)[0]


def test_the_values_are_those_that_were_given() -> None:
    stack = Stack(1)
    given = random_values(stack)
    assert stack.load_state_dict(given) is None
    state = stack.state_dict(auto_initialize=False)
    assert all(state[name] is value for name, value in given.items())


def test_values_are_renamed_by_the_first_rule_that_matches() -> None:
    module, values = Single(), np.ones((2, 64), np.float32)
    rules = {r"^model\.(\w+)$": r"\1", "kernel": "weight"}
    module.load_state_dict({"model.weight": values}, rename={r"^model\.(\w+)$": r"\1"})
    state = {"kernel": values, "model.b": values}
    assert module.load_state_dict(state, strict=False, rename=rules) == ([], ["b"])
    for given, says in (
        ({"weight": values}, r"no name matches `\^model"),
        ({"model.weight": values, "kernel": values}, "two names become `weight`"),
    ):
        with pytest.raises(StateDictError, match=says):
            module.load_state_dict(given, rename=rules)


def test_loading_names_the_weights() -> None:
    stack = Stack(1)
    given = {name: np.zeros(4, np.float32) for name, _ in all_weights(stack)}
    stack.load_state_dict(given)
    assert stack.layers[0].up.weight.name == "layers.0.up.weight"


def test_the_graph_computes_with_what_was_loaded() -> None:
    scale = Scale()
    scale.load_state_dict({"weight": np.array([1, 2, 3, 4], np.float32)})
    assert run(scale, np.ones((1, 4), np.float32)).tolist() == [[1, 2, 3, 4]]


@each(
    "value",
    [
        np.ones(4, np.float32),
        torch.ones(4),
        Buffer.from_numpy(np.ones(4, np.float32)),
        WeightData.from_numpy(np.ones(4, np.float32), "weight"),
        weights_of({"one": np.ones(4, np.float32)}).one,
        np.ones(8, np.float32)[::2],
    ],
    ids=["numpy", "torch", "buffer", "data", "node", "strided"],
)
def test_values_of_any_kind_are_taken_and_run(value: Any) -> None:
    scale = Scale()
    scale.load_state_dict({"weight": value})
    assert run(scale, np.full((1, 4), 2, np.float32)).tolist() == [[2, 2, 2, 2]]


def test_numbers_that_numpy_has_no_type_for_are_taken() -> None:
    module = Single((4,), dtype=DType.bfloat16)
    module.load_state_dict({"weight": torch.ones(4, dtype=torch.bfloat16)})
    module.load_state_dict({"weight": np.ones(4, ml_dtypes.bfloat16)})


def test_a_whole_tree_is_a_state_and_its_nodes_give_data(tmp_path: Path) -> None:
    stack = Stack(2)
    path = stored(tmp_path / "model.safetensors", **random_values(stack))
    stack.load_state_dict(open_weights(path))
    state = stack.state_dict(auto_initialize=False)
    assert all(isinstance(value, WeightData) for value in state.values())
    assert np.array_equal(np.asarray(state["head.weight"]), random_values(stack)["head.weight"])


def test_names_below_a_node_of_a_tree_are_relative_to_it() -> None:
    stack = Stack(1)
    tree = weights_of({f"model.{name}": value for name, value in random_values(stack).items()})
    stack.load_state_dict(tree.model)
    assert "head.weight" in stack.state_dict(auto_initialize=False)


def test_what_a_tree_has_allocated_is_a_state_that_is_read_when_it_is_used() -> None:
    tree = weights_of({"weight": np.ones(4, np.float16)})
    scale = Scale()
    scale.weight = tree.weight.allocate(dtype=DType.float32)
    scale.load_state_dict(tree.allocated_weights)
    assert run(scale, np.ones((1, 4), np.float32)).tolist() == [[1, 1, 1, 1]]


def test_a_tree_that_only_declares_has_no_values() -> None:
    tree = Graph("model").weights()
    tree.weight.allocate(DType.float32, (4,))
    assert "`weight` is missing" in refusal(Scale(), tree)


def test_nothing_is_read_for_the_checks() -> None:
    class Unread:
        """A source whose tensors must not be taken."""

        def __init__(self, of: Weights) -> None:
            self.header = of.header

        def data(self, name: str) -> WeightData:
            raise AssertionError(name)

    source: Any = Unread(weights_of({"weight": np.ones((3, 3), np.float32)}))
    assert "`weight` is float32[3, 3] instead of float32[4]" in refusal(Scale(), Checkpoint(source))


def test_a_further_name_of_a_loaded_tensor_is_not_unexpected() -> None:
    tree = weights_of({"weight": np.ones(4, np.float32)})
    source: Any = tree.source
    source._header = source._header._replace(aliases={"tied.weight": "weight"})
    Scale().load_state_dict(tree)


def test_strict_names_everything_that_is_wrong_at_once() -> None:
    stack = Stack(2)
    message = refusal(
        stack,
        {
            "layers.0.up.weight": np.zeros(5, np.float32),
            "layers.0.down.weight": np.zeros(4, np.float64),
            "layers.1.down.weight": blocks(Q8_0, (32,)),
            "tail.weight": np.zeros(4, np.float32),
        },
    )
    for line in (
        "`head.weight` is missing: float32[4]",
        "`tail.weight` is unexpected",
        "`layers.0.up.weight` is float32[5] instead of float32[4]",
        "`layers.0.down.weight` is float64[4] instead of float32[4]",
        "`layers.1.down.weight` is Q8_0[1, 32] instead of float32[4]",
    ):
        assert line in message


def test_values_with_other_names_are_not_to_be_left_out() -> None:
    message = refusal(Block(), {f"{name}.weight": np.zeros(4, np.float32) for name in ("a", "b")})
    assert "hint: rename the values to the names of the weights of the model" in message
    assert "strict" not in message


@each("names", [["up.weight"], ["up.weight", "down.weight", "more"]])
def test_strict_refuses_missing_and_unexpected_names_alone_too(names: list[str]) -> None:
    message = refusal(Block(), {name: np.zeros(4, np.float32) for name in names})
    assert "hint: use `strict=False` to load only matching weights" in message


@each(
    "names, hint",
    [
        (
            ["model.up.weight", "model.down.weight"],
            ("the values have the prefix `model.`: remove it from their names"),
        ),
        (["weight"], "rename the values to the names of the weights of the model"),
    ],
)
def test_names_with_a_prefix_are_recognized(names: list[str], hint: str) -> None:
    assert hint in refusal(Block(), {name: np.zeros(4, np.float32) for name in names})


def test_names_that_lack_a_prefix_are_recognized() -> None:
    class Model(Module):
        def __init__(self) -> None:
            self.model = Block()

    message = refusal(Model(), random_values(Block()))
    assert (
        "the weights of the model have the prefix `model.`: add it to the names of the values"
        in message
    )


def test_not_strict_returns_the_missing_and_unexpected_names() -> None:
    block = Block()
    value = np.ones(4, np.float32)
    found = block.load_state_dict({"up.weight": value, "other": value}, strict=False)
    assert found == (["down.weight"], ["other"])
    assert block.state_dict()["up.weight"] is value


def test_not_strict_keeps_earlier_values_of_what_is_missing() -> None:
    block = Block()
    first = random_values(block)
    block.load_state_dict(first)
    block.load_state_dict({"up.weight": np.zeros(4, np.float32)}, strict=False)
    assert block.state_dict()["down.weight"] is first["down.weight"]


@each("value", [np.zeros(5, np.float32), np.zeros(4)])
def test_not_strict_refuses_what_does_not_fit(value: Array) -> None:
    assert "`weight`" in refusal(Scale(), {"weight": value}, strict=False)


@each(
    "value, says",
    [
        ([1, 2, 3, 4], "is a list, not an array"),
        (np.array(["a"] * 4), "is an array of <U1, which no DType matches"),
        (WeightData.declared("weight", DType.float32, (4,)), "was declared without data"),
        (weights_of({"one": np.ones(4)}).two, "is not in the checkpoint: no tensor is named `two`"),
    ],
)
def test_what_is_not_a_value_is_named(value: Any, says: str) -> None:
    assert f"`weight` {says}" in refusal(Scale(), {"weight": value})


@each("shape", [(2, 64), (3, 2, 32)])
def test_a_quantized_value_fits_a_weight_of_its_encoding_and_logical_shape(
    shape: tuple[int, ...],
) -> None:
    value = blocks(Q8_0, shape)
    value = WeightData.of(value.info._replace(shape=shape), value.data)
    module = Single(shape, Q8_0)
    module.load_state_dict({"weight": value})
    assert module.state_dict()["weight"] is value


@each(
    "own, value, says",
    [
        (Q4_0, blocks(Q8_0), "`weight` is Q8_0[2, 64] instead of Q4_0[2, 64]"),
        (Q8_0, np.zeros((2, 64), np.float32), "`weight` is float32[2, 64] instead of Q8_0[2, 64]"),
    ],
)
def test_another_encoding_is_refused_unless_it_may_override(
    own: QuantizationEncoding | None, value: Any, says: str
) -> None:
    module = Single(encoding=own)
    message = refusal(module, {"weight": value})
    assert says in message
    assert "`override_quantization_encoding=True`" in message
    module.load_state_dict({"weight": value}, override_quantization_encoding=True)
    encoding = getattr(value, "quantization_encoding", None)
    assert module.weight.quantization_encoding is encoding
    assert module.weight.original_dtype_and_shape == (DType.float32, Shape((2, 64)))


def test_an_override_keeps_the_dtype_that_the_weight_is_used_in() -> None:
    module = Single(dtype=DType.bfloat16)
    module.load_state_dict({"weight": blocks(Q8_0)}, override_quantization_encoding=True)
    assert module.weight.dtype is DType.uint8
    assert module.weight.original_dtype_and_shape == (DType.bfloat16, Shape((2, 64)))


@each(
    "module, value",
    [
        (Single(), np.zeros((2, 64), np.float64)),
        (Single(dtype=DType.int32), blocks(Q8_0)),
        (Single(encoding=Q8_0), np.zeros((2, 64), np.int32)),
        (Single(), blocks(Q8_0, (2, 32))),
    ],
    ids=["dtype", "integers", "integers for blocks", "shape"],
)
def test_an_override_changes_only_encodings_of_fractions(module: Module, value: Any) -> None:
    message = refusal(module, {"weight": value}, override_quantization_encoding=True)
    assert "`weight` is" in message
    assert "override" not in message


def test_an_encoding_that_is_neither_numbers_nor_blocks_fits_no_weight() -> None:
    tree = weights_of({"weight": np.zeros((2, 64), np.float32)})
    source: Any = tree.source
    info = tree.weight.info._replace(encoding=ENCODINGS["F6_E2M3"])
    source._header = source._header._replace(tensors={"weight": info})
    for module in (Single(), Single(encoding=Q8_0)):
        message = refusal(module, tree, override_quantization_encoding=True)
        assert "`weight` is F6_E2M3[2, 64]" in message


def test_blocks_as_bare_bytes_fit_a_quantized_weight() -> None:
    module = Single(encoding=Q8_0)
    module.load_state_dict({"weight": np.zeros((2, 68), np.uint8)})
    assert "`weight` is uint8[2, 66] instead of Q8_0[2, 64]" in refusal(
        module, {"weight": np.zeros((2, 66), np.uint8)}
    )


@each(
    "state, says",
    [
        (None, "a state must be a mapping from names to values, not NoneType"),
        ([1, 2], "not list"),
        ("weight", "not str"),
        ({0: np.zeros(4, np.float32)}, "a weight name must be a string, not 0"),
        (
            {"weight": torch.empty(4, device="meta")},
            "`weight` is on the meta device and has no data",
        ),
        ({"weight": np.ma.masked_array(np.zeros(4, np.float32), True)}, "is a masked array"),
    ],
    ids=["none", "list", "text", "number", "meta", "masked"],
)
def test_what_is_no_state_is_refused(state: Any, says: str) -> None:
    with pytest.raises(StateDictError, match=says):
        Scale().load_state_dict(state)


def test_an_error_changes_no_weight_that_fits() -> None:
    block = Block()
    first = random_values(block)
    block.load_state_dict(first)
    refusal(
        block,
        {"up.weight": np.ones(4, np.float32), "down.weight": np.zeros(3, np.float32)},
        weight_alignment=1,
        override_quantization_encoding=True,
    )
    assert block.state_dict()["up.weight"] is first["up.weight"]


@each("dtype", [np.float16, ml_dtypes.bfloat16, np.int16, np.bool_])
def test_values_that_lose_nothing_are_taken_in_their_own_dtype(dtype: type) -> None:
    module = Scale()
    values = np.array([1, 0, 1, 1]).astype(dtype)
    module.load_state_dict({"weight": values})
    assert module.state_dict()["weight"] is values


@each("dtype", [np.float64, np.int32, np.complex64])
def test_values_that_would_lose_something_are_refused_with_what_converts_them(dtype: type) -> None:
    assert "`WeightData.astype`" in refusal(Scale(), {"weight": np.zeros(4, dtype)})


def test_a_tensor_that_requires_a_gradient_is_taken() -> None:
    module = Scale()
    module.load_state_dict({"weight": torch.arange(4.0, requires_grad=True)})
    held = module.state_dict()["weight"]
    assert WeightData.from_dlpack(held, "w").to_numpy().tolist() == [0, 1, 2, 3]


# `load_state_dict` and `InferenceSession.load` take the same values.


E = np.arange(40, dtype=np.float32).reshape(10, 4)
X = TensorType(DType.float32, ("batch", 4))
ONES = np.ones((1, 4), np.float32)
SUMS = [E.sum(axis=1).tolist()]


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


# Where values begin that `load_state_dict` is given.


Array = np.ndarray[Any, Any]


class Empty(Module):
    """One weight without elements."""

    def __init__(self) -> None:
        self.weight = Weight("weight", DType.float32, (0, 4))


def off_by_one(count: int, dtype: type = np.float32) -> Array:
    """Zeros that start one byte behind a multiple of 64."""
    memory = np.zeros(count * np.dtype(dtype).itemsize + 128, np.uint8)
    start = -memory.ctypes.data % 64 + 1
    return memory[start : start + count * np.dtype(dtype).itemsize].view(dtype)


def test_an_unaligned_array_is_copied_when_a_graph_runs() -> None:
    value = off_by_one(4)
    value[:] = (1, 2, 3, 4)
    scale = Scale()
    scale.load_state_dict({"weight": value})
    assert run(scale, np.ones((1, 4), np.float32)).tolist() == [[1, 2, 3, 4]]


def test_an_unaligned_array_is_an_error_where_an_alignment_is_asked_for() -> None:
    said = refusal(Scale(), {"weight": off_by_one(4)}, weight_alignment=4)
    assert "`weight` is not aligned: its memory address is not a multiple of 4 bytes" in said
    assert "leave `weight_alignment` out" in said


def test_weight_alignment_overrides_that_of_dtypes_and_is_set_on_all_weights() -> None:
    stack = Stack(1)
    given = random_values(stack)
    given["head.weight"] = off_by_one(4)
    stack.load_state_dict(given, weight_alignment=1)
    assert {weight.align for weight in stack.raw_state_dict().values()} == {1}


def test_weight_alignment_may_be_stricter_than_dtypes() -> None:
    value = off_by_one(8)[3:]
    said = refusal(Scale(5), {"weight": value}, weight_alignment=64)
    assert "is not aligned: its memory address is not a multiple of 64 bytes" in said


def test_a_weight_has_an_alignment_of_its_own() -> None:
    scale = Scale(8)
    scale.weight.align = 64
    aligned = scale.state_dict()["weight"]
    scale.load_state_dict({"weight": aligned})
    half = Scale(4)
    half.weight.align = 64
    half.load_state_dict({"weight": np.asarray(aligned)[4:]})
    assert half.weight.align == 64


@each("alignment", [0, -4, 3])
def test_an_alignment_is_a_power_of_two(alignment: int) -> None:
    said = refusal(Scale(), random_values(Scale()), weight_alignment=alignment)
    assert f"weight_alignment {alignment} is not a power of two up to" in said


def test_an_empty_value_starts_anywhere() -> None:
    module = Empty()
    module.load_state_dict({"weight": np.zeros((0, 4), np.float32)})
    module.load_state_dict({"weight": Buffer.from_numpy(np.zeros((0, 4), np.float32))})


@each("alignment", ["4", 4.0, True])
def test_an_alignment_is_a_whole_number(alignment: Any) -> None:
    with pytest.raises(
        StateDictError, match=f"weight_alignment {alignment!r} is not a power of two up to"
    ):
        Scale().load_state_dict({}, weight_alignment=alignment, strict=False)
