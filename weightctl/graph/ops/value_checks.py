"""Checks of the values of operands: at once on the CPU, at the end of a run on a GPU.

To read a value of a GPU, the CPU waits until the GPU has done all of its work.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from torch import Tensor


class DelayedCheck(NamedTuple):
    """A value on a GPU that is true if a run must fail, and the error to raise then."""

    is_wrong: Tensor
    error: EngineError


_delayed: ContextVar[list[DelayedCheck] | None] = ContextVar("delayed_checks", default=None)


@contextmanager
def delaying_checks() -> Generator[list[DelayedCheck]]:
    """Collect the checks of values on GPUs within this context, instead of waiting for each."""
    checks: list[DelayedCheck] = []
    token = _delayed.set(checks)
    try:
        yield checks
    finally:
        _delayed.reset(token)


def raise_first(checks: Sequence[DelayedCheck]) -> None:
    """Raise the error of the first check that has failed; each device is waited for once."""
    import torch

    by_device: dict[torch.device, list[int]] = {}
    for number, check in enumerate(checks):
        by_device.setdefault(check.is_wrong.device, []).append(number)
    failed: list[int] = []
    for numbers in by_device.values():
        wrong = torch.stack([checks[number].is_wrong for number in numbers]).cpu()
        failed += [number for number, one in zip(numbers, wrong, strict=True) if bool(one)]
    if failed:
        raise checks[min(failed)].error


def refuse_where(wrong: Tensor, message: str, hint: str) -> None:
    """Raise `EngineError` if an element is true, or at the end of the run if it is on a GPU."""
    checks = _delayed.get()
    if checks is not None and is_on_gpu(wrong):
        checks.append(DelayedCheck(wrong.any(), EngineError(message, hint=hint)))
    elif bool(wrong.any()):
        raise EngineError(message, hint=hint)


def is_on_gpu(tensor: Tensor) -> bool:
    """Whether reading a value of a tensor would wait for a device."""
    return tensor.device.type != "cpu"


def clamp_rows(indices: Tensor, count: int) -> Tensor:
    """Return row numbers for which all rows exist, of a table of `count` rows.

    Raises `EngineError` if an index is outside of the table. On a GPU the error is raised at the
    end of the run, and the index is replaced, because torch would stop the whole process.
    """
    if not indices.numel():
        return indices
    hint = f"the table has rows 0 to {count - 1}" if count else "the table has no rows"
    if is_on_gpu(indices) and count:
        refuse_where((indices < 0) | (indices >= count), "a row does not exist", hint)
        return indices.clamp(0, count - 1)
    lowest, highest = (int(bound) for bound in indices.aminmax())
    if lowest < 0 or highest >= count:
        outside = highest if highest >= count else lowest
        raise EngineError(f"row {outside} does not exist", hint=hint)
    return indices
