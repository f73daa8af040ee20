"""Lists of layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, SupportsIndex, TypeVar, cast, overload

from weightctl.nn.base_layer import Layer
from weightctl.text.untyped import is_list

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["LayerList"]

LayerT = TypeVar("LayerT", bound=Layer)
OtherT = TypeVar("OtherT")


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
