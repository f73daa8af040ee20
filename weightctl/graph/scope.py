"""The layer that is being called, and errors that name it."""

from __future__ import annotations

import reprlib
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from weightctl.errors import GraphError
from weightctl.graph.types import TensorType

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

# A function that returns the path of the layer being called, such as `layers.3.mlp.down`.
module_path: ContextVar[Callable[[], str] | None] = ContextVar("module_path", default=None)

# Whether an outer `refusing` will describe the error.
_is_refusing: ContextVar[bool] = ContextVar("is_refusing", default=False)


def layer_path() -> str:
    """Return the path of the layer being called, empty if none is."""
    path = module_path.get()
    return path() if path is not None else ""


@contextmanager
def refusing(op: str, *inputs: object, **attributes: object) -> Generator[None]:
    """Add the op, the types of its inputs and the current layer to a `GraphError` raised inside.

    If an op adds other ops, the error names the outermost one. Inputs without a type, such as
    numbers, are left out. Python's own errors, which attributes of wrong types cause, become a
    `GraphError` too.
    """
    if _is_refusing.get():
        yield
        return
    token = _is_refusing.set(True)
    try:
        yield
    except GraphError as error:
        raise GraphError(
            _describe_failure(op, inputs, error.message), hint=error.hint
        ) from error.__cause__
    except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
        asked = ", ".join(f"{key}={reprlib.repr(given)}" for key, given in attributes.items())
        hint = f"the arguments were {asked}" if asked else ""
        raise GraphError(
            _describe_failure(op, inputs, getattr(error, "message", str(error))),
            hint=getattr(error, "hint", hint),
        ) from error
    finally:
        _is_refusing.reset(token)


def _describe_failure(op: str, inputs: Iterable[object], reason: str) -> str:
    found = [getattr(given, "type", None) for given in inputs]
    types = [str(kind) for kind in found if isinstance(kind, TensorType)]
    given = f" of {' and '.join(types)}" if types else ""
    path = layer_path()
    where = f" (in {path})" if path else ""
    return f"{op}{given}{where}: {reason}"


@contextmanager
def sizing(op: str, *inputs: object) -> Generator[None]:
    """Add the same to errors about dimensions and shapes, with a hint on valid dimensions."""
    with refusing(op, *inputs):
        try:
            yield
        except GraphError:
            raise
        except (TypeError, ValueError) as error:
            raise GraphError(
                str(error),
                hint="use an integer of at least 0, a name such as `batch`, or a Dim made of these",
            ) from None
