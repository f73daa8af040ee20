"""Detection of weights in plain lists, tuples and dictionaries, which a state would omit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.errors import GraphError
from weightctl.graph.weight import Weight
from weightctl.nn.base_layer import Layer, list_attributes, recursive_named_layers
from weightctl.text.untyped import is_object

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["is_container", "refuse_hidden"]

_CONTAINERS = (list, tuple, dict, set, frozenset)


def is_container(value: object) -> bool:
    """Whether a value may hold weights, or layers of such, though it is not a layer."""
    return isinstance(value, _CONTAINERS) and not isinstance(value, Layer)


def refuse_hidden(root: Layer) -> None:
    """Raise `GraphError` if a container holds weights, or layers of such, that no path leads to.

    Shards are not weights of their own.
    """
    layers = list(recursive_named_layers(root))
    reached = {
        id(found)
        for _, layer in layers
        for found in vars(layer).values()
        if isinstance(found, Weight)
    }
    for path, layer in layers:
        for name, value in list_attributes(layer).items():
            if not is_container(value):
                continue
            for weight in _weights_in(value):
                if id(weight) not in reached and weight.shard_idx is None:
                    where = f"{path}.{name}" if path else name
                    raise GraphError(
                        f"`{where}` of {type(root).__name__} is a {type(value).__name__}, "
                        "whose weights are not part of the state, for example "
                        f"`{weight.name}`",
                        hint="put layers in a LayerList, and weights in attributes",
                    )


def _weights_in(container: Any) -> Iterator[Weight]:
    """Yield the weights in a container, in those within it, and below the layers in any of them."""
    seen: set[int] = set()
    stack: list[object] = [container]
    while stack:
        found = stack.pop()
        number = id(found)
        if isinstance(found, Weight):
            yield found
        elif isinstance(found, (Layer, *_CONTAINERS)) and number not in seen:
            seen.add(number)
            stack.extend(_list_held(found))


def _list_held(holder: Any) -> Iterable[object]:
    if isinstance(holder, Layer):
        return (*holder.sublayers.values(), *list_attributes(holder).values())
    return holder.values() if is_object(holder) else holder
