"""Subgraphs that compute a layer, to be called for many layers of the same structure."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

from weightctl.errors import GraphError
from weightctl.graph.graph import Graph
from weightctl.graph.types import TensorType
from weightctl.graph.value import Value
from weightctl.nn.base_layer import under
from weightctl.nn.sites import name_weights, naming_of
from weightctl.text.untyped import is_sequence

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weightctl.nn.base_layer import Layer

InputTypes: TypeAlias = "TensorType | Sequence[TensorType | Sequence[TensorType]]"
_Types: TypeAlias = "Sequence[TensorType | Sequence[TensorType]]"


def subgraph_of(layer: Layer, name: str, input_types: InputTypes, weight_prefix: str) -> Graph:
    """Return a subgraph of the current graph that computes what a layer does."""
    parent = Graph.current
    input_types = _to_list(input_types)
    naming = naming_of(layer, weight_prefix)
    _name_weights(layer, weight_prefix)
    subgraph = parent.add_subgraph(name, _flat_types(input_types), weight_prefix)
    try:
        with subgraph, under(naming):
            inputs = iter(subgraph.inputs)
            args = [
                next(inputs) if isinstance(given, TensorType) else list(islice(inputs, len(given)))
                for given in input_types
            ]
            subgraph.output(*_values(layer, layer(*args)))
    except BaseException:
        # Remove the incomplete graph, so that the name can be used again.
        del parent.subgraphs[name]
        raise
    return subgraph


def _name_weights(layer: Layer, prefix: str) -> None:
    """Name the weights of a layer, relative to the prefix if the layer is not part of a model.

    Raises `GraphError` if there are weights and no name starts with the prefix.
    """
    weights = [first.weight for first, *_ in name_weights(layer, prefix).values()]
    if not weights or any(weight.name.startswith(prefix) for weight in weights):
        return
    raise GraphError(
        f"no weight of {type(layer).__name__} has a name that starts with `{prefix}`: the first is "
        f"`{weights[0].name}`",
        hint="weight_prefix must be the path of the layer in its model, with a dot at the end",
    )


def _to_list(given: Any) -> _Types:
    """Return the types of the arguments, or of the only argument, as a list."""
    if isinstance(given, TensorType):
        return [given]
    kinds: list[Any] = list(given) if hasattr(given, "__iter__") else [None]
    flat = [each for kind in kinds for each in (kind if is_sequence(kind) else [kind])]
    if not all(isinstance(each, TensorType) for each in flat):
        raise GraphError(
            f"{given!r} is not a valid list of input types for a subgraph",
            hint="use a list of TensorTypes, such as `[x.type]`; for an argument that is a "
            "list, use a nested list",
        )
    return kinds


def _flat_types(input_types: _Types) -> Iterator[TensorType]:
    for given in input_types:
        if isinstance(given, TensorType):
            yield given
        else:
            yield from given


def _values(layer: Layer, outputs: Any) -> Iterator[Value]:
    if isinstance(outputs, Value):
        yield outputs
    elif is_sequence(outputs):
        for output in outputs:
            yield from _values(layer, output)
    else:
        raise GraphError(
            f"{type(layer).__name__} returned a {type(outputs).__name__}, but a subgraph "
            "must return values",
            hint="return a value, or values in lists and tuples",
        )
