"""Layers: what hooks see, and the paths by which a model reaches them."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.graph.scope import graphs, module_path
from weightctl.nn.hooks import run_hooks

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

__all__ = [
    "ROOT",
    "SHARED",
    "Layer",
    "Naming",
    "current_naming",
    "list_attributes",
    "path_below",
    "recursive_named_layers",
    "under",
]

# Attributes of layers that are not the model's own: what named a layer's weights, and the weights
# that are others'. They stand in its `vars`, since layers need not call an `__init__` of ours.
ROOT, SHARED = "_model_root", "_shared_weights"


class Naming(NamedTuple):
    """The layer that names the weights during a call, and its path."""

    root: Layer
    prefix: str = ""


class Layer:
    """A part of a model that is called; hooks see each call.

    Attributes that are layers are its sublayers. While it is called, the graph knows its path from
    the outermost layer that is being called, `layers.3.mlp.down`.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        owner = next(base for base in cls.__mro__ if "__call__" in vars(base))
        # What is inherited from a layer is followed already, what is mixed in is not.
        if owner is cls or not issubclass(owner, Layer):
            followed = _track_calls(vars(owner)["__call__"])
            cls.__call__ = followed  # type: ignore[method-assign]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raise `NotImplementedError`: what a call does is for the subclass to say."""
        raise NotImplementedError(f"{type(self).__name__} does not define `__call__`")

    def name_before_call(self) -> Naming | None:
        """Name the weights that a call uses; a layer that names none leaves it to those below."""
        return None

    @property
    def sublayers(self) -> dict[str, Layer]:
        """The layers right below this one by the names of their attributes."""
        return {name: below for name, below in vars(self).items() if isinstance(below, Layer)}


def list_attributes(layer: Layer) -> dict[str, object]:
    """Return the attributes of a layer by name, but for `ROOT` and `SHARED`."""
    return {name: value for name, value in vars(layer).items() if name not in {ROOT, SHARED}}


def recursive_named_layers(parent: Layer, prefix: str = "") -> Iterator[tuple[str, Layer]]:
    """Yield the path and layer of `parent`, which is `prefix`, and of all that is below it.

    A layer comes before those below it, and one that is reached twice only the first time.
    """
    seen: set[int] = set()
    # A stack, since models may nest deeper than Python recurses.
    stack = [(prefix, parent)]
    while stack:
        path, layer = stack.pop()
        if id(layer) not in seen:
            seen.add(id(layer))
            yield path, layer
            below = reversed(layer.sublayers.items())
            stack.extend((f"{path}.{name}" if path else name, found) for name, found in below)


def path_below(root: Layer, layer: Layer) -> str | None:
    """Return the path by which `root` reaches a layer; None if it does not."""
    paths = (path for path, found in recursive_named_layers(root) if found is layer)
    return next(paths, None)


class _Paths:
    """The paths below the outermost layer that is called, found when one is asked for."""

    def __init__(self, root: Layer) -> None:
        self.root = root
        # With the layers, so that none goes and leaves its number to another.
        self._known: dict[int, tuple[Layer, str | None]] = {}

    def of(self, layer: Layer) -> str | None:
        if id(layer) not in self._known:
            for path, found in recursive_named_layers(self.root):
                self._known[id(found)] = (found, path)
            self._known.setdefault(id(layer), (layer, None))
        return self._known[id(layer)][1]


class _Call(NamedTuple):
    """A layer that is being called, from within another or from outside."""

    layer: Layer
    caller: _Call | None
    paths: _Paths

    def path(self) -> str:
        """Return the layer's path; one that no attribute leads to is `<Class>` of its caller."""
        path = self.paths.of(self.layer)
        if path is not None or self.caller is None:
            return path or ""
        own, above = f"<{type(self.layer).__name__}>", self.caller.path()
        return f"{above}.{own}" if above else own


_CALL: ContextVar[_Call | None] = ContextVar("layer_call", default=None)
_NAMING: ContextVar[Naming | None] = ContextVar("naming", default=None)


def current_naming() -> Naming | None:
    """Return what named the weights of the layer that is being called, None outside of all."""
    return _NAMING.get()


@contextmanager
def under(naming: Naming) -> Generator[None]:
    """Have layers be called that have their names already, unless an outer call gave them."""
    before = _NAMING.set(_NAMING.get() or naming)
    try:
        yield
    finally:
        _NAMING.reset(before)


def _as_value(given: Any) -> Any:
    """Return a NumPy array as a constant of the graph that is being built; all else as it is."""
    # Of NumPy's arrays alone: to know them does not load it.
    if type(given).__module__ != "numpy" or type(given).__name__ != "ndarray" or not graphs.get():
        return given
    from weightctl.graph.ops import constant

    return constant(given)


def _track_calls(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `__call__` that hooks and the graph know of."""

    @wraps(function)
    def track_call(self: Layer, *args: Any, **kwargs: Any) -> Any:
        args = tuple(map(_as_value, args))
        kwargs = {name: _as_value(given) for name, given in kwargs.items()}
        caller = _CALL.get()
        is_super = type(self).__call__ is not track_call
        if caller is not None and caller.layer is self and is_super:
            # A subclass goes on in its base: the same call.
            return function(self, *args, **kwargs)
        naming = _NAMING.get()
        if naming is None or (caller is not None and caller.paths.of(self) is None):
            # The outermost, or one that is called from within another and is not a part of it.
            naming = self.name_before_call() or naming
        call = _Call(self, caller, _Paths(self) if caller is None else caller.paths)
        was_naming = _NAMING.set(naming)
        was_call, was_path = _CALL.set(call), module_path.set(call.path)
        try:
            return run_hooks(self, args, kwargs, function(self, *args, **kwargs))
        finally:
            module_path.reset(was_path)
            _CALL.reset(was_call)
            _NAMING.reset(was_naming)

    return track_call
