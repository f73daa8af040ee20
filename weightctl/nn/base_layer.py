"""Layers and lists of layers: hooks on their calls, and their paths in a model."""

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
from weightctl.graph.graph import Value, graphs
from weightctl.graph.scope import module_path
from weightctl.text.untyped import is_list

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

Hook: TypeAlias = "Callable[[Layer, tuple[Any, ...], dict[str, Any], Any], Any]"
# Attributes that weightctl adds to layers: `ROOT` is the layer that named the weights, `SHARED` the
# weights that other layers own. They are in `vars`, since layers need not call an `__init__`.
ROOT, SHARED = "_model_root", "_shared_weights"
LayerT = TypeVar("LayerT", bound="Layer")
OtherT = TypeVar("OtherT")


class LayerHook:
    """A registered hook; `remove()`, or the end of a `with`, removes it."""

    def __init__(self, fn: Hook) -> None:
        self.fn = fn

    def remove(self) -> None:
        """Remove the hook; does nothing if it is already removed."""
        with suppress(ValueError):
            _HOOKS.remove(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


_HOOKS: list[LayerHook] = []


def add_layer_hook(fn: Hook) -> LayerHook:
    """Call a function after each call of any layer, until `clear_hooks()`.

    Layers are called while a graph is built; hooks do not affect graphs that are already built. The
    function gets the layer, the positional arguments, the keyword arguments and the outputs, and
    returns None or new outputs, which replace them. Several hooks are called in the order they were
    added, for the layers of all threads. `with add_layer_hook(fn):` removes the hook at the end.
    Raises `TypeError` if `fn` is not callable. The call of a layer raises `ArgumentTypeError`, a
    `TypeError` too, if a hook replaces a value by something that is not a value.
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
    """Return the outputs of a layer's call after all hooks."""
    # A copy: hooks that are added or removed by a hook take effect at the next call.
    for hook in tuple(_HOOKS):
        replaced = hook.fn(layer, args, kwargs, outputs)
        if replaced is not None:
            _require_outputs(hook.fn, layer, outputs, replaced)
            outputs = replaced
    return outputs


def _require_outputs(fn: Any, layer: Layer, outputs: Any, replaced: Any) -> None:
    """Raise `ArgumentTypeError` if a hook replaces a value by something that is not a value."""
    if isinstance(outputs, Value) and not isinstance(replaced, (Value, tuple, list)):
        name = getattr(fn, "__qualname__", type(fn).__name__)
        raise ArgumentTypeError(
            f"the hook `{name}` returned {reprlib.repr(replaced)} instead of "
            f"{outputs.type}, the output of {type(layer).__name__}",
            hint="a hook must return None or values; use `ops.constant(numbers)` to make a value",
        )


class Naming(NamedTuple):
    """The layer whose paths name the weights during a call, and the prefix of these paths."""

    root: Layer
    prefix: str = ""


class Layer:
    """A callable part of a model; hooks are notified of each call.

    Attributes that are layers are its sublayers. During a call, the graph records the path of the
    layer from the outermost layer that is being called, such as `layers.3.mlp.down`.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        owner = next(base for base in cls.__mro__ if "__call__" in vars(base))
        # A `__call__` inherited from a layer is already tracked; one from another base class is
        # not.
        if owner is cls or not issubclass(owner, Layer):
            followed = _track_calls(vars(owner)["__call__"])
            cls.__call__ = followed  # type: ignore[method-assign]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raise `NotImplementedError`; subclasses define what a call does."""
        raise NotImplementedError(f"{type(self).__name__} does not define `__call__`")

    def name_before_call(self) -> Naming | None:
        """Name the weights before a call; the base class leaves this to its sublayers."""
        return None

    @property
    def sublayers(self) -> dict[str, Layer]:
        """The layers directly below this one, by attribute name."""
        return {name: below for name, below in vars(self).items() if isinstance(below, Layer)}


def list_attributes(layer: Layer) -> dict[str, object]:
    """Return the attributes of a layer by name, except `ROOT` and `SHARED`."""
    return {name: value for name, value in vars(layer).items() if name not in {ROOT, SHARED}}


def recursive_named_layers(parent: Layer, prefix: str = "") -> Iterator[tuple[str, Layer]]:
    """Yield the path and layer of `parent`, whose path is `prefix`, and of all layers below it.

    A layer comes before its sublayers. A layer with several paths comes only once, with the first.
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
    """Return the path from `root` to a layer; None if there is none."""
    paths = (path for path, found in recursive_named_layers(root) if found is layer)
    return next(paths, None)


class _Paths:
    """The paths below the outermost layer that is being called, computed on first use."""

    def __init__(self, root: Layer) -> None:
        self.root = root
        # The layers are kept alive, so that their ids are not used again.
        self._known: dict[int, tuple[Layer, str | None]] = {}

    def of(self, layer: Layer) -> str | None:
        if id(layer) not in self._known:
            for path, found in recursive_named_layers(self.root):
                self._known[id(found)] = (found, path)
            self._known.setdefault(id(layer), (layer, None))
        return self._known[id(layer)][1]


class _Call(NamedTuple):
    """A call of a layer in progress, and the call that it was made from."""

    layer: Layer
    caller: _Call | None
    paths: _Paths

    def path(self) -> str:
        """Return the layer's path; without one, the path of the caller and `<Class>`."""
        path = self.paths.of(self.layer)
        if path is not None or self.caller is None:
            return path or ""
        own, above = f"<{type(self.layer).__name__}>", self.caller.path()
        return f"{above}.{own}" if above else own


_CALL: ContextVar[_Call | None] = ContextVar("layer_call", default=None)
_NAMING: ContextVar[Naming | None] = ContextVar("naming", default=None)


def current_naming() -> Naming | None:
    """Return what named the weights of the layer that is being called, None outside of calls."""
    return _NAMING.get()


@contextmanager
def under(naming: Naming) -> Generator[None]:
    """Use `naming` for calls inside the `with`, unless an outer call has set one."""
    before = _NAMING.set(_NAMING.get() or naming)
    try:
        yield
    finally:
        _NAMING.reset(before)


def _as_value(given: Any) -> Any:
    """Return a NumPy array as a constant of the current graph; other arguments are unchanged."""
    # Compared by name, so that NumPy is not imported.
    if type(given).__module__ != "numpy" or type(given).__name__ != "ndarray" or not graphs.get():
        return given
    from weightctl.graph.ops import constant

    return constant(given)


def _track_calls(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `__call__` that runs hooks and records the path of the layer."""

    @wraps(function)
    def track_call(self: Layer, *args: Any, **kwargs: Any) -> Any:
        args = tuple(map(_as_value, args))
        kwargs = {name: _as_value(given) for name, given in kwargs.items()}
        caller = _CALL.get()
        is_super = type(self).__call__ is not track_call
        if caller is not None and caller.layer is self and is_super:
            # The call of a base class by a subclass is part of the same call.
            return function(self, *args, **kwargs)
        naming = _NAMING.get()
        if naming is None or (caller is not None and caller.paths.of(self) is None):
            # The outermost call, or the call of a layer that is not below the calling one.
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
    """A list of layers, whose names are their positions: `layers.0`, `layers.1`, ...

    It supports all operations of a list, and the model uses the current content. Slices, sums and
    copies are LayerLists. Raises `TypeError` if an element is not a layer; the list is then
    unchanged.
    """

    def __init__(self, layers: Iterable[LayerT] = ()) -> None:
        super().__init__(_layers(layers))

    @property
    def sublayers(self) -> dict[str, Layer]:
        """The layers by position: "0", "1", ..."""
        return {str(place): layer for place, layer in enumerate(self)}

    def append(self, layer: LayerT) -> None:
        """Add a layer at the end."""
        super().append(_layer(layer))

    def insert(self, i: SupportsIndex, layer: LayerT) -> None:
        """Insert a layer before position `i`."""
        super().insert(i, _layer(layer))

    def extend(self, layer: Iterable[LayerT]) -> None:
        """Add layers at the end; the documented name of the parameter is `layer`."""
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
