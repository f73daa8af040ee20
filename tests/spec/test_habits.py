"""What people who know torch and NumPy type by habit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from each import each
from lazy import torch
from weightctl import DType, WeightData, nn
from weightctl.engine import InferenceSession
from weightctl.errors import GraphError
from weightctl.graph import Graph, TensorType, Value, Weight, ops

if TYPE_CHECKING:
    from collections.abc import Callable

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def run(function: Callable[[Any], Any], *inputs: Any) -> list[Any]:
    given = inputs or (X,)
    kinds = [TensorType(each.dtype, each.shape) for each in given]
    with Graph("habit", kinds) as graph:
        made = function(*graph.inputs)
        graph.output(*(made if isinstance(made, tuple | list) else [made]))
    return [each.to_numpy() for each in InferenceSession().load(graph)(*given)]


SAME: list[tuple[Callable[[Any], Any], Callable[[Any], Any]]] = [
    (lambda x: x.reshape(-1, 2), lambda x: x.reshape(-1, 2)),
    (lambda x: x.reshape((3, 2)), lambda x: x.reshape((3, 2))),
    (lambda x: x.permute(1, 0), lambda x: x.permute(1, 0)),
    (lambda x: x.permute([1, 0]), lambda x: x.permute([1, 0])),
    (lambda x: x.mean(dim=-1, keepdim=True), lambda x: x.mean(dim=-1, keepdim=True)),
    (lambda x: x.sum(axis=0, keepdims=True), lambda x: x.sum(axis=0, keepdims=True)),
    (lambda x: x.sum(), lambda x: x.sum()),
    (lambda x: x.unsqueeze(0), lambda x: x.unsqueeze(0)),
    (lambda x: x.unsqueeze(dim=1), lambda x: x.unsqueeze(dim=1)),
    (lambda x: x.pow(2), lambda x: x.pow(2)),
    (lambda x: ops.softmax(x, dim=0), lambda x: torch.softmax(x, dim=0)),
    (lambda x: ops.max(x, dim=1, keepdim=True), lambda x: x.amax(dim=1, keepdim=True)),
    (lambda x: ops.concat([x, x], dim=1), lambda x: torch.cat([x, x], dim=1)),
    (lambda x: ops.stack([x, x], dim=1), lambda x: torch.stack([x, x], dim=1)),
    (lambda x: ops.chunk(x, 2, dim=1), lambda x: torch.chunk(x, 2, dim=1)),
    (lambda x: ops.chunk(x, 5, dim=1), lambda x: torch.chunk(x, 5, dim=1)),
    (lambda x: ops.clamp(x, 1, 4), lambda x: torch.clamp(x, 1, 4)),
    (lambda x: ops.clamp(x, max=2.5), lambda x: torch.clamp(x, max=2.5)),
    (lambda x: ops.einsum("ij,kj->ik", x, x), lambda x: torch.einsum("ij,kj->ik", x, x)),
    (lambda _: ops.arange(5), lambda _: torch.arange(5)),
    (lambda _: ops.arange(1, 7, 2, dtype="float32"), lambda _: torch.arange(1, 7, 2).float()),
]


@each(("ours", "theirs"), SAME)
def test_a_habit_gives_what_it_gives_in_torch(
    ours: Callable[[Any], Any], theirs: Callable[[Any], Any]
) -> None:
    expected = theirs(torch.from_numpy(X))
    expected = list(expected) if isinstance(expected, tuple | list) else [expected]
    found = run(ours)
    assert [each.shape for each in found] == [tuple(each.shape) for each in expected]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other.numpy(), rtol=1e-6)


@pytest.mark.parametrize("spelling", ["float16", "f16", np.float16, np.dtype("f2"), torch.float16])
def test_a_dtype_is_taken_in_any_spelling(spelling: Any) -> None:
    assert TensorType(spelling, (2,)).dtype is DType.float16
    assert Weight("w", spelling, (2,)).dtype is DType.float16
    assert nn.Linear(2, 2, dtype=spelling).weight.dtype is DType.float16
    with Graph("spelled", [TensorType("float32", (2,))]) as graph:
        assert graph.inputs[0].cast(spelling).dtype is DType.float16
        assert ops.constant([1.0], spelling).dtype is DType.float16
        assert ops.arange(3, dtype=spelling).dtype is DType.float16


@pytest.mark.parametrize("spelling", [torch.bfloat16, "bf16", "bfloat16"])
def test_the_dtypes_of_torch_that_numpy_lacks_are_found(spelling: Any) -> None:
    assert DType(spelling) is DType.bfloat16


@pytest.mark.parametrize("name", ["float16", "bfloat16", "int64", "float8_e5m2"])
def test_a_dtype_is_found_by_how_torch_prints_it(name: str) -> None:
    assert DType(f"torch.{name}") is DType(name)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("float17", "did you mean float16"),
        ("Q8_0", "Q8_0 is a QuantizationEncoding"),
        ("f4", "NumPy means float32"),
        ("i8", "NumPy means int64"),
        ("u8", "NumPy means uint64"),
        ("float", "NumPy means float64"),
        (float, "NumPy means float64"),
        ([1], "`DType.float32`"),
    ],
)
def test_what_is_not_a_dtype_is_refused_with_what_it_may_mean(wrong: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        DType(wrong)
    data: Any = WeightData.from_numpy(X, "w")
    with pytest.raises(TypeError, match=says):
        data.astype(wrong)


@pytest.mark.parametrize("wrong", ["q8_0", "int", int, object(), None, 16, np.str_])
def test_what_is_not_a_dtype_is_a_value_error(wrong: Any) -> None:
    with pytest.raises(ValueError, match="DType"):
        DType(wrong)


@pytest.mark.parametrize(
    ("left", "right", "says"),
    [
        (
            DType.int64,
            DType.float32,
            (
                "dtypes are not promoted automatically: use `.cast(DType.float32)` on the int64 "
                "operand"
            ),
        ),
        (
            DType.float32,
            DType.float16,
            (
                "dtypes are not promoted automatically: use `.cast(DType.float32)` on the float16 "
                "operand"
            ),
        ),
        (
            DType.bool,
            DType.int32,
            ("dtypes are not promoted automatically: use `.cast(DType.int32)` on the bool operand"),
        ),
    ],
)
def test_operands_of_two_dtypes_are_refused_with_the_cast_that_numpy_does(
    left: DType, right: DType, says: str
) -> None:
    with Graph("mixed", [TensorType(left, (2,)), TensorType(right, (2,))]) as graph:
        for one, other in (graph.inputs, graph.inputs[::-1]):
            with pytest.raises(GraphError) as caught:
                one * other
            assert caught.value.hint.endswith(says)


def test_a_layer_takes_an_array_inside_a_graph() -> None:
    layer = nn.Linear(3, 2, bias=True)
    values = {"weight": np.ones((2, 3), np.float32), "bias": np.ones(2, np.float32)}
    layer.load_state_dict(values)
    with Graph("array") as graph:
        made = layer(X)
        assert isinstance(made, Value)
        graph.output(made)
    (found,) = InferenceSession().load(graph, layer.state_dict())()
    assert found.to_numpy().tolist() == [[4, 4], [13, 13]]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (nn.LayerNorm(8), torch.nn.LayerNorm(8)),
        (nn.LayerNorm(8, eps=1e-3), torch.nn.LayerNorm(8, eps=1e-3)),
        (nn.RMSNorm(8), torch.nn.RMSNorm(8, eps=1e-6)),
        (nn.RMSNorm(8, eps=1e-2), torch.nn.RMSNorm(8, eps=1e-2)),
    ],
)
def test_norms_have_the_defaults_and_the_words_of_torch(ours: Any, theirs: torch.nn.Module) -> None:
    ours.load_state_dict(theirs.state_dict())
    x = np.linspace(-2, 3, 16, dtype=np.float32).reshape(2, 8)
    with Graph("norm", [TensorType("float32", (2, 8))]) as graph:
        graph.output(ours(graph.inputs[0]))
    (found,) = InferenceSession().load(graph, ours.state_dict())(x)
    np.testing.assert_allclose(found, theirs(torch.from_numpy(x)).detach(), rtol=1e-5, atol=1e-6)


def test_a_list_of_layers_takes_the_documented_words() -> None:
    layers = nn.LayerList()
    layers.append(layer=nn.Linear(1, 1))
    layers.extend(layer=[nn.Linear(1, 2)])
    layers.insert(i=0, layer=nn.Linear(1, 3))
    assert [int(each.weight.shape[0]) for each in layers] == [3, 1, 2]
