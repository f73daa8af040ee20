"""Whole models say the same however many ranks compute them, in one process or in several."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

import parallel_program
from each import each, usual
from parallel_program import Run
from rank_processes import run_together, torchrun
from runs import executed
from weightctl import open_weights
from weightctl.device import CPU
from weightctl.errors import ShardingError
from weightctl.families import recognize
from weightctl.nn.across_ranks import parallel
from weightctl.nn.models import build_network
from weightctl.split import Grid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from families import Made
    from weightctl.families import RecognizedModel

CLOSE = 1e-4
TOKENS = [[*range(3, 23)], [*range(30, 50)]]
# "The capital of France is Paris, and that of Italy is Rome.", as SmolLM2 has it.
TEXT = [[504, 3575, 282, 4649, 314, 7042, 28, 284, 338, 282, 7158, 314, 7268, 30]]
NAMES = (
    "llama", "llama-yarn", "mistral", "mixtral", "qwen2", "qwen3", "qwen3moe", "gemma2", "gemma3",
    "phi3", "phi3-long", "gpt2", "bert",
)  # fmt: skip
# All have four heads; where these have keys and values of their own, three ranks share them out.
UNGROUPED = ("gpt2", "bert")
EXPERTS = ("mixtral", "qwen3moe")


class Model(NamedTuple):
    """A checkpoint, and what it is asked."""

    path: Path
    inputs: list[list[list[int]]]

    @property
    def checkpoint(self) -> RecognizedModel:
        return recognize(open_weights(self.path))

    def compute(self, grid: Grid | None = None) -> NDArray[np.float32]:
        """Return what the model says, computed whole, or by the ranks of a grid in this process."""
        checkpoint = self.checkpoint
        network = build_network(checkpoint)
        if grid is not None:
            network = parallel(network, [CPU] * grid.ranks, grid=grid)
        inputs = map(np.array, self.inputs)
        (output,) = executed(network.graph(), *inputs, weights=checkpoint.weights)
        return output

    def run(self, name: str, tp: int, ep: int = 1) -> Run:
        return Run(name, str(self.path), self.inputs, tp, ep)


def of_family(family: Callable[[str], Made], name: str) -> Model:
    mask = [[[1] * 20, [1] * 15 + [0] * 5]] if name == "bert" else []
    return Model(family(name).path, [TOKENS, *mask])


def distance(left: NDArray[Any], right: NDArray[Any]) -> float:
    assert left.shape == right.shape
    return float(np.abs(left - right).max())


@pytest.mark.parametrize("name", usual(["bert", "gemma3", "mixtral"], NAMES))
def test_ranks_say_together_what_a_model_of_each_family_says(
    family: Callable[[str], Made], name: str
) -> None:
    model = of_family(family, name)
    whole = model.compute()
    for ranks in (2, 3) if name in UNGROUPED else (2, 4):
        assert distance(model.compute(Grid(ranks)), whole) < CLOSE, f"{ranks} ranks"


@each("name", EXPERTS, in_turn=True)
@each("grid", [Grid(1, 2), Grid(1, 3), Grid(2, 2), Grid(2, 4)], ids=str)
def test_groups_of_ranks_with_experts_of_their_own_say_what_the_model_says(
    family: Callable[[str], Made], name: str, grid: Grid
) -> None:
    model = of_family(family, name)
    assert distance(model.compute(grid), model.compute()) < CLOSE


@each("ranks", [1, 2, 4, 8])
def test_ranks_say_together_what_tiny_llama_says(tiny_llama: Path, ranks: int) -> None:
    model = Model(tiny_llama, [TOKENS])
    assert distance(model.compute(Grid(ranks)), model.compute()) < CLOSE


def test_three_ranks_cannot_share_the_heads_of_tiny_llama(tiny_llama: Path) -> None:
    network = build_network(Model(tiny_llama, []).checkpoint)
    with pytest.raises(ShardingError) as raised:
        parallel(network, [CPU] * 3)
    assert raised.value.headline == (
        "`layers.0.attention.q.weight` of shape [256, 256] cannot be split across 3 ranks: the "
        "model has 8 query heads and 2 KV heads (head size 32)"
    )
    assert raised.value.hint == "1, 2, 4, 6 or 8 ranks work"


@pytest.mark.long
@pytest.mark.real
def test_two_and_three_ranks_say_together_what_smollm2_says(smollm2: Path) -> None:
    model = Model(smollm2, [TEXT])
    whole = model.compute()
    for ranks in (1, 2, 3):
        assert distance(model.compute(Grid(ranks)), whole) < CLOSE, f"{ranks} ranks"


@pytest.mark.real
def test_four_ranks_cannot_share_the_heads_of_smollm2(smollm2: Path) -> None:
    network = build_network(Model(smollm2, []).checkpoint)
    with pytest.raises(
        ShardingError,
        match=r"9 query heads and 3 KV heads \(head size 64\), which are split in blocks of 32",
    ):
        parallel(network, [CPU] * 4)


def written(folder: Path, processes: int, runs: Iterable[Run]) -> Path:
    """Return a folder with what so many processes of torchrun say."""
    done = torchrun(Path(parallel_program.__file__), processes, folder, json.dumps(list(runs)))
    assert done.returncode == 0, done.stderr
    return folder


def require_same(folder: Path, name: str, processes: int, model: Model) -> None:
    """Each process says the same, and what the model says."""
    first, *others = (np.load(folder / f"{name}-{rank}.npy") for rank in range(processes))
    assert distance(first, model.compute()) < CLOSE
    assert all(np.array_equal(other, first) for other in others)


def test_two_processes_say_together_what_models_say(
    family: Callable[[str], Made], tiny_llama: Path, tmp_path: Path
) -> None:
    model, gpt2 = Model(tiny_llama, [TOKENS]), of_family(family, "gpt2")
    mixtral = of_family(family, "mixtral")
    runs = [
        (model, model.run("llama", 2)),
        (model, model.run("llama-of-two-ranks-each", 4)),
        (gpt2, gpt2.run("gpt2", 2)),
        (mixtral, mixtral.run("mixtral", 1, 2)),
        (mixtral, mixtral.run("mixtral-of-two-ranks-each", 2, 2)),
    ]
    given = json.dumps([run for _, run in runs])
    assert not run_together(Path(parallel_program.__file__), 2, tmp_path, given)
    for found, run in runs:
        require_same(tmp_path, run.name, 2, found)


@pytest.mark.long
def test_three_processes_say_together_what_models_say(
    family: Callable[[str], Made], tmp_path: Path
) -> None:
    models = {name: of_family(family, name) for name in UNGROUPED}
    runs = [model.run(name, 3) for name, model in models.items()]
    folder = written(tmp_path, 3, runs)
    for name, model in models.items():
        require_same(folder, name, 3, model)


@pytest.mark.long
@pytest.mark.real
@each("processes", [2, 3])
def test_processes_say_together_what_smollm2_says(
    smollm2: Path, tmp_path: Path, processes: int
) -> None:
    model = Model(smollm2, [TEXT])
    runs = [model.run("smollm2", processes)]
    folder = written(tmp_path, processes, runs)
    require_same(folder, "smollm2", processes, model)
