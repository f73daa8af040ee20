"""Process groups: processes started by torchrun whose graphs compute together."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING, Any

from weightctl.device import CPU, DeviceRef
from weightctl.engine.devices import require_devices
from weightctl.errors import EngineError
from weightctl.graph.ops.exchange import explain, summing_in_order
from weightctl.text.wording import pluralize

if TYPE_CHECKING:
    from collections.abc import Generator

_BY_TORCHRUN = (
    "start the program with `torchrun --nproc-per-node 2 PROGRAM`, which sets RANK and the related "
    "variables"
)
# The rendezvous store keeps the keys of earlier groups, so each group gets a number of its own.
_groups = count()


@dataclass(frozen=True, slots=True)
class Process:
    """This process: its `rank` (from 0) in a group of `count` processes, and its device."""

    rank: int
    count: int
    device: DeviceRef


@dataclass(frozen=True, slots=True)
class _Started:
    """What torchrun's environment variables state; the `local` fields are for this machine."""

    rank: int
    count: int
    local_rank: int
    local_count: int


@contextmanager
def processes(
    device: DeviceRef | None = None, *, timeout: float = 600.0, in_order: bool = False
) -> Generator[Process]:
    """Join the processes that torchrun has started, until the end of the `with`.

    By default each process uses its own GPU if the machine has enough, and the CPU otherwise. No
    process waits longer than `timeout` seconds for another; if one fails or leaves early, the
    others raise `EngineError` at the next collective operation. Sums over ranks are computed by
    gloo on the CPU and by NCCL on GPUs, in float32 and in an order of their own; with `in_order`,
    every process gets all values and adds them in the order of ranks, which takes longer, and gives
    the result of one process with all ranks. Raises `EngineError` if torchrun
    did not start this process, if the process is already in a group, if the device does not exist,
    if there are more processes than GPUs to give each one its own, or if other processes do not
    join.
    """
    started = _read_environment()
    require_devices([CPU if device is None else device])
    own = _device_of(started) if device is None else device
    _claim_gpu(started, own)
    _join(started, own, timeout)
    try:
        with summing_in_order(in_order):
            yield Process(started.rank, started.count, own)
    except BaseException:
        # Raise the original error, not a failure to leave a group whose other processes are gone.
        with suppress(RuntimeError):
            _leave()
        raise
    _leave()


def _read_environment() -> _Started:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    wanted = (*names, "MASTER_ADDR", "MASTER_PORT")
    if missing := [name for name in wanted if not os.environ.get(name)]:
        one = len(missing) == 1
        raise EngineError(
            f"torchrun did not start this process: {', '.join(missing)} "
            f"{'is' if one else 'are'} not set",
            hint=_BY_TORCHRUN,
        )
    rank, ranks, local_rank, local_count = map(_number, names)
    if rank >= ranks or local_rank >= local_count:
        raise EngineError(
            f"RANK {rank} of WORLD_SIZE {ranks} and LOCAL_RANK {local_rank} of "
            f"LOCAL_WORLD_SIZE {local_count} contradict each other",
            hint=_BY_TORCHRUN,
        )
    return _Started(rank, ranks, local_rank, local_count)


def _number(name: str) -> int:
    text = os.environ[name]
    if not text.isdecimal():
        raise EngineError(f"{name} is {text!r}, which is not a number", hint=_BY_TORCHRUN)
    return int(text)


def _device_of(started: _Started) -> DeviceRef:
    import torch

    has_enough = torch.cuda.device_count() >= started.local_count
    return DeviceRef.GPU(started.local_rank) if has_enough else CPU


def _claim_gpu(started: _Started, device: DeviceRef) -> None:
    """Make a GPU the device of this process's CUDA operations, if it uses one."""
    if device.kind != "gpu":
        return
    import torch

    count = torch.cuda.device_count()
    if count < started.local_count:
        raise EngineError(
            f"{started.local_count} processes on this machine cannot use a GPU of their own: torch "
            f"finds {pluralize(count, 'GPU')}",
            hint=f"start at most {count} with torchrun --nproc-per-node, or use "
            "processes(DeviceRef.CPU())",
        )
    torch.cuda.set_device(device.id)


def _join(started: _Started, device: DeviceRef, timeout: float) -> None:
    import torch
    from torch import distributed

    if not distributed.is_available():
        raise EngineError(
            f"torch {torch.__version__} was built without torch.distributed",
            hint="install a torch build with torch.distributed, such as those for Linux",
        )
    if distributed.is_initialized():
        raise EngineError(
            "this process is already in a process group",
            hint="use one `with weightctl.engine.processes()` around all code that needs it",
        )
    is_gpu = device.kind == "gpu"
    try:
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if is_gpu else "gloo",
            store=_connect_store(started, timeout),
            rank=started.rank,
            world_size=started.count,
            timeout=timedelta(seconds=timeout),
            device_id=torch.device("cuda", device.id) if is_gpu else None,
        )
    except RuntimeError as error:
        raise EngineError(
            f"process {started.rank} could not join the group of {started.count} "
            f"processes: {explain(error)}",
            hint="check that all processes were started and that each calls `processes()`",
        ) from error


def _connect_store(started: _Started, timeout: float) -> Any:
    """Return the store through which the processes of this group find each other."""
    from torch import distributed

    # torch has no annotations for `rendezvous` and `PrefixStore`.
    untyped: Any = distributed
    limit = timedelta(seconds=timeout)
    store, _, _ = next(untyped.rendezvous("env://", started.rank, started.count, timeout=limit))
    store.set_timeout(limit)
    return untyped.PrefixStore(f"weightctl/{next(_groups)}", store)


def _leave() -> None:
    from torch import distributed

    distributed.destroy_process_group()
