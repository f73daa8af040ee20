"""Weights as graphs take them: as they are when they are first used."""

from __future__ import annotations

import numpy as np
import pytest

from weightctl.dtype import DType, QuantizationEncoding
from weightctl.engine import InferenceSession
from weightctl.errors import GraphError
from weightctl.graph import Graph, TensorType, Value, Weight


def test_a_weight_that_is_changed_after_its_use_stays_what_it_was_in_that_graph() -> None:
    weight = Weight("w", DType.float32, (2,))
    with Graph("before") as graph:
        graph.output(weight + 1.0)
        with pytest.warns(
            UserWarning, match="keep `w` with dtype DType.float32; .* use DType.float64"
        ):
            weight.dtype = DType.float64
        with pytest.warns(UserWarning, match=r"keep `w` with shape \[2\]; .* use \[3, 2\]"):
            weight.shape = (3, 2)
        assert (weight + 1.0).type == TensorType(DType.float32, [2])
    weight.name = "v"
    with Graph("after") as other:
        assert (weight + 1.0).type == TensorType(DType.float64, [3, 2])
    assert list(graph.weights_by_name) == ["w"]
    assert list(other.weights_by_name) == ["v"]
    loaded = InferenceSession().load(graph, {"w": np.array([1, 2], np.float32)})
    np.testing.assert_array_equal(loaded.execute()[0].to_numpy(), [2, 3])


def test_a_weight_that_a_graph_has_is_not_called_otherwise_there() -> None:
    weight = Weight("w", DType.float32, (2,))
    with Graph("g") as graph:
        graph.add_weight(weight)
        weight.name = "v"
        with pytest.raises(GraphError, match=r"weight `w` .*was renamed to `v`"):
            _ = weight + 1.0


def test_a_weight_is_made_a_value_like_all_else() -> None:
    weight = Weight("w", DType.float32, (2,))
    with Graph("value") as graph:
        value = Value(weight)
        assert value.graph is graph
        assert value.weight is weight
        assert Value(value) is value
    with Graph("other"), pytest.raises(GraphError, match="a value of graph `value`"):
        Value(value)


def test_what_a_weight_was_stands_in_its_node() -> None:
    weight = Weight("a.w", DType.float16, (3, 32), quantization_encoding=QuantizationEncoding.Q8_0)
    with Graph("node", weight_prefix="a.") as graph:
        node = graph.weight_node(graph.add_weight(weight))
    assert node is not None
    assert node.attributes == {
        "name": "w",
        "is_placeholder": True,
        "weight": weight,
        "original": TensorType(DType.float16, (3, 32)),
        "encoding": QuantizationEncoding.Q8_0,
        "cut_from": None,
        "align": 1,
        "second_names": (),
    }


def test_a_listing_says_what_a_weight_was_when_it_was_added() -> None:
    weight = Weight("w", DType.float32, (2, 32), quantization_encoding=QuantizationEncoding.Q8_0)
    with Graph("listing") as graph:
        graph.output(weight)
    before = graph.dump()
    weight.configure(DType.float32, (2, 256), QuantizationEncoding.Q4_K)
    assert graph.dump() == before
    assert "w, Q8_0" in before
