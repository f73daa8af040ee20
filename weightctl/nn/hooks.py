"""Hooks: functions that see, and may replace, the outputs of every layer."""

from __future__ import annotations

import reprlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from weightctl.errors import ArgumentTypeError
from weightctl.graph.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightctl.nn.base_layer import Layer

__all__ = ["Hook", "LayerHook", "add_layer_hook", "clear_hooks", "run_hooks"]

Hook: TypeAlias = "Callable[[Layer, tuple[Any, ...], dict[str, Any], Any], Any]"


class LayerHook:
    """A hook that was added; `remove()`, or the end of a `with`, removes it."""

    def __init__(self, fn: Hook) -> None:
        self.fn = fn

    def remove(self) -> None:
        """Remove the hook; does nothing if it was removed before."""
        with suppress(ValueError):
            _HOOKS.remove(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


_HOOKS: list[LayerHook] = []


def add_layer_hook(fn: Hook) -> LayerHook:
    """Have a function called after each call of any layer, until `clear_hooks()`.

    Layers are called while a graph is built; in one that is built hooks change nothing.
    It gets the layer, the positional arguments, the keyword arguments and the outputs, and returns
    None or new outputs, which replace those; several are called in the order they were added. They
    see the layers of all threads. `with add_layer_hook(fn):` removes it at the end. Raises
    `TypeError` for what cannot be called; a layer's call raises `ArgumentTypeError`, one too, where
    a hook returns what is not a value in the place of one.
    """
    if not callable(fn):
        raise TypeError(f"a hook must be a function, not {type(fn).__name__}")
    hook = LayerHook(fn)
    _HOOKS.append(hook)
    return hook


def clear_hooks() -> None:
    """Remove all hooks."""
    _HOOKS.clear()


def run_hooks(layer: Layer, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Any) -> Any:
    """Return the outputs of a layer's call as the hooks leave them."""
    # A copy: hooks may add and remove hooks, which counts from the next call on.
    for hook in tuple(_HOOKS):
        replaced = hook.fn(layer, args, kwargs, outputs)
        if replaced is not None:
            _require_outputs(hook.fn, layer, outputs, replaced)
            outputs = replaced
    return outputs


def _require_outputs(fn: Any, layer: Layer, outputs: Any, replaced: Any) -> None:
    """Raise `ArgumentTypeError` if a hook puts what no graph computes in a value's place."""
    if isinstance(outputs, Value) and not isinstance(replaced, (Value, tuple, list)):
        name = getattr(fn, "__qualname__", type(fn).__name__)
        raise ArgumentTypeError(
            f"the hook `{name}` returned {reprlib.repr(replaced)} instead of "
            f"{outputs.type}, the output of {type(layer).__name__}",
            hint="a hook must return None or values; use `ops.constant(numbers)` to make a value",
        )
