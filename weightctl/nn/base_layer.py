"""Layers and lists of them: what hooks see, and the paths by which a model reaches them."""

from __future__ import annotations

import reprlib
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import wraps
from typing import (
    TYPE_CHECKING,
    Any,
    NamedTuple,
    Self,
    SupportsIndex,
    TypeAlias,
    TypeVar,
    cast,
    overload,
)

from weightctl.errors import ArgumentTypeError
from weightctl.graph.scope import graphs, module_path
from weightctl.graph.value import Value
from weightctl.text.untyped import is_list

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

__all__ = [
    "ROOT",
    "SHARED",
    "Hook",
    "Layer",
    "LayerHook",
    "LayerList",
    "Naming",
    "add_layer_hook",
    "clear_hooks",
    "current_naming",
    "list_attributes",
    "path_below",
    "recursive_named_layers",
    "under",
]

Hook: TypeAlias = "Callable[[Layer, tuple[Any, ...], dict[str, Any], Any], Any]"
# Attributes of layers that are not the model's own: what named a layer's weights, and the weights
# that are others'. They stand in its `vars`, since layers need not call an `__init__` of ours.
ROOT, SHARED = "_model_root", "_shared_weights"
LayerT = TypeVar("LayerT", bound="Layer")
OtherT = TypeVar("OtherT")


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


def _run_hooks(layer: Layer, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Any) -> Any:
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
            return _run_hooks(self, args, kwargs, function(self, *args, **kwargs))
        finally:
            module_path.reset(was_path)
            _CALL.reset(was_call)
            _NAMING.reset(was_naming)

    return track_call


class LayerList(Layer, list[LayerT]):
    """A list of layers, which names them by their places: `layers.0`, `layers.1`, ...

    Everything that lists do it does too, and a model sees every change. Slices, sums and copies are
    LayerLists. Raises `TypeError` if anything but a layer is put in, and changes nothing.
    """

    def __init__(self, layers: Iterable[LayerT] = ()) -> None:
        super().__init__(_layers(layers))

    @property
    def sublayers(self) -> dict[str, Layer]:
        """The layers by their places: "0", "1", ..."""
        return {str(place): layer for place, layer in enumerate(self)}

    def append(self, layer: LayerT) -> None:
        """Put a layer at the end."""
        super().append(_layer(layer))

    def insert(self, i: SupportsIndex, layer: LayerT) -> None:
        """Put a layer before that at place `i`."""
        super().insert(i, _layer(layer))

    def extend(self, layer: Iterable[LayerT]) -> None:
        """Put layers at the end; the documents call them `layer`."""
        super().extend(_layers(layer))

    def copy(self) -> LayerList[LayerT]:
        """Return another list of the same layers."""
        return LayerList(self)

    @overload
    def __getitem__(self, place: SupportsIndex, /) -> LayerT: ...

    @overload
    def __getitem__(self, place: slice, /) -> LayerList[LayerT]: ...

    def __getitem__(self, place: Any, /) -> Any:
        found = cast("Any", super().__getitem__(place))
        return LayerList[LayerT](found) if _is_slice(place) else found

    @overload
    def __setitem__(self, place: SupportsIndex, layers: LayerT, /) -> None: ...

    @overload
    def __setitem__(self, place: slice, layers: Iterable[LayerT], /) -> None: ...

    def __setitem__(self, place: Any, layers: Any, /) -> None:
        super().__setitem__(place, _layers(layers) if _is_slice(place) else _layer(layers))

    @overload
    def __add__(self, layers: list[LayerT], /) -> LayerList[LayerT]: ...

    @overload
    def __add__(self, layers: list[OtherT], /) -> list[OtherT | LayerT]: ...

    def __add__(self, layers: Any, /) -> Any:
        return LayerList[Any]([*self, *layers]) if is_list(layers) else NotImplemented

    def __radd__(self, layers: list[LayerT], /) -> LayerList[LayerT]:
        return LayerList([*layers, *self]) if is_list(layers) else NotImplemented

    def __iadd__(self, layers: Iterable[LayerT], /) -> Self:  # type: ignore[misc, override]
        self.extend(layers)
        return self

    def __mul__(self, times: SupportsIndex, /) -> LayerList[LayerT]:
        return LayerList(super().__mul__(times))

    __rmul__ = __mul__

    def __repr__(self) -> str:
        return f"{type(self).__name__}({super().__repr__()})"


def _is_slice(place: object) -> bool:
    return isinstance(place, slice)


def _layer(layer: Any) -> Any:
    if not isinstance(layer, Layer):
        is_class = isinstance(layer, type)
        what = f"the class {layer.__name__}" if is_class else type(layer).__name__
        raise TypeError(f"a LayerList can only contain layers, not {what}")
    return layer


def _layers(layers: Any) -> list[Any]:
    if isinstance(layers, Layer) and not is_list(layers):
        raise TypeError(
            f"a single {type(layers).__name__} is not a list of layers; use `append` to add it"
        )
    return [_layer(layer) for layer in cast("Iterable[Any]", layers)]
