"""Exchange of tensors between ranks, which may be in several processes.

Every process has the same number of ranks; the ranks of the first process come first.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from math import prod
from re import sub
from typing import TYPE_CHECKING, Any, cast
from zlib import crc32

from weightctl.errors import EngineError, GraphError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from torch import Tensor

    from weightctl.graph.types import TensorType

_RUN_BY = (
    "start the program with torchrun, and run graphs inside `with weightctl.engine.processes()`"
)

_in_order: ContextVar[bool] = ContextVar("sums_in_order", default=False)


@contextmanager
def summing_in_order(in_order: bool) -> Generator[None]:
    """Choose how values of several processes are added within this context: see `sum_ranks`."""
    token = _in_order.set(in_order)
    try:
        yield
    finally:
        _in_order.reset(token)


def count_ranks(here: Sequence[object], ranks: int | None) -> int:
    """Return the number of ranks, by default that of this process."""
    return len(here) if ranks is None else ranks


def require_ranks(types: Sequence[TensorType], ranks: int | None, first: int | None = None) -> int:
    """Return the number of ranks.

    Raises `GraphError` if there are no values, if the ranks cannot be divided among processes with
    this many each, or if no process starts with the rank `first`.
    """
    if not types:
        raise GraphError(
            "the list of values is empty", hint="give one value for each rank in this process"
        )
    given: Any = count_ranks(types, ranks)
    if isinstance(given, bool) or not isinstance(given, int) or given < 1 or given % len(types):
        raise GraphError(
            f"{given!r} ranks cannot be divided into processes with {len(types)} ranks each",
            hint="`ranks` is the number of ranks in all processes; each process has the same "
            "number",
        )
    if first is not None and first not in range(0, given, len(types)):
        raise GraphError(
            f"a process with {len(types)} of the {given} ranks cannot start at rank {first}",
            hint=f"`first` must be a multiple of {len(types)}, and less than {given}",
        )
    return given


def find_first_rank(here: int, ranks: int) -> int:
    """Return the number of the first rank of this process.

    Raises `EngineError` if the process group does not have exactly the processes for all ranks.
    """
    if here == ranks:
        return 0
    from torch import distributed

    described = f"{here} of {ranks} ranks {'is' if here == 1 else 'are'} in this process"
    if not distributed.is_available() or not distributed.is_initialized():
        raise EngineError(f"{described}, and it is not in a process group", hint=_RUN_BY)
    count = distributed.get_world_size()
    if count * here != ranks:
        raise EngineError(
            f"{described}, but the {count} processes have {count * here} ranks in total",
            hint="start the right number of processes with torchrun --nproc-per-node "
            f"{ranks // here}",
        )
    return distributed.get_rank() * here


def gather_tensors(
    op: str,
    here: Sequence[Tensor],
    ranks: int,
    shapes: Sequence[Sequence[int]],
    *,
    first: int | None = None,
) -> list[Tensor]:
    """Return the tensors of all ranks, which must have these shapes.

    If ranks are in other processes, the tensors are on the device of the first tensor of this
    process. `op` is the name of the operation, for messages. `first` is the first rank that the
    graph of this process was built for, if given. Raises `EngineError` in all processes if their
    tensors do not match, and if a process does not answer.
    """
    own = find_first_rank(len(here), ranks)
    if len(here) == ranks:
        return list(here)
    import torch

    lead, width = here[0], here[0].element_size()
    sizes = [prod(shape) * width for shape in shapes]
    starts = range(0, ranks, len(here))
    most = max(sum(sizes[start : start + len(here)]) for start in starts)
    _agree(_describe(op, lead, shapes), len(starts), _find_misfit(here, shapes[own:], own, first))
    raw = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in here]
    joined = torch.cat([each.to(lead.device) for each in raw])
    sent = torch.zeros(most, dtype=torch.uint8, device=lead.device)
    sent[: len(joined)] = joined
    found: list[Tensor] = []
    for start, together in zip(starts, _gather(sent, len(starts)), strict=True):
        position = 0
        for rank in range(start, start + len(here)):
            numbers = together[position : position + sizes[rank]].view(lead.dtype)
            found.append(numbers.reshape(tuple(shapes[rank])))
            position += sizes[rank]
    return found


def _describe(op: str, lead: Tensor, shapes: Sequence[Sequence[int]]) -> str:
    dtype = str(lead.dtype).removeprefix("torch.")
    return f"{op} of {dtype} {[list(shape) for shape in shapes]}"


def sum_ranks(op: str, here: Sequence[Tensor], ranks: int, *, first: int | None = None) -> Tensor:
    """Return the sum of the tensors of all ranks, on the device of the first one here.

    Tensors of one process are added in the order of ranks in a wider dtype. Floats of at most 32
    bits from several processes are then added in float32 by the backend of the process group, which
    chooses the order. Within `summing_in_order(True)`, all ranks are added in order: the result is
    that of one process with all ranks. The other arguments and the errors are those of
    `gather_tensors`.
    """
    shapes = [here[0].shape] * ranks
    wide = _WIDER.get(str(here[0].dtype).removeprefix("torch."))
    if len(here) == ranks or wide is None or _in_order.get():
        name = f"{op} in order" if _in_order.get() else op
        return _add(gather_tensors(name, here, ranks, shapes, first=first)).to(here[0].dtype)
    import torch
    from torch import distributed

    own = find_first_rank(len(here), ranks)
    misfit = _find_misfit(here, shapes[own:], own, first)
    _agree(_describe(op, here[0], shapes), ranks // len(here), misfit)
    total = (_add(here) if len(here) > 1 else here[0]).to(torch.float32, copy=True).contiguous()
    # torch has no annotations for it.
    _wait(lambda: cast("Any", distributed).all_reduce(total), ranks // len(here))
    return total.to(here[0].dtype)


# The dtypes in which floats are added.
_WIDER = {"float32": "float64", "float16": "float32", "bfloat16": "float32"}


def _add(tensors: Sequence[Tensor]) -> Tensor:
    """Return the sum, added in the order of ranks, in a wider dtype."""
    import torch

    first, *others = tensors
    wide = _WIDER.get(str(first.dtype).removeprefix("torch."))
    total = first if wide is None else first.to(getattr(torch, wide))
    for tensor in others:
        total = total + tensor.to(total.device)
    return total


def _find_misfit(
    here: Sequence[Tensor], shapes: Sequence[Sequence[int]], own: int, first: int | None
) -> EngineError | None:
    """Return the error of a process whose ranks or shapes are not the expected ones, or None."""
    if first not in {None, own}:
        return EngineError(
            f"the first rank in this process is {own}, but the graph was built for {first}",
            hint="each process must build the graph of its own ranks",
        )
    for tensor, shape in zip(here, shapes, strict=False):
        if tuple(tensor.shape) != tuple(shape):
            return EngineError(
                f"a value has shape {list(tensor.shape)} instead of {list(shape)}",
                hint="`sizes` needs the size of every rank, in order",
            )
    return None


def _agree(described: str, count: int, refusal: EngineError | None) -> None:
    """Raise `EngineError` in all processes unless each has the same description and no `refusal`.

    torch aborts the program if a process sends another size than expected, so this is compared
    before. The comparison is on the CPU: no process waits for a device.
    """
    import torch

    kind = crc32(described.encode())
    own = torch.tensor([refusal is None, kind])
    for process, note in enumerate(_gather(own, count)):
        if refusal is not None:
            raise refusal
        if not int(note[0]):
            raise EngineError(
                f"process {process} of {count} stopped with an error",
                hint="see the error of that process",
            )
        if int(note[1]) != kind:
            raise EngineError(
                f"process {process} of {count} sends a different shape or dtype, or is at a "
                f"different step; this process: {described}",
                hint="give every process the same inputs and the same graph; only the rank "
                "numbers may differ",
            )


def _gather(sent: Tensor, count: int) -> list[Tensor]:
    """Return what each process sent, in the order of processes; all have the same size."""
    import torch
    from torch import distributed

    received = [torch.empty_like(sent) for _ in range(count)]
    # torch has no annotations for the lists.
    _wait(lambda: cast("Any", distributed).all_gather(received, sent), count)
    return received


def _wait(exchange: Callable[[], object], count: int) -> None:
    """Exchange tensors; raises `EngineError` if a process does not answer."""
    try:
        exchange()
    except RuntimeError as error:
        raise EngineError(
            f"not all of the {count} processes answered ({explain(error)})",
            hint="check whether a process failed; its own error gives the reason",
        ) from error


def explain(error: Exception) -> str:
    """Return the reason in an error of torch, without source locations and suggestions."""
    text = sub(r"\[/[^ \]]*\] ", "", str(error).strip()) or type(error).__name__
    return text.splitlines()[0].split(". ")[0]
