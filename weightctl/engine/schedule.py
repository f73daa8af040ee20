"""The schedule of a graph: operations in order, calls expanded, unused operations removed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from weightctl.device import CPU
from weightctl.engine.inputs import has_names, name_of, resolve_attributes, simplify_shape
from weightctl.engine.weight_forms import ShardedWhole, WeightForm
from weightctl.errors import EngineError
from weightctl.graph.ops import OPS
from weightctl.graph.ops.chosen_rows import CHOSEN_ROWS
from weightctl.graph.ops.device_blocks import decodes_on

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from weightctl.dtype import DType
    from weightctl.engine.inputs import Size
    from weightctl.graph.graph import CutFrom, Graph, GraphNode, Value
    from weightctl.graph.ops.rules import Op
    from weightctl.graph.types import TensorType
    from weightctl.shape import Dim, Shape

# Where an operand is: in a slot, or in the registry as a weight, which is loaded on use.
Place: TypeAlias = "int | WeightForm"


class GraphRun(NamedTuple):
    """A run of a graph: the whole graph, or one call of a subgraph.

    `caller` is the number of the run that calls it, -1 for the whole graph. `prefix` precedes the
    names of placeholder weights. `names` gives the subgraph's named dimensions in terms of the
    caller's.
    """

    caller: int
    name: str
    prefix: str
    names: Mapping[str, Dim]


@dataclass(slots=True)
class EmptyRegion:
    """Consecutive operations whose results are all empty if the dimension `name` has size 0.

    Then the engine continues with operation `end`. `outputs` are the slots, types and shapes of
    results that are used after the region, and `frees` are slots that are not read after it. If
    shapes do not depend on other names, the engine sets `made`, the results by slot.
    """

    name: str
    end: int
    outputs: tuple[tuple[int, TensorType, tuple[Size, ...]], ...]
    frees: tuple[int, ...]
    made: Sequence[tuple[int, torch.Tensor]] | None = None

    @property
    def is_fixed(self) -> bool:
        """Whether no shape depends on a name but that of the region."""
        dims = {dim for _, _, shape in self.outputs for dim in shape}
        return all(isinstance(dim, int) or dim == self.name for dim in dims)


@dataclass(slots=True)
class Operation:
    """One operation to run.

    `types` are those of its results, and `shapes` their shapes, as the engine compares them.
    `call` is the number of the run that it is part of. After the operation, the slots in `frees`
    are not read again, and the weights in `keeps` are used by the next operation that uses weights.
    `region` is the region that begins with the operation, if any, and `forms` are the weights that
    the operation uses, in the forms before they are cast and transposed; `slots` are those of its
    other inputs. `table` is the weight
    whose rows the operation picks, if it does; the second input has the row numbers. The first run
    sets `torch_types`: dtypes and devices of the results, and whether they are on the CPU.
    """

    op: Op
    path: str
    call: int
    lower: Callable[..., Any]
    inputs: tuple[Place, ...]
    attributes: Mapping[str, Any]
    is_resolved: bool
    outputs: tuple[int, ...]
    types: tuple[TensorType, ...]
    shapes: tuple[tuple[Size, ...], ...]
    frees: tuple[int, ...] = ()
    keeps: frozenset[WeightForm] = frozenset()
    region: EmptyRegion | None = None
    forms: tuple[WeightForm, ...] = field(init=False)
    slots: tuple[int, ...] = field(init=False)
    table: WeightForm | None = field(init=False)
    torch_types: tuple[tuple[torch.dtype, torch.device, bool], ...] | None = None

    def __post_init__(self) -> None:
        self.forms = tuple(each.base for each in self.inputs if isinstance(each, WeightForm))
        self.slots = tuple(each for each in self.inputs if not isinstance(each, WeightForm))
        first = self.inputs[0] if self.op.picks_rows else None
        self.table = first if isinstance(first, WeightForm) else None


class Schedule(NamedTuple):
    """The operations of a graph, the slots of its inputs, and the places of its outputs."""

    inputs: tuple[int, ...]
    operations: tuple[Operation, ...]
    outputs: tuple[Place, ...]
    calls: tuple[GraphRun, ...]

    @property
    def forms(self) -> list[WeightForm]:
        """The weights that are used, each form listed once, as the graph reads them."""
        used = [place for operation in self.operations for place in operation.inputs]
        places = dict.fromkeys([*used, *self.outputs])
        return [place for place in places if isinstance(place, WeightForm)]


def schedule(graph: Graph) -> Schedule:
    """Return the operations of a graph; those of a subgraph are repeated for each call.

    Raises `EngineError` if a weight has a dimension without a fixed size.
    """
    inputs = tuple(range(len(graph.inputs)))
    unfolding = _Unfolding(len(inputs))
    outputs = unfolding.run(graph, inputs, GraphRun(-1, graph.name, "", {}))
    operations = _drop_unused(unfolding.operations, outputs)
    _end_lives(operations, inputs, outputs)
    _find_regions(operations)
    return Schedule(inputs, tuple(operations), outputs, tuple(unfolding.calls))


class _Unfolding:
    """Collects the operations of a graph and of its calls, with one numbering of the slots."""

    def __init__(self, slots: int) -> None:
        self.operations: list[Operation] = []
        self.calls: list[GraphRun] = []
        self._slots = slots
        self._sizes: dict[Size, Size] = {}

    def run(self, graph: Graph, inputs: Sequence[Place], call: GraphRun) -> tuple[Place, ...]:
        """Add the operations of a graph for the given inputs; return the places of its outputs."""
        number = len(self.calls)
        self.calls.append(call)
        places: dict[int, Place] = {}
        for node in graph.nodes:
            given = tuple(places[value.number] for value in node.inputs)
            found = self._places(node, given, inputs, number)
            for value, place in zip(node.outputs, found, strict=True):
                places[value.number] = place
        return tuple(places[value.number] for value in graph.outputs)

    def _places(
        self, node: GraphNode, given: tuple[Place, ...], inputs: Sequence[Place], number: int
    ) -> Sequence[Place]:
        if node.op == "input":
            index: int = node.attributes["index"]
            return (inputs[index],)
        if node.op == "weight":
            return (_form(node, self.calls[number].prefix),)
        if node.op == "call":
            return self._add_call(node, given, number)
        if node.op == "dequantize":
            return (_dequantized_form(node, given[0]),)
        if node.op in _VIEWS and isinstance(given[0], WeightForm):
            form = _VIEWS[node.op](given[0], node.attributes)
            if form is not None:
                return (form,)
        return self._add_operation(node, given, number)

    def _add_call(
        self, node: GraphNode, given: tuple[Place, ...], number: int
    ) -> tuple[Place, ...]:
        subgraph: Graph = node.attributes["subgraph"]
        prefix: str = node.attributes["prefix"]
        if node.attributes["is_placeholder"]:
            prefix = self.calls[number].prefix + prefix
        names = _names(subgraph.inputs, node.inputs)
        return self.run(subgraph, given, GraphRun(number, subgraph.name, prefix, names))

    def _add_operation(
        self, node: GraphNode, given: tuple[Place, ...], number: int
    ) -> tuple[int, ...]:
        slots = tuple(range(self._slots, self._slots + len(node.outputs)))
        self._slots += len(slots)
        is_resolved = not has_names(node.attributes)
        attributes = resolve_attributes(node.attributes, {}) if is_resolved else node.attributes
        types = tuple(value.type for value in node.outputs)
        op = OPS[node.op]
        # Only calls and `dequantize` have no `lower`, and they do not become operations.
        lower = cast("Callable[..., Any]", op.lower)
        shapes = tuple(map(self._share, types))
        self.operations.append(
            Operation(
                op, node.path, number, lower, given, attributes, is_resolved, slots, types, shapes
            )
        )
        return slots

    def _share(self, kind: TensorType) -> tuple[Size, ...]:
        """Return the shape of a type, with the same object for equal dimensions."""
        return tuple(self._sizes.setdefault(each, each) for each in simplify_shape(kind.shape))


def _names(inputs: Sequence[Value], given: Sequence[Value]) -> dict[str, Dim]:
    """Return the caller's dimension for each named dimension of a subgraph's inputs."""
    return {
        name: dim
        for value, other in zip(inputs, given, strict=True)
        for own, dim in zip(value.shape, other.shape, strict=True)
        if (name := name_of(own)) is not None
    }


def _form(node: GraphNode, prefix: str) -> WeightForm:
    attributes = node.attributes
    name: str = (prefix if attributes["is_placeholder"] else "") + attributes["name"]
    shape: Shape = attributes["original"].shape
    kind = node.outputs[0].type
    encoding, weight = attributes["encoding"], id(attributes["weight"])
    whole = _whole(attributes["cut_from"], prefix)
    # Blocks that a device cannot decode stay on the CPU; their decoded values go to the device.
    is_there = encoding is None or decodes_on(kind.device.kind, encoding.encoding)
    device = kind.device if is_there else CPU
    align = attributes["align"]
    before = prefix if attributes["is_placeholder"] else ""
    others = tuple(before + each for each in attributes["second_names"])
    sizes = _require_static(shape, name)
    return WeightForm(name, kind.dtype, sizes, device, encoding, weight, whole, align, others)


def _whole(cut: CutFrom | None, prefix: str) -> ShardedWhole | None:
    """Return the whole weight that a shard is cut from, None for a weight that is not a shard."""
    if cut is None:
        return None
    before = prefix if cut.is_placeholder else ""
    name, others = before + cut.name, tuple(before + each for each in cut.second_names)
    return ShardedWhole(name, _require_static(cut.shape, name), id(cut.weight), cut.part, others)


def _dequantized_form(node: GraphNode, place: Place) -> WeightForm:
    """Return the form of a dequantized weight: values, decoded on use from any stored encoding."""
    # `dequantize` takes weights only, so the place is a form.
    blocks = cast("WeightForm", place)
    kind = node.outputs[0].type
    sizes = _require_static(kind.shape, blocks.name)
    return blocks._replace(dtype=kind.dtype, shape=sizes, device=kind.device)


def _cast_form(form: WeightForm, attributes: Mapping[str, Any]) -> WeightForm | None:
    """Return the form of a weight that is cast, so that a resident one is cast once.

    Returns None for blocks, and for casts other than from floats to floats.
    """
    dtype: DType = attributes["dtype"]
    if form.blocks is not None or not (form.dtype.is_float and dtype.is_float):
        return None
    return form._replace(read_as=dtype) if form.read_as in {None, dtype} else None


def _transposed_form(form: WeightForm, attributes: Mapping[str, Any]) -> WeightForm | None:
    """Return the form of a matrix that is transposed; None for blocks and for other shapes."""
    axes = {attributes["axis_1"] % 2, attributes["axis_2"] % 2}
    if form.blocks is not None or len(form.shape) != _MATRIX or len(axes) != _MATRIX:
        return None
    return form._replace(is_transposed=not form.is_transposed)


_MATRIX = 2
# Operations that only change how a weight is read: they become a part of its form.
_VIEWS = {"cast": _cast_form, "transpose": _transposed_form}


def _require_static(shape: Shape, name: str) -> tuple[int, ...]:
    if not shape.is_static:
        raise EngineError(
            f"the weight `{name}` is declared as {shape.text}, but only inputs can have "
            "sizes that are defined later",
            hint="declare the weight with the stored sizes",
        )
    return shape.sizes


def _drop_unused(operations: Sequence[Operation], outputs: Sequence[Place]) -> list[Operation]:
    """Return the operations whose results are used, or that have another effect."""
    wanted = set(outputs)
    kept: list[Operation] = []
    for operation in reversed(operations):
        if _is_seen(operation) or not wanted.isdisjoint(operation.outputs):
            wanted.update(operation.inputs)
            kept.append(operation)
    return kept[::-1]


def _is_seen(operation: Operation) -> bool:
    """Whether an operation has a visible effect, or exchanges values with other processes."""
    ranks: int | None = operation.attributes.get("ranks")
    return operation.op.is_seen or (ranks or 0) > len(operation.inputs)


def _end_lives(
    operations: Sequence[Operation], inputs: Sequence[int], outputs: Sequence[Place]
) -> None:
    """Set `frees` and `keeps` of every operation."""
    alive: set[Place] = set(outputs)
    later: frozenset[WeightForm] = frozenset(
        place.base for place in outputs if isinstance(place, WeightForm)
    )
    for number, operation in reversed(list(enumerate(operations))):
        seen = {
            place
            for place in (*operation.inputs, *operation.outputs)
            if not isinstance(place, WeightForm)
        }
        if not number:
            seen |= set(inputs)
        operation.frees = tuple(sorted(seen - alive))
        alive |= seen
        if forms := frozenset(operation.forms):
            operation.keeps = forms & later
            later = forms


def _find_regions(operations: Sequence[Operation]) -> None:
    """Set `region` of the operations that begin one: on the rows that a column chooses."""
    known: dict[int, set[str]] = {}
    number = 0
    while number < len(operations):
        first = operations[number]
        if first.op is CHOSEN_ROWS:
            known.setdefault(first.call, set()).update(first.attributes["names"])
        names = _common_names(first) & known.get(first.call, set())
        end = number + 1
        if names and first.op is not CHOSEN_ROWS:
            name = min(names)
            while (
                end < len(operations)
                and operations[end].call == first.call
                and name in _common_names(operations[end])
            ):
                end += 1
            first.region = _make_region(operations[number:end], name, end)
        number = end


def _common_names(operation: Operation) -> set[str]:
    """Return the names of dimensions that all results of an operation have."""
    if _is_seen(operation):
        return set()
    first, *others = (set(shape) for shape in operation.shapes)
    return {name for name in first.intersection(*others) if isinstance(name, str)}


def _make_region(operations: Sequence[Operation], name: str, end: int) -> EmptyRegion:
    frees = {slot for each in operations for slot in each.frees}
    made = [
        result
        for each in operations
        for result in zip(each.outputs, each.types, each.shapes, strict=True)
    ]
    outputs = tuple(result for result in made if result[0] not in frees)
    before = frees - {slot for slot, _, _ in made}
    return EmptyRegion(name, end, outputs, tuple(sorted(before)))
