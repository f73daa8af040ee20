"""Graphs: operations in order, whose shapes and dtypes are checked when they are added."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Self

from weightctl.dtype import DType
from weightctl.errors import ArgumentTypeError, GraphError
from weightctl.graph.nesting import (
    is_placeholder,
    refuse_fixed_name,
    refuse_renamed,
    refuse_second_weight,
)
from weightctl.graph.ops import OPS
from weightctl.graph.scope import current_graph, graphs, layer_path, refusing
from weightctl.graph.types import TensorType
from weightctl.graph.value import Value
from weightctl.graph.weight import Weight
from weightctl.shape import Dim, Shape
from weightctl.split import part_shape
from weightctl.text.untyped import is_list, is_tuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from weightctl.graph.value import ValueLike
    from weightctl.split import Part
    from weightctl.weights.tree import Checkpoint


class GraphNode(NamedTuple):
    """One operation of a graph; `path` is the path of the layer that added it, or empty."""

    op: str
    inputs: tuple[Value, ...]
    attributes: Mapping[str, Any]
    outputs: tuple[Value, ...]
    path: str


class CutFrom(NamedTuple):
    """The whole weight that a shard is cut from, and the shard's `part` of it.

    Names and `is_placeholder` are relative to the graph's `weight_prefix`, as for other weights.
    """

    name: str
    is_placeholder: bool
    shape: Shape
    part: Part
    weight: Weight
    second_names: tuple[str, ...]


class _Current:
    """A descriptor that returns the graph of the innermost open `with`."""

    def __get__(self, _: object, __: object) -> Graph:
        return current_graph()


class Graph:
    """Operations on values, in the order they were added in `with Graph(...) as graph:`.

    `input_types` are the types of `inputs` and may have named dimensions. Every operation is added
    to the graph whose `with` is open, `Graph.current`. A graph may be entered again.
    `weight_prefix` is the start of weight names that a subgraph leaves open: each `ops.call`
    replaces it by its own prefix. `parent` is the graph that this one is a subgraph of.
    """

    current = _Current()

    def __init__(
        self,
        name: str,
        input_types: Iterable[TensorType] = (),
        *,
        weight_prefix: str = "",
        parent: Graph | None = None,
    ) -> None:
        self.name = name
        self.weight_prefix = weight_prefix
        self.parent = parent
        self.nodes: list[GraphNode] = []
        self.outputs: tuple[Value, ...] = ()
        self.subgraphs: dict[str, Graph] = {}
        self.weights_by_name: dict[str, Weight] = {}
        # The value of each weight, by the identity of the weight; the nodes keep the weights alive.
        self._weight_values: dict[int, Value] = {}
        self._weight_nodes: dict[int, GraphNode] = {}
        # Dequantized weights, by the number of the quantized value and the dtype.
        self.dequantized: dict[tuple[int, DType], Value] = {}
        # Created on first use.
        self._weights: Checkpoint | None = None
        self._count = 0
        self.inputs: list[Value] = [
            self._add("input", (), {"index": number}, (kind,))[0]
            for number, kind in enumerate(_input_types(name, input_types))
        ]

    def __enter__(self) -> Self:
        graphs.set((*graphs.get(), self))
        return self

    def __exit__(self, *_: object) -> None:
        graphs.set(graphs.get()[:-1])

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copied or unpickled graph, whose weights are other objects now."""
        vars(self).update(state)
        self._weight_values = {
            id(node.attributes["weight"]): node.outputs[0] for node in self._weight_nodes.values()
        }

    def has(self, weight: Weight) -> bool:
        """Whether this weight has been added."""
        return id(weight) in self._weight_values

    def output(self, *values: ValueLike) -> None:
        """Set the outputs of the graph, in this order.

        Raises `GraphError` for values of another graph, or if the outputs are already set.
        """
        if self.outputs:
            raise GraphError(f"graph `{self.name}` already has outputs")
        # The value may be of any type: a caller's types are not checked.
        given: tuple[Any, ...] = values
        if len(given) == 1 and (is_list(given[0]) or is_tuple(given[0])) and _has_value(given[0]):
            raise GraphError(
                f"the outputs of graph `{self.name}` are given as one {type(given[0]).__name__}",
                hint="pass them as separate arguments: `graph.output(*values)`",
            )
        with self:
            self.outputs = tuple(self._dequantize(self.value_of(value)) for value in values)

    def add_weight(self, weight: Weight) -> Value:
        """Add a weight in its current state, unless the graph has it, and return its value.

        Later changes of the weight do not change the graph. Raises `GraphError` if another weight
        has the same name, also in a subgraph, if the weight was renamed after it was added, or if a
        subgraph that is called for several layers would use the weight of one layer. Raises
        `ArgumentTypeError` if the argument is not a weight.
        """
        _require_weight(weight)
        before = self._weight_values.get(id(weight))
        if before is not None:
            refuse_renamed(self, weight)
            return before
        refuse_second_weight(self, weight)
        name, is_open = weight.name, is_placeholder(self, weight.name)
        if not is_open:
            refuse_fixed_name(self, name)
        original = TensorType(*weight.original_dtype_and_shape, weight.device)
        attributes = {
            "name": name.removeprefix(self.weight_prefix) if is_open else name,
            "is_placeholder": is_open,
            "weight": weight,
            "original": original,
            "encoding": weight.quantization_encoding,
            "cut_from": self._cut_from(weight),
            "align": weight.align or 1,
            "second_names": _second_names(self, weight, is_open=is_open),
        }
        (value,) = self._add("weight", (), attributes, (weight.type,))
        weight.is_in_a_graph = True
        self.weights_by_name[weight.name] = weight
        self._weight_values[id(weight)] = value
        self._weight_nodes[value.number] = self.nodes[-1]
        return value

    def weight_node(self, value: Value) -> GraphNode | None:
        """Return the node of a value that is a weight, None for a computed value.

        Its attributes describe the weight when it was added: `name`, without the graph's
        `weight_prefix` if `is_placeholder`; `original`, the type of its values on the weight's
        device; `encoding`, the encoding of its blocks or None; `cut_from`, the whole weight of a
        shard or None; `align`, the alignment of its data in bytes; `second_names`, in the form of
        `name`; and `weight`, the weight itself.
        """
        return self._weight_nodes.get(value.number)

    def weight_of(self, value: Value) -> Weight | None:
        """Return the weight that a value of this graph is, None for a computed value."""
        node = self.weight_node(value)
        return None if node is None else node.attributes["weight"]

    def weights(self) -> Checkpoint:
        """Return the graph's own tree, whose `allocate` declares weights by their path.

        It is the same tree each time, so each name is one weight.
        """
        if self._weights is None:
            from weightctl.weights.from_arrays import declare_weights

            self._weights = declare_weights()
        return self._weights

    def add_subgraph(
        self, name: str, input_types: Iterable[TensorType], weight_prefix: str = ""
    ) -> Graph:
        """Create a graph that this one can call; raises `GraphError` if the name is taken.

        By default its `weight_prefix` is that of this graph.
        """
        if name in self.subgraphs:
            raise GraphError(
                f"graph `{self.name}` already has a subgraph `{name}`",
                hint="build the subgraph once and call it with another prefix, or use another name",
            )
        prefix = weight_prefix or self.weight_prefix
        made = Graph(name, input_types, weight_prefix=prefix, parent=self)
        self.subgraphs[name] = made
        return made

    def append(
        self, op: str, inputs: Sequence[ValueLike], attributes: Mapping[str, Any]
    ) -> tuple[Value, ...]:
        """Add an operation and return its results.

        Raises `GraphError` that names the operation, its arguments and the current layer if the
        arguments do not fit.
        """
        record = OPS[op]
        with refusing(attributes.get("function", op), *inputs):
            values = self._values(inputs, takes_blocks=record.takes_blocks)
        with refusing(attributes.get("function", op), *values, **attributes):
            types = [value.type for value in values]
            if not record.crosses_devices:
                _refuse_devices(types)
            found = record.infer(*types, **attributes)
        # `infer` returns one type, or a tuple of types.
        results = found if isinstance(found, tuple) else (found,)
        return self._add(op, tuple(values), attributes, results)

    def value_of(self, value: ValueLike | Shape, like: Value | None = None) -> Value:
        """Return an argument as a value of this graph; Python numbers take the dtype of `like`.

        Raises `GraphError` for a value of another graph.
        """
        if isinstance(value, Weight):
            return self.add_weight(value)
        if isinstance(value, Value):
            if value.graph is not self:
                raise _foreign(value, self)
            return value
        if isinstance(value, Dim | Shape | str):
            return _sizes(value, like)
        from weightctl.graph.ops.create import constant

        if like is None:
            return constant(value)
        if isinstance(value, bool | int | float):
            _refuse_loss(value, like)
            return constant(value, dtype=like.dtype, device=like.device)
        return constant(value, device=like.device)

    def dump(self) -> str:
        """Return the operations as text, one per line, followed by those of subgraphs."""
        from weightctl.graph.dump import dump

        return dump(self)

    __str__ = dump

    def __repr__(self) -> str:
        inputs = ", ".join(str(value.type) for value in self.inputs)
        outputs = ", ".join(str(value.type) for value in self.outputs)
        return f"<Graph {self.name}({inputs}) -> ({outputs}): {len(self.nodes)} operations>"

    def _cut_from(self, weight: Weight) -> CutFrom | None:
        whole, part, shape = weight.shard_of, weight.part, weight.whole_shape
        if whole is None or part is None or shape is None:
            return None
        now, own = (each.original_dtype_and_shape[1] for each in (whole, weight))
        if now != shape or own != (part_shape(shape.sizes, part) if part else shape):
            raise GraphError(
                f"`{weight.name}` of shape {own.text} is a shard of `{whole.name}`, whose "
                f"shape changed from {shape.text} to {now.text}",
                hint="set the shapes of weights before sharding them",
            )
        is_open = is_placeholder(self, whole.name)
        name = whole.name.removeprefix(self.weight_prefix) if is_open else whole.name
        second_names = _second_names(self, whole, is_open=is_open)
        return CutFrom(name, is_open, shape, part, whole, second_names)

    def _values(self, inputs: Sequence[ValueLike], *, takes_blocks: bool) -> list[Value]:
        like = next((given for given in inputs if isinstance(given, Value)), None)
        if like is not None and not all(isinstance(given, Value) for given in inputs):
            # Numbers next to a quantized weight take the dtype of its values, not of its bytes.
            like = self._dequantize(self.value_of(like))
        values = [self.value_of(given, like) for given in inputs]
        return values if takes_blocks else [self._dequantize(value) for value in values]

    def _dequantize(self, value: Value) -> Value:
        from weightctl.graph.ops.quantized import dequantize_value

        return value if self.weight_node(value) is None else dequantize_value(value)

    def _add(
        self,
        op: str,
        inputs: tuple[Value, ...],
        attributes: Mapping[str, Any],
        types: Iterable[TensorType],
    ) -> tuple[Value, ...]:
        outputs: list[Value] = []
        for kind in types:
            outputs.append(Value.of(self, self._count, kind))
            self._count += 1
        self.nodes.append(GraphNode(op, inputs, attributes, tuple(outputs), layer_path()))
        return tuple(outputs)


def _require_weight(given: Any) -> None:
    if not isinstance(given, Weight):
        raise ArgumentTypeError(
            f"a graph takes a Weight, not {type(given).__name__}",
            hint="use `ops.constant(numbers)` for constant values, `node.allocate()` for a "
            "node of a tree, or `Weight(name, dtype, shape)` for another weight",
        )


def _has_value(given: Iterable[object]) -> bool:
    return any(isinstance(each, Value) for each in given)


def _second_names(graph: Graph, weight: Weight, *, is_open: bool) -> tuple[str, ...]:
    """Return the second names of a weight that are placeholders if its first name is one."""
    return tuple(
        name.removeprefix(graph.weight_prefix) if is_open else name
        for name in weight.second_names
        if is_placeholder(graph, name) == is_open
    )


def _foreign(value: Value, graph: Graph) -> GraphError:
    owner = value.graph
    above = owner
    while above is not None and above is not graph:
        above = above.parent
    if owner is not None and above is graph:
        return GraphError(
            f"a value of subgraph `{owner.name}` is used in graph `{graph.name}`, which "
            "calls that subgraph",
            hint="the value exists once per call: return it from the layer, so that `ops.call` "
            "returns it, or build the layer without `build_subgraph`",
        )
    name = "none" if owner is None else f"`{owner.name}`"
    return GraphError(
        f"a value of graph {name} is used in graph `{graph.name}`",
        hint="make it an input of the graph that uses it",
    )


def _input_types(name: str, given: Any) -> list[TensorType]:
    kinds: list[Any] = list(given) if hasattr(given, "__iter__") else [given, None]
    if not all(isinstance(kind, TensorType) for kind in kinds):
        raise GraphError(
            f"{given!r} is not a valid list of inputs for graph `{name}`",
            hint='use a list of TensorTypes, such as `[TensorType(DType.float32, ["batch", 4])]`',
        )
    return kinds


def _sizes(value: Dim | Shape | str, like: Value | None) -> Value:
    from weightctl.graph.ops.create import dims

    if like is None:
        return dims(value)
    sizes = dims(value, device=like.device)
    if like.dtype is DType.bool:
        raise GraphError(
            f"the size {value} is an integer, and cannot be combined with {like.type}",
            hint="compare it first, such as `Value(dim) > 0`",
        )
    return sizes if like.dtype is sizes.dtype else sizes.cast(like.dtype)


def _refuse_loss(number: float, like: Value) -> None:
    if like.dtype is DType.bool and not isinstance(number, bool):
        raise GraphError(
            f"the number {number} cannot be combined with {like.type}",
            hint="use True or False, or cast the tensor to a numeric dtype",
        )
    if isinstance(number, float) and not (like.dtype.is_float or like.dtype.is_complex):
        raise GraphError(
            f"the float {number} cannot be combined with {like.type}, which stores only integers",
            hint="cast the tensor to a float dtype first",
        )


def _refuse_devices(types: Sequence[TensorType]) -> None:
    devices = {kind.device for kind in types}
    if len(devices) > 1:
        raise GraphError(
            f"the operands are on {' and '.join(sorted(map(str, devices)))}",
            hint="move them to one device with `.to(device)`",
        )
