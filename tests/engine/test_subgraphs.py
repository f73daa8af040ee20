"""Subgraphs give what their operations would give in the place of the call."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pytest

from arrays import stored
from engine_graphs import F32, counted, loaded, numbers, ran, stack, stack_in_numpy, stack_weights
from weightctl import DType, open_weights
from weightctl.errors import EngineError
from weightctl.graph import Dim, Graph, TensorType, Weight, ops

if TYPE_CHECKING:
    from pathlib import Path

    from weightctl.graph import Value


def layered(layers: int = 3, width: int = 8) -> Graph:
    """Return the graph of `stack` with the layer in it once."""
    with Graph("layered", [TensorType(F32, ("batch", width))]) as graph:
        kind = TensorType(F32, ("rows", width))
        with graph.add_subgraph("layer", [kind], "layers.0.") as layer:
            weight = Weight("layers.0.w", F32, (width, width))
            bias = Weight("layers.0.b", F32, (width,))
            layer.output(ops.silu(layer.inputs[0] @ weight.T + bias))
        x: Value = graph.inputs[0]
        for number in range(layers):
            (x,) = ops.call(layer, x, prefix=f"layers.{number}.")
        graph.output(x)
    return graph


def test_calls_give_the_bits_of_layers_in_a_row() -> None:
    x, weights = numbers(5, 8), stack_weights()
    for resident in (False, True):
        inlined = ran(stack(), x, registry=weights, resident=resident)
        called = ran(layered(), x, registry=weights, resident=resident)
        np.testing.assert_array_equal(called, inlined)


def test_each_call_has_the_weights_of_its_prefix(tmp_path: Path) -> None:
    tree, reads = counted(open_weights(stored(tmp_path / "a.safetensors", **stack_weights())))
    x = numbers(5, 8)
    np.testing.assert_allclose(
        ran(layered(), x, registry=tree), stack_in_numpy(x, stack_weights()), rtol=1e-5, atol=1e-6
    )
    assert reads == dict.fromkeys(stack_weights(), 1)


def test_a_missing_weight_of_a_call_is_named_whole() -> None:
    weights = stack_weights()
    del weights["layers.2.b"]
    with pytest.raises(EngineError, match=re.escape("`layers.2.b`: missing")):
        loaded(layered(), weights)


def test_prefixes_of_nested_calls_are_put_together() -> None:
    kind = TensorType(F32, (2,))
    with Graph("outer", [kind]) as graph:
        with graph.add_subgraph("block", [kind], "blocks.0.") as block:
            with block.add_subgraph("part", [kind], "blocks.0.parts.0.") as part:
                part.output(part.inputs[0] + Weight("blocks.0.parts.0.w", F32, (2,)))
            (x,) = ops.call(part, block.inputs[0], prefix="blocks.0.parts.0.")
            (x,) = ops.call(part, x, prefix="blocks.0.parts.1.")
            (x,) = ops.call(part, x, prefix="shared.")
            block.output(x + Weight("fixed", F32, (2,)))
        (x,) = ops.call(block, graph.inputs[0], prefix="blocks.0.")
        (x,) = ops.call(block, x, prefix="blocks.7.")
        graph.output(x)
    names = {
        "blocks.0.parts.0.w": 1, "blocks.0.parts.1.w": 2, "blocks.7.parts.0.w": 4,
        "blocks.7.parts.1.w": 8, "shared.w": 16, "fixed": 32,
    }  # fmt: skip
    weights = {name: np.full(2, value, np.float32) for name, value in names.items()}
    found = ran(graph, np.zeros(2, np.float32), registry=weights)
    assert found.tolist() == [15 + 2 * 48] * 2


def test_names_of_dimensions_are_those_of_each_call() -> None:
    with Graph("outer", [TensorType(F32, ("a", "b"))]) as graph:
        with graph.add_subgraph("flat", [TensorType(F32, ("rows", "columns"))]) as flat:
            (x,) = flat.inputs
            flat.output(x.reshape((Dim("rows") * "columns",)), ops.range(Dim("rows") + 1))
        (x,) = graph.inputs
        one, first = ops.call(flat, x)
        other, second = ops.call(flat, ops.concat([x.T, x.T]))
        graph.output(one, other, first, second)
    found = loaded(graph).execute(numbers(2, 3))
    assert [buffer.shape for buffer in found] == [(6,), (12,), (3,), (7,)]


def test_what_a_call_gives_to_nobody_is_not_run(tmp_path: Path) -> None:
    tree, reads = counted(
        open_weights(stored(tmp_path / "a.safetensors", a=numbers(2), b=numbers(2)))
    )
    kind = TensorType(F32, (2,))
    with Graph("outer", [kind]) as graph:
        with graph.add_subgraph("pair", [kind]) as pair:
            x = pair.inputs[0]
            pair.output(x + Weight("a", F32, (2,)), x + Weight("b", F32, (2,)))
        graph.output(ops.call(pair, graph.inputs[0])[0])
    loaded(graph, tree).execute(np.zeros(2, np.float32))
    assert reads == {"a": 1}


def test_a_failure_in_a_call_says_which_call_it_was() -> None:
    kind = TensorType(F32, (3, 2))
    with Graph("outer", [kind]) as graph:
        with graph.add_subgraph("rows", [kind], "layers.0.") as rows:
            table = Weight("layers.0.w", F32, (3, 2))
            rows.output(ops.embedding(table, rows.inputs[0].cast(DType.int64)))
        graph.output(*ops.call(rows, graph.inputs[0], prefix="layers.4."))
    model = loaded(graph, {"layers.4.w": numbers(3, 2)})
    with pytest.raises(EngineError, match=r"embedding of .*called as rows for `layers\.4\.`"):
        model.execute(np.full((3, 2), 99, np.float32))
