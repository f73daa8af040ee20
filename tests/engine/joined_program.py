"""What two processes compute together, and what each of them says of what does not fit.

torchrun runs it, with a folder and the names of what is to be done, of those in `GROUPS`. Each
process writes into the folder what it has found by the names of the functions here.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import warnings
from contextvars import Context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from weightctl import DType
from weightctl.engine import InferenceSession, processes
from weightctl.errors import EngineError
from weightctl.graph import Graph, TensorType, ops

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from weightctl.engine import Process
    from weightctl.graph import Value

    Array = np.ndarray[Any, Any]

F32 = DType.float32
# Seconds; even where much else runs, what takes no time takes less.
WAIT = 4.0


def ran(
    make: Callable[..., Sequence[Value]], *arrays: Array, shapes: Sequence[Any] | None = None
) -> list[Any]:
    """Return what the graph of a function gives for arrays, as lists of numbers."""
    known = [array.shape for array in arrays] if shapes is None else shapes
    types = [TensorType(DType(array.dtype.name), shape)
             for array, shape in zip(arrays, known, strict=True)]  # fmt: skip
    with Graph("joined", types) as graph:
        graph.output(*make(graph.inputs))
    found = InferenceSession().load(graph).execute(*arrays)
    return [output.to_numpy().astype(np.float64).tolist() for output in found]


def numbers(*shape: int, rank: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(rank).standard_normal(shape, np.float32).astype(dtype)


# What fits


def place(here: Process) -> Any:
    return [here.rank, here.count, str(here.device)]


def allreduce(here: Process) -> Any:
    return ran(lambda x: ops.allreduce(x, ranks=2), numbers(2, 3, rank=here.rank))


def allreduce_beside(here: Process) -> Any:
    """Return the sum of a process and of one that runs what a new thread would run."""
    return Context().run(allreduce, here) if here.rank else allreduce(here)


def allreduce_bfloat16(here: Process) -> Any:
    x = numbers(7, rank=here.rank, dtype=ml_dtypes.bfloat16)
    return ran(lambda x: ops.allreduce(x, ranks=2), x)


def allreduce_many(here: Process) -> Any:
    """Return sums of four numbers, two of them in each process, whose sizes differ."""
    x = [numbers(5, rank=here.rank) * np.float32(scale) for scale in (1, 1e4)]
    return ran(lambda values: ops.allreduce(values, ranks=4), *x)


def allreduce_int16(here: Process) -> Any:
    x = np.arange(3, dtype=np.int16) + np.int16(here.rank)
    return ran(lambda x: ops.allreduce(x, ranks=2), x)


def allreduce_unknown_sizes(here: Process) -> Any:
    x = numbers(3, 2, rank=here.rank)
    return ran(lambda x: ops.allreduce(x, ranks=2), x, shapes=[("n", 2)])


def allreduce_nothing(here: Process) -> Any:
    return ran(lambda x: ops.allreduce(x, ranks=2), numbers(0, 2, rank=here.rank))


def allgather_uneven(here: Process) -> Any:
    x = numbers(2, 3 - here.rank, rank=here.rank)
    return ran(lambda x: ops.allgather(x, sizes=[3, 2], ranks=2), x)


def allgather_first_axis(here: Process) -> Any:
    x = np.arange(here.rank, 3 + here.rank)[:, None]
    return ran(lambda x: ops.allgather(x, axis=0, sizes=[3, 3], ranks=2), x)


def reduce_scatter_uneven(here: Process) -> Any:
    x = numbers(2, 5, rank=here.rank)
    return ran(lambda x: ops.reduce_scatter(x, ranks=2, first=here.rank), x)


def two_ranks_each(here: Process) -> Any:
    x, y = (numbers(2, 6, rank=2 * here.rank + number) for number in range(2))

    def made(values: list[Value]) -> list[Value]:
        return [
            *ops.allreduce(values, ranks=4),
            *ops.allgather(values, axis=0, sizes=[2, 2, 2, 2], ranks=4),
            *ops.reduce_scatter(values, sizes=[3, 1, 1, 1], ranks=4, first=2 * here.rank),
        ]

    return ran(made, x, y)


def what_one_process_alone_needs(here: Process) -> Any:
    """Have only one process use the sum, which both must compute all the same."""

    def made(values: list[Value]) -> list[Value]:
        total = ops.allreduce(values, ranks=2)
        return total if here.rank else values

    return ran(made, numbers(2, rank=here.rank))


# What does not: all processes say so, and go on together


def other_sizes(here: Process) -> Any:
    x = numbers(3 + here.rank, rank=here.rank)
    return ran(lambda x: ops.allreduce(x, ranks=2), x, shapes=[("n",)])


def other_dtypes(here: Process) -> Any:
    x = numbers(4, rank=here.rank, dtype=np.int32 if here.rank else np.float32)
    return ran(lambda x: ops.allreduce(x, ranks=2), x)


def other_steps(here: Process) -> Any:
    x = numbers(4, rank=here.rank)
    if here.rank:
        return ran(lambda x: ops.allgather(x, sizes=[4, 4], ranks=2), x)
    return ran(lambda x: ops.allreduce(x, ranks=2), x)


def the_graph_of_another_rank(here: Process) -> Any:
    x = numbers(2, 3, rank=here.rank)
    return ran(lambda x: ops.allgather(x, sizes=[3, 2], ranks=2), x)


def the_part_of_another_rank(here: Process) -> Any:
    x = numbers(4, rank=here.rank)
    return ran(lambda x: ops.reduce_scatter(x, ranks=2, first=0), x)


def the_sum_of_another_rank(here: Process) -> Any:
    return ran(lambda x: ops.allreduce(x, ranks=2, first=0), numbers(4, rank=here.rank))


def the_whole_of_another_rank(here: Process) -> Any:
    x = numbers(4, rank=here.rank)
    return ran(lambda x: ops.allgather(x, sizes=[4, 4], ranks=2, first=0), x)


def more_ranks_than_processes(here: Process) -> Any:
    return ran(lambda x: ops.allreduce(x, ranks=3), numbers(4, rank=here.rank))


def joining_twice(_: Process) -> Any:
    with processes():
        return "joined twice"


TOGETHER = [
    place, allreduce, allreduce_beside, allreduce_bfloat16, allreduce_many, allreduce_int16,
    allreduce_unknown_sizes, allreduce_nothing,
    allgather_uneven, allgather_first_axis, reduce_scatter_uneven, two_ranks_each,
    what_one_process_alone_needs, other_sizes, other_dtypes, other_steps, the_graph_of_another_rank,
    the_part_of_another_rank, the_sum_of_another_rank, the_whole_of_another_rank,
    more_ranks_than_processes, joining_twice,
]  # fmt: skip


# What makes a group of its own


def together() -> None:
    with processes() as here:
        for function in TOGETHER:
            record(function, here)


def failing() -> Any:
    with processes() as here:
        allreduce(here)  # by then, the other process has joined
        if here.rank:
            raise ValueError("this one has failed by itself")
        return allreduce(here)


def too_late() -> Any:
    with processes(timeout=WAIT) as here:
        if here.rank:
            time.sleep(1.5 * WAIT)
        return allreduce(here)


def not_coming() -> Any:
    if os.environ["RANK"] == "1":
        time.sleep(1.5 * WAIT)
    with processes(timeout=WAIT) as here:
        return place(here)


def in_order() -> Any:
    with processes(in_order=True) as here:
        return allreduce_many(here)


def other_order() -> Any:
    rank = int(os.environ["RANK"])
    with processes(in_order=bool(rank)) as here:
        return allreduce(here)


def after_all() -> Any:
    with processes() as here:
        return allreduce(here)


def killed() -> Any:
    # torchrun ends the others when one was killed; this one has something to write.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with processes() as here:
        allreduce(here)  # by then, the other process has joined
        if here.rank:
            os.kill(os.getpid(), signal.SIGKILL)
        return allreduce(here)


GROUPS = {
    each.__name__: each
    for each in (together, in_order, other_order, failing, too_late, not_coming, after_all, killed)
}
RECORDS: dict[str, Any] = {}


def record(function: Callable[..., Any], *given: Any) -> None:
    """Keep what a function gives, or the error that it raises, and how long that took."""
    started = time.monotonic()
    try:
        found = function(*given)
    except (EngineError, ValueError) as error:
        found = {"error": str(error), "kind": type(error).__name__}
    RECORDS[function.__name__] = {"found": found, "seconds": time.monotonic() - started}


def main(folder: Path, names: Sequence[str]) -> None:
    """Do all that is named, and write what was found after each."""
    warnings.simplefilter("error")
    for name in names:
        record(GROUPS[name])
        (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(RECORDS))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
