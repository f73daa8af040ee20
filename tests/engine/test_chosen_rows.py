"""Operations on chosen rows: those of a column that chooses none do not run, nor read weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from arrays import stored
from each import each
from engine_graphs import F32, counted, loaded, numbers, ran
from weightctl import open_weights
from weightctl.graph import Graph, TensorType, Weight, ops
from weightctl.graph.ops.chosen_rows import number_chosen
from weightctl.nn import MixtureOfExperts

if TYPE_CHECKING:
    from pathlib import Path

    from engine_graphs import Array

COLUMNS = 3


def mixing(*, keeps: bool = False) -> Graph:
    """Return a graph that multiplies the rows that a column chooses by its weight, and adds up."""
    with Graph("mixing", [TensorType(F32, ("n", 4)), TensorType(F32, ("n", COLUMNS))]) as graph:
        x, shares = graph.inputs
        chosen = ops.chosen_rows(shares)
        made = []
        for column, rows in enumerate(chosen):
            weight = Weight(f"w{column}", F32, (4, 4))
            share = ops.embedding(shares[:, column : column + 1], rows)
            made.append(ops.relu(ops.embedding(x, rows) @ weight.T) * share)
        total = ops.sum_rows(ops.concat(made), ops.concat(chosen), count=x.shape[0])
        graph.output(total, *(made if keeps else ()))
    return graph


@pytest.fixture
def weights() -> dict[str, Array]:
    return {f"w{column}": numbers(4, 4, seed=column) for column in range(COLUMNS)}


def expected(x: Array, shares: Array, weights: dict[str, Array]) -> Array:
    parts = [np.maximum(x @ weights[f"w{n}"].T, 0) * shares[:, n : n + 1] for n in range(COLUMNS)]
    return np.asarray(sum(parts))


@each("used, reads", [((0, 2), {"w0": 1, "w2": 1}), ((1,), {"w1": 1}), ((), {})])
def test_weights_of_a_column_that_chooses_no_row_are_not_read(
    used: tuple[int, ...], reads: dict[str, int], weights: dict[str, Array], tmp_path: Path
) -> None:
    tree, seen = counted(open_weights(stored(tmp_path / "w.safetensors", **weights)))
    x, shares = numbers(5, 4, seed=9), np.zeros((5, COLUMNS), np.float32)
    for row in range(5):
        for column in used[: row % len(used) + 1] if used else ():
            shares[row, column] = 0.25 + row
    found = ran(mixing(), x, shares, registry=tree)
    np.testing.assert_allclose(found, expected(x, shares, weights), rtol=1e-5, atol=1e-6)
    assert seen == reads


def test_empty_results_of_operations_that_did_not_run_can_be_outputs(
    weights: dict[str, Array],
) -> None:
    shares = np.array([[0, 1, 0]], np.float32)
    outputs = loaded(mixing(keeps=True), weights).execute(numbers(1, 4), shares)
    assert [each.shape for each in outputs] == [(1, 4), (0, 4), (1, 4), (0, 4)]


def test_every_run_chooses_its_own_rows(weights: dict[str, Array]) -> None:
    model, x = loaded(mixing(), weights), numbers(2, 4)
    for column in range(COLUMNS):
        shares = np.zeros((2, COLUMNS), np.float32)
        shares[column % 2, column] = 1
        (found,) = model.execute(x, shares)
        wanted = expected(x, shares, weights)
        np.testing.assert_allclose(found.to_numpy(), wanted, rtol=1e-5, atol=1e-6)


def test_one_expert_of_a_mixture_can_be_all() -> None:
    module = MixtureOfExperts(8, 4, "silu", count=1, used=1)
    module.name_weights()
    with Graph("one", [TensorType(F32, ("batch", "seq", 8))]) as graph:
        graph.output(module(graph.inputs[0]))
    registry = {
        name: numbers(*weight.original_dtype_and_shape[1].sizes)
        for name, weight in module.raw_state_dict().items()
    }
    x = numbers(2, 3, 8)
    gate, up, down = (registry[f"experts.0.{name}.weight"] for name in ("gate", "up", "down"))
    gated = x @ gate.T
    wanted = (gated / (1 + np.exp(-gated)) * (x @ up.T)) @ down.T
    np.testing.assert_allclose(ran(graph, x, registry=registry), wanted, rtol=1e-4, atol=1e-5)


def test_on_a_gpu_the_same_rows_are_found_without_waiting_for_it() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    for shape in ((7, 40), (3, 1), (4, 0)):
        chosen = torch.from_numpy(rng.integers(0, 2, shape) != 0)
        count = int(chosen.sum())
        found = number_chosen(chosen, count)
        assert found.tolist() == chosen.nonzero()[:, 1].tolist()
    # Elements on the device `meta` have no values that could be read.
    assert number_chosen(torch.ones(2, 3, dtype=torch.bool, device="meta"), 4).shape == (4,)
