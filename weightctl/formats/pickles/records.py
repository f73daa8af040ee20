"""Records of the objects of a pickle; they only store its content."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.text.untyped import is_tuple

if TYPE_CHECKING:
    from collections.abc import Callable

# A call copies its arguments, and no known constructor has more.
_MOST_ARGUMENTS = 32


class Global:
    """A class or function that a pickle names; it is never imported.

    `make` returns the record of a call, and is None for an unsupported global. `path` is the module
    and the name, such as `torch._utils._rebuild_tensor_v2`.
    """

    __slots__ = ("make", "module", "name", "path")

    def __init__(self, module: str, name: str, make: Callable[..., Any] | None = None) -> None:
        self.module = module
        self.name = name
        self.make = make
        # Computed once, because there can be many objects.
        self.path = f"{module}.{name}" if module else name


class Blob(NamedTuple):
    """Raw bytes in the pickle: the offsets of their start and end."""

    start: int
    stop: int


class Pairs:
    """A mapping: its keys and values in the order in which they were set.

    `attributes` are the other attributes of an object of a mapping class.
    """

    __slots__ = ("attributes", "pairs")

    def __init__(self, pairs: list[tuple[Any, Any]] | None = None) -> None:
        self.pairs: list[tuple[Any, Any]] = [] if pairs is None else pairs
        self.attributes: Any = None


class PickledCall:
    """An object that a pickle creates by calling an unsupported global with `arguments`.

    `elements` were appended to it as to a list, `pairs` were set as in a mapping, and `states` were
    set with BUILD.
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
        """The path of the called global."""
        function = self.function
        return function.path if isinstance(function, Global) else "object"


class Built:
    """A record that accepts a state from the pickle."""

    __slots__ = ()

    def build(self, state: Any) -> None:
        """Set the state; raises `ValueError` or `TypeError` if it is invalid."""
        raise NotImplementedError


def record_call(function: Any, arguments: Any) -> Any:
    """Return the record of a call; raises `ValueError` if the call is invalid."""
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
