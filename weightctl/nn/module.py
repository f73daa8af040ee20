"""Modules: layers that own weights, name them by their paths, and load them."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, overload

from weightctl.device import as_device
from weightctl.errors import GraphError, StateDictError
from weightctl.graph.graph import Graph, Value, Weight, require_strategy
from weightctl.graph.types import TensorType
from weightctl.nn.base_layer import Layer, LayerList, under
from weightctl.nn.sharded_modules import has_shards, shards_of
from weightctl.nn.state import fit
from weightctl.nn.values import get_value, keep, keep_zeros
from weightctl.nn.weight_names import (
    all_weights,
    find_owned,
    name_before_call,
    name_weights,
    naming_of,
    refuse_hidden,
    second_names,
    share,
    weights_of,
)
from weightctl.text.untyped import is_sequence

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from weightctl.device import DeviceLike, DeviceRef
    from weightctl.graph.graph import Strategy
    from weightctl.graph.sharding import ShardingStrategy
    from weightctl.nn.base_layer import Naming
    from weightctl.nn.values import HeldValue, StateValue
    from weightctl.weights.protocol import Weights

InputTypes: TypeAlias = "TensorType | Sequence[TensorType | Sequence[TensorType]]"
_Types: TypeAlias = "Sequence[TensorType | Sequence[TensorType]]"


class Module(Layer):
    """A layer with weights: its attributes that are a `Weight`, and those of its sublayers.

    The name of a weight is its path of attributes, `layers.0.mlp.up.weight`, counted from the
    module that last named its weights, loaded them or returned its state. An outermost call names
    them again by their current paths, unless no weight has been named yet and some were created
    with names of their own. A weight with several paths is named by the first. `__init__` does not
    need to call `super().__init__`.
    """

    sharding_strategy: Strategy | None = None

    @property
    def layer_weights(self) -> dict[str, Weight]:
        """The weights of this layer, without sublayers, by attribute name."""
        return weights_of(self)

    def set_shared_weight(self, name: str, weight: Weight) -> None:
        """Set an attribute to a weight that another layer owns, names and loads.

        Raises `TypeError` if the value is not a weight.
        """
        share(self, name, weight)

    def name_weights(self) -> None:
        """Set the name of each weight to its path, which graphs built from now on use.

        If the module is part of a model that has named its weights, names are paths in that model.
        Raises `GraphError` if two weights have the same path, or if a container other than a
        `LayerList` holds weights, or layers with weights, that no attribute leads to.
        """
        name_weights(self)

    def name_before_call(self) -> Naming:
        """Name the weights again, unless no weight of the module has been named yet."""
        return name_before_call(self)

    def raw_state_dict(self) -> dict[str, Weight]:
        """Return the weights that this module owns by path, and name them.

        Before a graph is built, the shape, dtype, quantization_encoding, device and align of each
        weight may be changed. Raises the errors of `name_weights`.
        """
        return {name: first.weight for name, (first, *_) in name_weights(self).items()}

    def state_dict(self, auto_initialize: bool = True) -> dict[str, HeldValue]:
        """Return the values of all weights by path, as they were loaded, and name the weights.

        A weight without a value gets a `Buffer` of zeros and keeps it. A weight with several paths
        is included once, under the first. `weightctl.save(module.state_dict(), path)` writes the
        values; one line converts them to arrays of other libraries, which share memory if possible:

            {name: torch.from_dlpack(value) for name, value in module.state_dict().items()}
            {name: np.asarray(value) for name, value in module.state_dict().items()}

        Of quantized values, the first are bytes; `value.to_torch()` dequantizes them. A torch
        module with tied weights expects a value for each name: load the values with its
        `load_state_dict(..., strict=False)`. Raises `StateDictError`, a `ValueError`, that names
        all weights without a value if `auto_initialize` is False, or all that cannot get zeros
        because their size is not defined.
        """
        weights = self.raw_state_dict()
        values = {name: get_value(weight) for name, weight in weights.items()}
        empty = [name for name, value in values.items() if value is None]
        if empty and not auto_initialize:
            raise StateDictError(
                f"{type(self).__name__} has weights without values: {_join_names(empty)}",
                hint="load values with `load_state_dict`",
            )
        unknown = [name for name in empty if not weights[name].shape.is_static]
        if unknown:
            raise StateDictError(
                f"weights have dimensions without a size: {_join_names(unknown)}",
                hint="set their shapes, or load values with `load_state_dict`",
            )
        return {
            name: keep_zeros(weights[name]) if value is None else value
            for name, value in values.items()
        }

    @overload
    def load_state_dict(
        self,
        state_dict: Mapping[str, StateValue] | Weights,
        *,
        override_quantization_encoding: bool = False,
        weight_alignment: int | None = None,
        strict: Literal[True] = True,
        rename: Mapping[str, str] | None = None,
    ) -> None: ...

    @overload
    def load_state_dict(
        self,
        state_dict: Mapping[str, StateValue] | Weights,
        *,
        override_quantization_encoding: bool = False,
        weight_alignment: int | None = None,
        strict: Literal[False],
        rename: Mapping[str, str] | None = None,
    ) -> tuple[list[str], list[str]]: ...

    def load_state_dict(
        self,
        state_dict: Mapping[str, StateValue] | Weights,
        *,
        override_quantization_encoding: bool = False,
        weight_alignment: int | None = None,
        strict: bool = True,
        rename: Mapping[str, str] | None = None,
    ) -> tuple[list[str], list[str]] | None:
        """Set the values of the weights that this module owns, and name them; no value is read yet.

        Values are NumPy arrays, other objects that support DLPack, `WeightData`, or nodes of a
        checkpoint's tree; the tree itself can be given for all of its nodes. They need the dtypes
        of the weights, or dtypes that convert without loss, and the logical shapes. Blocks are
        decoded for a weight of floats when a graph runs, unless `override_quantization_encoding`
        sets the weights to the encodings of the values. A shared weight also takes a value under
        its second path; if both are given, they must be equal. With `weight_alignment`, each value
        must start on a multiple of this number of bytes, which becomes the `align` of every weight;
        without it, unaligned values are copied when a graph runs. With `strict=False`, returns the
        names of weights without a value and of values without a weight. `rename` maps regular
        expressions to replacements, for the names of values; the first that matches a name applies.
        `InferenceSession.load` accepts the same values, except for names without a weight.

        Raises `StateDictError`, a `ValueError`, that names every value which does not fit and, if
        `strict`, all missing and unexpected ones. Raises the errors of `name_weights`. The module
        is not changed in case of an error.
        """
        refuse_hidden(naming_of(self).root)
        fitted = fit(
            {name: first.weight for name, (first, *_) in find_owned(self).items()},
            state_dict,
            override=override_quantization_encoding,
            alignment=weight_alignment,
            strict=strict,
            second_names=lambda: second_names(self),
            rename=rename or {},
        )
        for name, weight in self.raw_state_dict().items():
            if weight_alignment is not None:
                weight.align = weight_alignment
            if name in fitted.configurations:
                weight.configure(*fitted.configurations[name])
            if name in fitted.values:
                keep(weight, fitted.values[name])
        return None if strict else (fitted.missing, fitted.unexpected)

    def build_subgraph(self, name: str, input_types: InputTypes, weight_prefix: str = "") -> Graph:
        """Return a subgraph of the current graph that computes what this module does.

        Call it with `ops.call`, for this and other modules of the same structure. `input_types` are
        the types of the module's arguments; an argument that is a list of values has a list of
        types. Each call replaces `weight_prefix`, the start of the weights' names, by its own
        prefix. Names are those of the whole model if it has named them or is being called. Raises
        `GraphError` if the current graph has a subgraph of that name, if no weight's name starts
        with the prefix, or if the module returns anything but values.
        """
        return subgraph_of(self, name, input_types, weight_prefix)

    def __repr__(self) -> str:
        return _outline_layer(self)

    def shard(self, devices: Iterable[DeviceRef]) -> list[Self]:
        """Return a copy of this module for each device, with its shard of every weight.

        A weight is cut by its own `sharding_strategy`, or else by that of the innermost module that
        contains it. The caller combines the outputs of the shards, as `Parallel` does. Raises
        `GraphError`, a `ValueError`, for a weight without a strategy or with one for another number
        of devices, and `ShardingError`, a `ValueError` too, if a weight cannot be split.
        """
        return shards_of(self, devices)

    def take_shards(self) -> None:
        """Adopt the sizes of the weights after this copy of a module got shards of them."""

    def to(self, *devices: DeviceLike, sharding_strategy: Strategy | None = None) -> None:
        """Place all weights, including shared ones, on a device, or on several by a strategy.

        Until `shard` cuts them, the weights are on the first device. Graphs that are already built
        keep the old device, which gives a `UserWarning`. Raises `GraphError`, a `ValueError`, if no
        device is given, if there are several without a strategy or with one for another number of
        devices, and if the weights are already sharded.
        """
        if not devices:
            raise GraphError(
                "at least one device is needed", hint="for example `to(DeviceRef.GPU(0))`"
            )
        if len(devices) > 1 and sharding_strategy is None:
            raise GraphError(
                f"{type(self).__name__} cannot be placed on {len(devices)} devices "
                "without a strategy",
                hint="use `sharding_strategy=` to state how its weights are split",
            )
        first, *_ = map(as_device, devices)
        if sharding_strategy is not None:
            require_strategy(sharding_strategy)
        if sharding_strategy is not None and sharding_strategy.devices != len(devices) > 1:
            raise GraphError(
                f"{type(self).__name__} is placed on {len(devices)} devices, but the "
                f"strategy is for {sharding_strategy.devices}",
                hint="use a strategy for the same number of devices",
            )
        if has_shards(self):
            raise GraphError(
                f"{type(self).__name__} is already sharded across several devices and "
                "cannot be moved",
                hint="choose the devices when sharding it",
            )
        weights = list(all_weights(self))
        _warn_of_earlier_graphs(weights, first)
        for weight in weights:
            weight.place(first)
            if sharding_strategy is not None:
                weight.sharding_strategy = sharding_strategy
        if sharding_strategy is not None:
            self.sharding_strategy = sharding_strategy


LayerV2 = Module


def _warn_of_earlier_graphs(weights: Iterable[Weight], device: DeviceRef) -> None:
    """Warn if weights move to another device after a graph has taken them."""
    late = [each for each in weights if each.is_in_a_graph and each.device != device]
    if late:
        warnings.warn(
            f"graphs that are already built keep `{late[0].name}` on {late[0].device}; "
            f"only graphs that are built from now on use {device}",
            stacklevel=3,
        )


def _join_names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _outline_layer(layer: Layer) -> str:
    """Return the class, weights and sublayers of a layer as text."""
    weights = [
        f"{name}: {_outline_weight(weight)}"
        for name, weight in vars(layer).items()
        if isinstance(weight, Weight)
    ]
    below = layer.sublayers.items()
    name = type(layer).__name__
    if not below:
        return f"{name}({', '.join(weights)})"
    parts = weights + [f"{name}: {_outline_below(found)}" for name, found in below]
    return f"{name}({_indent(parts)})"


def _outline_below(layer: Layer) -> str:
    """Return the text of a sublayer; equal neighbors in a list are shown once."""
    if not isinstance(layer, LayerList):
        return _outline_layer(layer)
    parts: list[str] = []
    first = 0
    for text, group in groupby(map(_outline_below, layer.sublayers.values())):
        count = len(list(group))
        numbers = str(first) if count == 1 else f"{first} to {first + count - 1}"
        parts.append(f"{numbers}: {text}")
        first += count
    return f"[{_indent(parts)}]" if parts else "[]"


def _indent(parts: list[str]) -> str:
    """Return parts as indented lines, after a line break."""
    lines = "\n".join(parts).splitlines()
    return "\n" + "".join(f"  {line}\n" for line in lines)


def _outline_weight(weight: Weight) -> str:
    """Return the type of a weight, and its encoding if it is quantized."""
    dtype, shape = weight.original_dtype_and_shape
    kind = str(TensorType(dtype, shape, weight.device))
    encoding = weight.quantization_encoding
    return kind if encoding is None else f"{kind} as {encoding.name}"


class Divisible(Module):
    """A module that defines how to cut its weights so that shards together compute its result.

    `Parallel` replaces such a module by its shards.
    """

    @abstractmethod
    def tensor_parallel(self, devices: int) -> Mapping[Weight, ShardingStrategy]:
        """Return the strategy of each weight; raises `ShardingError` if a device would be empty."""

    def widths(self, devices: int) -> list[int] | None:
        """Return the sizes of the shards' results along the last axis.

        They are concatenated along it. Returns None if the results of the shards are summed
        instead.
        """
        del devices
        return None

    def groups(self, count: int) -> Sequence[Divisible]:
        """Return `count` copies that each have some of the experts; their outputs add up.

        A module without experts returns only itself. Raises `ShardingError` if there are fewer
        experts than groups.
        """
        del count
        return [self]


class Staged(Divisible):
    """A divisible module whose shards need a sum over all shards before they compute the result."""

    @abstractmethod
    def begin(self, *args: Any, **kwargs: Any) -> tuple[Sequence[Value], Any]:
        """Return the values that are summed over all shards, and what the shard itself keeps."""

    @abstractmethod
    def finish(self, summed: Sequence[Value], kept: Any) -> Value:
        """Return the shard's part of the result, from these sums and what it kept."""

    def __call__(self, *args: Any, **kwargs: Any) -> Value:
        """Return the result of both stages."""
        return self.finish(*self.begin(*args, **kwargs))


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
