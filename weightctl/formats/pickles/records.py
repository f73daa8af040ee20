"""Records for the objects of a pickle: they only store its content."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.text.untyped import is_tuple

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Blob", "Built", "Global", "Pairs", "PickledCall", "record_call"]

# More would be copied with each call of what is known, and nothing known takes as many.
_MOST_ARGUMENTS = 32


class Global:
    """A class or function that a pickle names; it is never imported.

    `make` returns the record of a call of it, None if it is not known what that would be. `path` is
    the module and the name, as in `torch._utils._rebuild_tensor_v2`.
    """

    __slots__ = ("make", "module", "name", "path")

    def __init__(self, module: str, name: str, make: Callable[..., Any] | None = None) -> None:
        self.module = module
        self.name = name
        self.make = make
        # Made once: of objects there may be many.
        self.path = f"{module}.{name}" if module else name


class Blob(NamedTuple):
    """Bytes that stand in the pickle as they are: where they start and end in its file's bytes."""

    start: int
    stop: int


class Pairs:
    """A mapping: its keys and values in order, as they were put in.

    `attributes` are what an object of such a class had besides.
    """

    __slots__ = ("attributes", "pairs")

    def __init__(self, pairs: list[tuple[Any, Any]] | None = None) -> None:
        self.pairs: list[tuple[Any, Any]] = [] if pairs is None else pairs
        self.attributes: Any = None


class PickledCall:
    """An object of a class that has no meaning here: what it was called with and given later.

    `elements` are those of a list, `pairs` those of a mapping, `states` what it was built from.
    """

    __slots__ = ("arguments", "elements", "function", "pairs", "states")

    def __init__(self, function: Any, arguments: tuple[Any, ...]) -> None:
        self.function = function
        self.arguments = arguments
        self.elements: list[Any] = []
        self.pairs: list[tuple[Any, Any]] = []
        self.states: list[Any] = []

    @property
    def path(self) -> str:
        """What the class is called."""
        function = self.function
        return function.path if isinstance(function, Global) else "object"


class Built:
    """A record that takes the state that a pickle gives it."""

    __slots__ = ()

    def build(self, state: Any) -> None:
        """Take a state; raises `ValueError` or `TypeError` for one that cannot be."""
        raise NotImplementedError


def record_call(function: Any, arguments: Any) -> Any:
    """Return the record of a call; raises `ValueError` for one that cannot be."""
    if not is_tuple(arguments):
        raise ValueError("the arguments of a call are not a tuple")
    if not isinstance(function, Global) or function.make is None:
        return PickledCall(function, arguments)
    if len(arguments) > _MOST_ARGUMENTS:
        raise ValueError(f"`{function.path}` is called with {len(arguments)} arguments")
    try:
        return function.make(*arguments)
    except TypeError as error:
        raise ValueError(f"`{function.path}` is called with invalid arguments") from error
