"""Graphs give what NumPy says, and give it the same way each time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from engine_graphs import (
    F32,
    counted,
    loaded,
    numbers,
    ran,
    stack,
    stack_in_numpy,
    stack_weights,
)  # fmt: skip

from arrays import stored
from each import each
from weightctl import DType, open_weights
from weightctl.graph import Dim, Graph, TensorType, Weight, ops

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_graph_gives_what_numpy_says() -> None:
    x, weights = numbers(5, 8), stack_weights()
    np.testing.assert_allclose(
        ran(stack(), x, registry=weights), stack_in_numpy(x, weights), rtol=1e-5, atol=1e-6
    )


def test_streamed_and_resident_weights_give_the_same_bits(tmp_path: Path) -> None:
    tree = open_weights(stored(tmp_path / "a.safetensors", **stack_weights()))
    x = numbers(5, 8)
    streamed = ran(stack(), x, registry=tree)
    np.testing.assert_array_equal(streamed, ran(stack(), x, registry=tree, resident=True))
    np.testing.assert_array_equal(streamed, ran(stack(), x, registry=stack_weights()))


def test_a_run_gives_the_same_bits_each_time() -> None:
    x, graph = numbers(64, 256), stack(width=256)
    model = loaded(graph, stack_weights(width=256))
    first = model.execute(x)[0].to_numpy()
    for _ in range(3):
        np.testing.assert_array_equal(first, model.execute(x)[0].to_numpy())


def test_a_run_changes_no_state_of_torch() -> None:
    before = (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_num_threads(),
              torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled(),
              torch.random.get_rng_state().tolist())  # fmt: skip
    ran(stack(), numbers(5, 8), registry=stack_weights())
    after = (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_num_threads(),
             torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled(),
             torch.random.get_rng_state().tolist())  # fmt: skip
    assert before == after


def test_a_single_list_is_the_list_of_inputs() -> None:
    kind = TensorType(F32, (2,))
    with Graph("sum", [kind, kind]) as graph:
        graph.output(graph.inputs[0] + graph.inputs[1])
    one, other = np.ones(2, np.float32), np.full(2, 2, np.float32)
    for given in ((one, other), ([one, other],), ((one, other),)):
        assert loaded(graph).execute(*given)[0].to_numpy().tolist() == [3, 3]


def test_a_size_that_a_name_stands_for_is_known_to_operations() -> None:
    with Graph("sizes", [TensorType(F32, ("rows", "columns"))]) as graph:
        (x,) = graph.inputs
        graph.output(
            ops.range(Dim("rows") * 2),
            x.reshape((Dim("rows") * "columns",)),
            ops.dims(Dim("columns") + 1),
            x[: Dim("rows") - 1],
            x.broadcast_to((3, "rows", "columns")),
        )
    found = loaded(graph).execute(numbers(4, 5))
    assert [buffer.shape for buffer in found] == [(8,), (20,), (), (3, 5), (3, 4, 5)]
    assert int(found[2].to_numpy()) == 6


def test_what_nobody_needs_is_not_run_and_its_weights_are_not_read(tmp_path: Path) -> None:
    tree = open_weights(stored(tmp_path / "a.safetensors", used=numbers(2), unused=numbers(2)))
    tree, reads = counted(tree)
    with Graph("part") as graph:
        _ = Weight("unused", F32, (2,)) * 2.0
        graph.output(Weight("used", F32, (2,)) * 2.0)
    loaded(graph, tree).execute()
    assert reads == {"used": 1}


def test_what_is_printed_is_run_though_nobody_needs_it(capsys: pytest.CaptureFixture[str]) -> None:
    with Graph("seen", [TensorType(F32, (2,))]) as graph:
        (graph.inputs[0] * 2.0).print("twice")
        graph.output(graph.inputs[0])
    loaded(graph).execute(np.ones(2, np.float32))
    assert "twice" in capsys.readouterr().out


def test_an_output_is_not_a_view_of_an_input_a_weight_or_a_constant() -> None:
    weight, given = np.ones(3, np.float32), np.ones(3, np.float32)
    with Graph("same", [TensorType(F32, (3,))]) as graph:
        graph.output(graph.inputs[0], Weight("w", F32, (3,)), ops.constant([1.0, 1.0, 1.0]))
    for resident in (False, True):
        model = loaded(graph, {"w": weight}, resident=resident)
        for buffer in model.execute(given):
            buffer.to_numpy()[:] = 7
        assert [buffer.to_numpy().tolist() for buffer in model.execute(given)] == [[1, 1, 1]] * 3


def test_outputs_of_the_same_numbers_have_memory_of_their_own() -> None:
    with Graph("twice", [TensorType(F32, (2, 2))]) as graph:
        y = graph.inputs[0] * 2.0
        graph.output(y, y, y.reshape((4,)), y[:1])
    first, *others = loaded(graph).execute(np.ones((2, 2), np.float32))
    first.to_numpy()[:] = 7
    assert {number for other in others for number in other.to_numpy().ravel()} == {2.0}


def test_an_output_that_is_computed_is_handed_out_without_a_copy_and_can_be_written() -> None:
    with Graph("twice", [TensorType(DType.bfloat16, (2,))]) as graph:
        graph.output(graph.inputs[0] * 2.0)
    (buffer,) = loaded(graph).execute(torch.ones(2, dtype=torch.bfloat16))
    shared = torch.from_dlpack(buffer)
    shared += 1
    assert torch.from_dlpack(buffer).tolist() == [3, 3]
    assert buffer.device.kind == "cpu"


def test_numbers_of_less_than_32_bits_are_added_up_in_float32() -> None:
    ones = torch.ones(1, 4096, dtype=torch.bfloat16)
    with Graph("dot", [TensorType(DType.bfloat16, (1, 4096))]) as graph:
        (x,) = graph.inputs
        graph.output(x @ x.T)
    assert torch.from_dlpack(loaded(graph).execute(ones)[0]).item() == 4096


@each("name", ["float8_e4m3fn", "bfloat16", "float16", "int8", "bool"])
def test_a_value_of_every_size_goes_in_and_comes_out(name: str) -> None:
    given = torch.tensor([0, 1, 0, 1]).to(getattr(torch, name))
    with Graph("through", [TensorType(DType(name), (4,))]) as graph:
        graph.output(graph.inputs[0].reshape((2, 2)))
    (buffer,) = loaded(graph).execute(given)
    assert buffer.dtype is DType(name)
    assert torch.from_dlpack(buffer).float().tolist() == [[0, 1], [0, 1]]
