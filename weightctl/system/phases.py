"""The current phase of a command, for progress displays, and messages for `logging`."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


class _Listeners:
    """The functions that listen for phases; only the last one is called."""

    stack: tuple[Callable[[str], object], ...] = ()


def begin_phase(text: str) -> None:
    """Name the phase that begins, such as `converting the tokenizer`."""
    log(text)
    if _Listeners.stack:
        _Listeners.stack[-1](text)


def log(text: str, level: str = "info") -> None:
    """Send a message to the logger `weightctl`, in a program that uses `logging`."""
    # A program that sets up logging has imported it; commands do not wait for the import.
    logging: Any = sys.modules.get("logging")
    if logging is None:
        return
    logger = logging.getLogger("weightctl")
    if not logger.handlers:
        # Otherwise, warnings are printed although the program has not asked for them.
        logger.addHandler(logging.NullHandler())
    getattr(logger, level)("%s", text)


def announce(progress: object, name: str, total: int) -> None:
    """Call the method `begin` of a `progress`, if it has one, with what its calls add up to."""
    begin = getattr(progress, "begin", None)
    if begin is not None:
        begin(name, total)


@contextmanager
def listening(listener: Callable[[str], object]) -> Generator[None, None, None]:
    """Call `listener` with the text of each phase that begins."""
    outer = _Listeners.stack
    _Listeners.stack = (*outer, listener)
    try:
        yield
    finally:
        _Listeners.stack = outer
