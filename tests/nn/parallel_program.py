"""What several processes say of models that they compute together, each with some of the ranks.

torchrun runs it, with a folder and a JSON list of runs. Each process writes what it says of each
into the folder.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np

from weightctl import open_weights
from weightctl.engine import InferenceSession, processes
from weightctl.families import recognize
from weightctl.nn.across_ranks import parallel
from weightctl.nn.models import build_network
from weightctl.split import Grid


class Run(NamedTuple):
    """A model and its inputs, which `tp` x `ep` ranks compute, as many in each process."""

    name: str
    path: str
    inputs: list[list[list[int]]]
    tp: int
    ep: int = 1


def main(folder: Path, runs: list[Run]) -> None:
    """Have this process do its part of all of them."""
    warnings.simplefilter("error")
    with processes() as here:
        for run in runs:
            checkpoint = recognize(open_weights(run.path))
            grid = Grid(run.tp, run.ep)
            devices = [here.device] * (grid.ranks // here.count)
            first = here.rank * len(devices)
            graph = parallel(build_network(checkpoint), devices, grid=grid, first=first).graph()
            loaded = InferenceSession().load(graph, checkpoint.weights)
            (output,) = loaded.execute(*map(np.array, run.inputs))
            np.save(folder / f"{run.name}-{here.rank}.npy", output.to_numpy())


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Run(*each) for each in json.loads(sys.argv[2])])
