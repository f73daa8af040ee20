"""Exchange of tensors between ranks, which may be in several processes.

Every process has the same number of ranks; the ranks of the first process come first.
"""

from __future__ import annotations

from math import prod
from re import sub
from typing import TYPE_CHECKING, Any, cast
from zlib import crc32

from weightctl.errors import EngineError, GraphError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from weightctl.graph.types import TensorType

__all__ = [
    "count_ranks",
    "explain",
    "find_first_rank",
    "gather_tensors",
    "require_ranks",
    "sum_in_order",
]

_RUN_BY = (
    "start the program with torchrun, and run graphs inside `with weightctl.engine.processes()`"
)


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
    refusal = _find_misfit(here, shapes[own:], own, first)
    sent = torch.zeros(most, dtype=torch.uint8, device=lead.device)
    if refusal is None:
        raw = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in here]
        joined = torch.cat([each.to(lead.device) for each in raw])
        sent[: len(joined)] = joined
    dtype = str(lead.dtype).removeprefix("torch.")
    described = f"{op} of {dtype} {[list(shape) for shape in shapes]}"
    found: list[Tensor] = []
    received = _exchange(sent, len(starts), described, refusal)
    for start, together in zip(starts, received, strict=True):
        position = 0
        for rank in range(start, start + len(here)):
            numbers = together[position : position + sizes[rank]].view(lead.dtype)
            found.append(numbers.reshape(tuple(shapes[rank])))
            position += sizes[rank]
    return found


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


def sum_in_order(tensors: Sequence[Tensor]) -> Tensor:
    """Return the sum, added in the order of ranks in a wider dtype and rounded once."""
    import torch

    wider = {torch.float32: torch.float64}
    wider |= dict.fromkeys((torch.float16, torch.bfloat16), torch.float32)
    first, *others = tensors
    total = first.to(wider.get(first.dtype, first.dtype))
    for tensor in others:
        total = total + tensor.to(total.device)
    return total.to(first.dtype)


def _exchange(
    sent: Tensor, count: int, described: str, refusal: EngineError | None
) -> list[Tensor]:
    """Return the bytes that each process sent, in the order of processes.

    `described` is what every process must send; its checksum is compared first. A `refusal` is
    raised only after the other processes know of it, so that none of them waits.
    """
    import torch
    from torch import distributed

    # torch has no annotations for the lists.
    gather = cast("Any", distributed).all_gather
    try:
        # torch aborts the program if a process sends another size than expected, so compare first.
        kind = crc32(described.encode())
        own = torch.tensor([refusal is None, kind], device=sent.device)
        notes = [torch.empty_like(own) for _ in range(count)]
        gather(notes, own)
        for process, note in enumerate(notes):
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
        received = [torch.empty_like(sent) for _ in range(count)]
        gather(received, sent)
    except RuntimeError as error:
        if isinstance(error, EngineError):
            raise
        raise EngineError(
            f"not all of the {count} processes answered ({explain(error)})",
            hint="check whether a process failed; its own error gives the reason",
        ) from error
    return received


def explain(error: Exception) -> str:
    """Return the reason in an error of torch, without source locations and suggestions."""
    text = sub(r"\[/[^ \]]*\] ", "", str(error).strip()) or type(error).__name__
    return text.splitlines()[0].split(". ")[0]
