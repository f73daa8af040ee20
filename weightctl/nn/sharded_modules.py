"""Sharded modules: copies of a module that have a shard of each weight."""

from __future__ import annotations

from copy import copy, deepcopy
from typing import TYPE_CHECKING, Any, TypeVar

from weightctl.errors import GraphError
from weightctl.nn.base_layer import Layer, list_attributes, recursive_named_layers
from weightctl.nn.weight_names import all_weights, is_container, name_before_call
from weightctl.text.untyped import is_list

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from weightctl.device import DeviceRef
    from weightctl.graph.graph import Strategy, Weight

LayerT = TypeVar("LayerT", bound=Layer)


def shards_of(module: LayerT, devices: Iterable[DeviceRef]) -> list[LayerT]:
    """Return a copy of a module for each device, with its shards of the weights.

    A weight is cut by its own strategy, or by that of the innermost module around it that has one.
    Raises `GraphError` that names a weight without a strategy, and if a weight is already a shard.
    """
    devices = list(devices)
    if not devices:
        raise GraphError(
            "at least one device is needed", hint="for example `shard([DeviceRef.GPU(0)])`"
        )
    name_before_call(module)
    cut = {
        number: weight.shard_by(strategy, devices)
        for number, (weight, strategy) in _strategies(module).items()
    }
    return [
        with_weights(module, {number: shards[rank] for number, shards in cut.items()})
        for rank in range(len(devices))
    ]


def with_weights(module: LayerT, weights: Mapping[int, Weight]) -> LayerT:
    """Return a copy of a module with other weights, given by the `id` of the original ones.

    Modules adopt the sizes of their new weights (`take_shards`).
    """
    own = _copy_empty(module)
    new: dict[int, Any] = {**weights, id(module): own}
    layers = [layer for _, layer in recursive_named_layers(module)]
    new |= {id(layer): _copy_empty(layer) for layer in layers if layer is not module}
    for layer in layers:
        made = new[id(layer)]
        for name, value in list_attributes(layer).items():
            vars(made)[name] = _replace_value(value, new)
        if is_list(layer):
            made[:] = [new[id(below)] for below in layer]
    for layer in layers:
        take: Callable[[], None] | None = getattr(new[id(layer)], "take_shards", None)
        if take is not None:
            take()
    return own


def _copy_empty(layer: LayerT) -> LayerT:
    """Return a layer of the same class without attributes; a list keeps its layers."""
    made = copy(layer)
    vars(made).clear()
    return made


def _replace_value(value: object, new: dict[int, Any]) -> object:
    """Return the new value of an attribute, with replacements also inside containers."""
    if is_container(value):
        return deepcopy(value, new)
    return new.get(id(value), value)


def has_shards(module: Layer) -> bool:
    """Whether a module has both a weight and shards of it."""
    weights = {id(weight): weight for weight in all_weights(module)}
    return any(id(weight.shard_of) in weights for weight in weights.values())


def _strategies(module: Layer) -> dict[int, tuple[Weight, Strategy | None]]:
    """Return each weight and its strategy, by the `id` of the weight."""
    found: dict[int, tuple[Weight, Strategy | None]] = {}
    # Inner modules come later and take precedence.
    for _, layer in recursive_named_layers(module):
        given: Strategy | None = getattr(layer, "sharding_strategy", None)
        for weight in all_weights(layer):
            _, known = found.get(id(weight), (weight, None))
            found[id(weight)] = (weight, weight.sharding_strategy or given or known)
    return found
