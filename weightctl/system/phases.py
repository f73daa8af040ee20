"""The current phase of a command, for progress displays."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


class _Listeners:
    """The functions that listen for phases; only the last one is called."""

    stack: tuple[Callable[[str], object], ...] = ()


def begin_phase(text: str) -> None:
    """Name the phase that begins, such as `converting the tokenizer`."""
    if _Listeners.stack:
        _Listeners.stack[-1](text)


@contextmanager
def listening(listener: Callable[[str], object]) -> Generator[None, None, None]:
    """Call `listener` with the text of each phase that begins."""
    outer = _Listeners.stack
    _Listeners.stack = (*outer, listener)
    try:
        yield
    finally:
        _Listeners.stack = outer
