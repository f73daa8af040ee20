"""What is refused when a graph is built, before types are looked at, and what when it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from each import each
from runs import run
from weightctl.dtype import DType, QuantizationEncoding
from weightctl.errors import EngineError, GraphError
from weightctl.graph import Dim, Graph, TensorType, Value, Weight, ops
from weightctl.graph.scope import module_path

if TYPE_CHECKING:
    from collections.abc import Callable


REFUSED: list[tuple[Callable[[Value, Value], Any], str]] = [
    (lambda _, n: n + 1.5, r"float 1\.5 cannot be combined with int64\[2\], which stores only"),
    (
        lambda x, _: x + "b!",
        r"add of float32\[3, 4\] \(in layers\.3\.mlp\): 'b!' is not a valid dimension name",
    ),
    (lambda x, _: x * None, r"^mul of float32\[3, 4\] .*NoneType"),
    (lambda x, _: ops.sub(x, [[1.0], [2.0, 3.0]]), r"^sub of float32\[3, 4\] "),
    (lambda _, n: n + 2**70, r"^add of int64\[2\] .*(too large|more than 64 bits)"),
    (lambda x, _: x.reshape((-2, 3)), r"reshape of float32\[3, 4\] \(in layers\.3\.mlp\)"),
    (lambda x, _: x.reshape("text"), r"^reshape of float32\[3, 4\] "),
    (lambda x, _: x.reshape((1.5, 8)), r"^reshape of float32\[3, 4\] .*float"),  # type: ignore[arg-type]
    (
        lambda x, _: x.broadcast_to((-1, 4)),
        r"broadcast_to of float32\[3, 4\] \(in layers\.3\.mlp\)",
    ),
    (lambda x, _: ops.top_k(x, -1), r"top_k of float32\[3, 4\] \(in layers\.3\.mlp\)"),
    (lambda x, _: ops.split(x, [-1, 4]), r"split of float32\[3, 4\] \(in layers\.3\.mlp\)"),
    (lambda *_: ops.range("a b"), "'a b' is not a valid dimension name"),
    (lambda *_: ops.dims("a b"), "'a b' is not a valid dimension name"),
    (lambda *_: ops.constant(1.5, DType.int64), "^constant .*may have a fraction"),
    (lambda x, n: ops.where(x > 0, n, 1.5), r"^where of bool\[3, 4\] and int64\[2\] .*integers"),
    (lambda x, _: (x > 0) == 1, r"1 cannot be combined with bool\[3, 4\]"),
    (
        lambda x, _: (x > 0) & Dim("batch"),
        r"the size batch is an integer, and cannot be combined with bool\[3, 4\]",
    ),
    (lambda x, _: (x > 0) + 0.5, r"0\.5 cannot be combined with bool\[3, 4\]"),
    (lambda *_: ops.dequantize(Value(1)), r"^dequantize of int64\[\] .*not a quantized weight"),
]


@each("use, says", REFUSED, ids=[says for _, says in REFUSED])
def test_an_error_says_the_operation_what_it_was_given_the_layer_and_what_to_do(
    use: Callable[[Value, Value], Any], says: str
) -> None:
    types = [TensorType(DType.float32, (3, 4)), TensorType(DType.int64, (2,))]
    with Graph("refusing", types) as graph:
        token = module_path.set(lambda: "layers.3.mlp")
        try:
            with pytest.raises(GraphError, match=says) as caught:
                use(*graph.inputs)
        finally:
            module_path.reset(token)
    assert caught.value.message.count("(in layers.3.mlp)") == 1
    assert caught.value.hint
    assert type(caught.value) is GraphError


def test_a_number_beside_a_weight_of_truth_values_is_refused() -> None:
    with Graph("truth"):
        seen = Weight("seen", DType.bool, (2,))
        assert (seen & True).type == TensorType(DType.bool, [2])
        with pytest.raises(GraphError, match="cannot be combined with bool"):
            _ = seen | 1


def test_a_range_that_its_dtype_does_not_hold_is_refused_when_its_length_is_known() -> None:
    x = np.zeros(300, np.float32)
    with pytest.raises(EngineError, match="int8 cannot hold 299"):
        run(lambda x: ops.range(x.shape[0], dtype=DType.int8), x, shapes=[("n",)])
    found = run(lambda x: ops.range(x.shape[0], dtype=DType.int8), x[:128], shapes=[("n",)])
    np.testing.assert_array_equal(found, np.arange(128))


def test_a_negative_power_of_integers_is_refused() -> None:
    bases, powers = np.array([2, 3]), np.array([2, -1])
    with pytest.raises(EngineError, match="negative power"):
        run(lambda x, y: x**y, bases, powers)


# Arguments of wrong types and sizes are refused with what they were, when a graph is built.


# What callers whose types nobody checks may give.
ANY: Any = ops
NOT: dict[str, Any] = {
    "name": "float31",
    "numpy": np.str_,
    "device": "tpu",
    "none": None,
    "size": 2,
}

WRONG: list[tuple[Callable[[Value, Value], Any], str]] = [
    (lambda x, _: ops.unsqueeze(x), r"unsqueeze of float32\[3, 4\]: the axis is missing"),
    (lambda x, _: ops.softmax(x, axis=1, dim=0), r"^softmax of .*axis=1 and dim=0 are both given"),
    (lambda x, _: ANY.softmax(x, axis="a"), "an axis must be an integer, not 'a'"),
    (lambda x, _: ANY.sum(x, axis=(0, 1)), r"^sum of .*not \(0, 1\)"),
    (lambda x, _: ops.sum(x, axis=True), r"^sum of .*not True"),
    (lambda x, _: ANY.sum(x, axis=1.0), r"^sum of .*not 1\.0"),
    (lambda x, _: ANY.unsqueeze(x, 1.5), r"^unsqueeze of .*not 1\.5"),
    (lambda x, _: x.cast(NOT["name"]), "'float31' is not a dtype; use a DType"),
    (lambda x, _: x.cast(NOT["numpy"]), r"<class 'numpy\.str_'> is not a dtype; use a DType"),
    (lambda x, _: x.to(NOT["device"]), "'tpu' is not a device"),
    (lambda x, _: ANY.permute(x, "ab"), r"^permute of .*not 'a'"),
    (lambda x, _: ANY.permute(x, 5), r"^permute of .*int"),
    (lambda *_: ops.constant(1.0, NOT["name"]), "'float31' is not a dtype; use a DType"),
    (
        lambda *_: ops.constant(1.0, device=NOT["device"]),
        ("'tpu' is not a device"),
    ),
    (lambda *_: ops.range(5, dtype=NOT["name"]), "'float31' is not a dtype; use a DType"),
    (lambda x, _: ANY.split(x, 2), r"^split of .*a sequence of dimensions, not 2"),
    (lambda x, _: ANY.reshape(x, 4), r"^reshape of .*a sequence of dimensions, not 4"),
    (lambda *_: ANY.concat(5), r"^concat: .*int"),
    (lambda x, _: x + 2**70, "1180591620717411303424 needs more than 64 bits"),
    (lambda x, _: x + NOT["none"], r"^add of .*NoneType is not a number"),
    (lambda *_: ops.range(-200, 0, dtype=DType.int8), "int8 cannot hold -200"),
    (lambda *_: ops.range(70000, dtype=DType.float16), "float16 cannot hold 69999"),
    (
        lambda *_: ops.constant([1, 2]) ** -1,
        r"pow of int64\[2\]: raising integers to the power -1 would give fractions",
    ),
]


@each("use, says", WRONG, ids=[says for _, says in WRONG])
def test_a_wrong_argument_is_refused_with_the_operation_and_a_hint(
    use: Callable[[Value, Value], Any], says: str
) -> None:
    kinds = [TensorType(DType.float32, shape) for shape in ([3, 4], [2, 2, 2])]
    with Graph("wrong", kinds) as graph, pytest.raises(GraphError, match=says) as caught:
        use(*graph.inputs)
    assert caught.value.hint


def test_pythons_own_error_is_the_cause_of_the_refusal() -> None:
    with Graph("wrong", [TensorType(DType.float32, [2, 2, 2])]) as graph:
        (x,) = graph.inputs
        with pytest.raises(GraphError) as caught:
            ANY.permute(x, 5)
    assert isinstance(caught.value.__cause__, TypeError)
    assert "axes=5" in caught.value.hint


@each(
    "sizes, output, says",
    [
        ([2, 2], lambda x: x[5:], "cannot have size -3"),
        ([2, 0], lambda _: ops.range(0, Dim("n") // "m"), "divided by 0"),
    ],
    ids=["negative", "division"],
)
def test_a_call_with_sizes_that_its_outputs_cannot_have_is_refused(
    sizes: list[int], output: Callable[[Value], Value], says: str
) -> None:
    with Graph("outer", [TensorType(DType.float32, [size]) for size in sizes]) as graph:
        kinds = [TensorType(DType.float32, [name]) for name in ("n", "m")]
        with graph.add_subgraph("inner", kinds) as inner:
            inner.output(output(inner.inputs[0]))
        with pytest.raises(GraphError, match=rf"^call of .*{says}"):
            ops.call(inner, *graph.inputs)


@each("given", [TensorType(DType.float32, [1]), TensorType, [1], "ab"], ids=str)
def test_the_inputs_of_a_graph_are_a_list_of_types(given: Any) -> None:
    with pytest.raises(GraphError, match="is not a valid list of inputs for graph `g`"):
        Graph("g", given)


def test_types_and_weights_are_of_dtypes_and_devices_not_of_their_names() -> None:
    for make in (TensorType, lambda *given: Weight("w", *given)):
        with pytest.raises(GraphError, match="'float31' is not a dtype; use a DType"):
            make(NOT["name"], (2,))
        with pytest.raises(GraphError, match="'tpu' is not a device"):
            make(DType.float32, (2,), NOT["device"])
        with pytest.raises(TypeError, match="a sequence of dimensions, not 2"):
            make(DType.float32, NOT["size"])


@each("dtype", [DType.int32, DType.bool, DType.complex64])
def test_blocks_are_of_floating_point_numbers(dtype: DType) -> None:
    with pytest.raises(GraphError, match="cannot be stored as Q4_K, whose values are floats"):
        Weight("w", dtype, (4, 256), quantization_encoding=QuantizationEncoding.Q4_K)
    weight = Weight("w", dtype, (4, 256))
    with pytest.raises(GraphError, match="cannot be stored as Q4_K, whose values are floats"):
        weight.quantization_encoding = QuantizationEncoding.Q4_K


def test_an_encoding_is_not_a_number() -> None:
    given: Any = 12
    with pytest.raises(GraphError, match="12 is not a quantization encoding for `w`"):
        Weight("w", DType.float32, (4, 256), quantization_encoding=given)


def test_the_order_in_which_a_weight_becomes_bytes_does_not_matter() -> None:
    first, second = (Weight("w", DType.float32, (4, 256)) for _ in range(2))
    first.dtype = DType.uint8
    first.quantization_encoding = QuantizationEncoding.Q4_K
    second.quantization_encoding = QuantizationEncoding.Q4_K
    second.dtype = DType.uint8
    for weight in (first, second):
        assert weight.original_dtype_and_shape == (DType.float32, [4, 256])
        assert weight.type == TensorType(DType.uint8, [4, 144])
