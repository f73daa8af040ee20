"""What is refused when a graph is built, before types are looked at, and what when it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from each import each
from runs import run
from weightctl.dtype import DType
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
