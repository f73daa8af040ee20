"""Data that is a mapping of its file is read from the file until somebody else has its memory."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING

import numpy as np
import pytest

from arrays import stored
from each import each
from engine_graphs import F32, loaded, numbers, ran
from runs import graph_of
from weightctl import WeightData, Weights, open_weights
from weightctl.errors import FormatError
from weightctl.graph import Graph, TensorType, Weight
from weightctl.nn import Linear
from weightctl.weights.file_buffer import FileBuffer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from weightctl import Buffer


@pytest.fixture
def tree(tmp_path: Path) -> Weights:
    return open_weights(stored(tmp_path / "a.safetensors", weight=numbers(4, 4)))


def doubled() -> Graph:
    with Graph("doubled") as graph:
        graph.output(Weight("weight", F32, (4, 4)) * 2.0)
    return graph


def is_shared(data: WeightData) -> bool:
    buffer = data.to_buffer()
    assert isinstance(buffer, FileBuffer)
    return buffer.is_shared


@each("resident", [False, True])
def test_the_mapping_is_not_touched(tree: Weights, resident: bool) -> None:
    data = tree.weight.data()
    found = ran(doubled(), registry={"weight": data}, resident=resident)
    np.testing.assert_array_equal(found, numbers(4, 4) * 2)
    assert not is_shared(data)


def test_the_state_of_a_module_is_not_touched(tree: Weights) -> None:
    layer = Linear(4, 4)
    layer.load_state_dict(tree)
    data = layer.state_dict()["weight"]
    graph = graph_of(layer, [TensorType(F32, ("n", 4))])
    x = numbers(2, 4, seed=1)
    found = ran(graph, x, registry=layer.state_dict())
    np.testing.assert_allclose(found, x @ numbers(4, 4).T, rtol=1e-5, atol=1e-6)
    assert isinstance(data, WeightData)
    assert not is_shared(data)


def test_what_was_allocated_as_it_is_stored_is_not_touched(tree: Weights) -> None:
    with Graph("doubled") as graph:
        graph.output(tree.weight.allocate() * 2.0)
    (data,) = tree.allocated_weights.values()
    found = ran(graph, registry={"weight": data})
    np.testing.assert_array_equal(found, numbers(4, 4) * 2)
    assert isinstance(data, WeightData)
    assert not is_shared(data)


@each("resident", [False, True])
def test_numbers_that_were_written_are_used(tree: Weights, resident: bool) -> None:
    data = tree.weight.data()
    data.to_numpy()[0] = 7
    model = loaded(doubled(), {"weight": data}, resident=resident)
    assert model.execute()[0].to_numpy()[0].tolist() == [14] * 4


def test_numbers_that_are_written_between_runs_are_used(tree: Weights) -> None:
    data = tree.weight.data()
    model = loaded(doubled(), {"weight": data})
    model.execute()
    np.from_dlpack(data)[0] = 7
    assert model.execute()[0].to_numpy()[0].tolist() == [14] * 4


@each(
    "copied", [copy.copy, copy.deepcopy, lambda buffer: pickle.loads(pickle.dumps(buffer))],
    ids=["copy", "deepcopy", "pickle"],
)  # fmt: skip
def test_a_copy_has_memory_of_its_own(tree: Weights, copied: Callable[[Buffer], Buffer]) -> None:
    data = tree.weight.data()
    copied(data.to_buffer()).to_numpy()[:] = 7
    assert not is_shared(data)
    np.testing.assert_array_equal(data.to_numpy(), numbers(4, 4))


def test_two_names_of_one_mapping_both_see_what_is_written(tree: Weights) -> None:
    data = tree.weight.data()
    data.to_buffer()
    other = data.with_name("other")
    with Graph("two") as graph:
        graph.output(Weight("weight", F32, (4, 4)), Weight("other", F32, (4, 4)))
    model = loaded(graph, {"weight": data, "other": other})
    other.to_numpy()[:] = 7
    for found in model.execute():
        assert np.unique(found.to_numpy()).tolist() == [7]


def test_an_output_is_not_a_view_of_the_mapping(tree: Weights) -> None:
    data = tree.weight.data()
    with Graph("same") as graph:
        graph.output(Weight("weight", F32, (4, 4)))
    for memory in (None, data.to_numpy()):
        (found,) = loaded(graph, {"weight": data}).execute()
        assert memory is None or not np.shares_memory(found.to_numpy(), memory)
        found.to_numpy()[:] = 0
        np.testing.assert_array_equal(data.to_numpy(), numbers(4, 4))


def test_a_written_copy_of_a_tensor_is_not_taken_for_another(tree: Weights) -> None:
    written, plain = tree.weight.data(), tree.weight.data()
    written.to_numpy()[:] = 7
    with Graph("sum") as graph:
        graph.output(Weight("a", F32, (4, 4)), Weight("b", F32, (4, 4)))
    model = loaded(graph, {"a": written, "b": plain}, resident=True)
    one, other = model.execute()
    assert np.unique(one.to_numpy()).tolist() == [7]
    np.testing.assert_array_equal(other.to_numpy(), numbers(4, 4))


def test_a_file_that_changed_meanwhile_gives_no_answer(tree: Weights) -> None:
    model = loaded(doubled(), {"weight": tree.weight.data()})
    with open(tree.header.files[0], "ab") as file:
        file.write(b"more")
    with pytest.raises(FormatError, match="changed while it was read"):
        model.execute()
