"""Sessions, which load graphs with their weights and run them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from contextlib import nullcontext
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from weightctl.device import CPU
from weightctl.dtype import DType
from weightctl.engine.arrays import make_result_buffer, tensor_of
from weightctl.engine.bound_weights import BoundWeights
from weightctl.engine.devices import devices_of, exact_products, require_devices, require_placed
from weightctl.engine.inputs import prepare_inputs
from weightctl.engine.run import run
from weightctl.engine.schedule import schedule
from weightctl.engine.stored_weights import slice_weight, to_stored_weight
from weightctl.engine.weight_forms import (
    NAMES,
    BindingProblem,
    WeightForm,
    interpret_info,
    mismatch,
)
from weightctl.errors import EngineError, MissingTensorError, WeightctlError
from weightctl.text.sizes import parse_size
from weightctl.weights.buffer import Buffer
from weightctl.weights.data import WeightData
from weightctl.weights.equal import difference
from weightctl.weights.from_arrays import as_checkpoint
from weightctl.weights.protocol import Weights
from weightctl.weights.steps.sliced import unfit
from weightctl.weights.tree import (
    Checkpoint,
    allocations_of,
    find_stored_name,
    header_of,
    info_of,
    source_of,
)

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator

    from torch import Tensor

    from weightctl.device import DeviceRef
    from weightctl.engine.run import ProductObserver
    from weightctl.engine.stored_weights import StoredWeight
    from weightctl.graph.graph import Graph
    from weightctl.graph.types import TensorType
    from weightctl.weights.data import Source
    from weightctl.weights.info import TensorInfo


# The number of missing names for which similar names are suggested, and the number of names that
# are compared: the comparison is slow.
_MOST_HINTS, _MOST_NAMES = 8, 1000
_REGISTRY = (
    "pass them to `load` as weights_registry: a tree from open_weights, or a mapping by name"
)
_TIED = "give only one of the two, or untie the weights in the model"


class _Allocated:
    """A tensor of a tree, converted for each use and not kept."""

    def __init__(self, node: Checkpoint) -> None:
        self._node = node
        self.info: TensorInfo = _as_asked(node).info
        self.source: Source = source_of(node)

    is_borrowed = False

    @property
    def key(self) -> Hashable:
        """The source, the name of the tensor in it, and the encoding after the conversion."""
        name = header_of(self._node).aliases.get(self._node.name, self._node.name)
        return (id(self.source), name, self.info.encoding)

    def raw(self) -> Tensor:
        """Return the converted bytes in new memory."""
        memory = _as_asked(self._node).view()
        return tensor_of(Buffer(memory, DType.uint8, (memory.nbytes,)))

    def expect(self) -> None:
        """Do nothing: the conversion takes longer than reading."""


def _find_allocated(entry: object, form: WeightForm) -> _Allocated | None:
    """Return the converted tensor that a weight of the graph was allocated as; None if it was not.

    `Weights.allocate` can ask for another dtype or encoding. The conversion applies only if the
    form's weight came from the tree of this entry, and if the result is blocks or has the dtype of
    the form. Any other weight with the name gets the values as they are stored.
    """
    if not isinstance(entry, Checkpoint) or not allocations_of(entry).gave(form.weight):
        return None
    info = _as_asked(entry).info
    is_meant = info.encoding.dtype in {None, form.dtype} and not mismatch(info, form)
    return _Allocated(entry) if is_meant and info.encoding != info_of(entry).encoding else None


def _as_asked(node: Checkpoint) -> WeightData:
    """Return a node's data, converted as `allocate` requested; nothing is read yet."""
    return allocations_of(node).take(node.name, find_stored_name(node))


def bind(
    graph_name: str, forms: Iterable[WeightForm], registry: Weights | Mapping[str, Any] | None
) -> dict[WeightForm, StoredWeight]:
    """Return where each weight of a graph is stored.

    Raises `EngineError` if `registry` is neither a tree nor a mapping, or if weights are missing,
    have another shape, or are stored in a type that does not convert to the graph's; that error
    names all of these weights.
    """
    _require_registry({} if registry is None else registry)
    given = _searchable(registry)
    forms = list(forms)
    bound = {form: _resolve_form(given, form) for form in forms}
    names = {wanted.name for wanted in bound.values()}
    found: dict[WeightForm, StoredWeight] = {}
    entries: dict[str, _RegistryEntry | None] = {}
    problems: dict[str, BindingProblem] = {}
    for form, wanted in bound.items():
        name = wanted.name
        if name not in entries:
            try:
                entries[name] = _entry(given, wanted, names)
            except KeyError:
                entries[name] = None
                problems[name] = BindingProblem("missing", NAMES)
            except WeightctlError as error:
                entries[name] = None
                problems[name] = BindingProblem(error.message, error.hint)
        entry = entries[name]
        if entry is None:
            continue
        place = _find_allocated(entry.given, wanted) or entry.place
        if problem := mismatch(place.info, wanted):
            problems[name] = problem
        elif wanted is not form and form.whole is not None:
            info = interpret_info(place.info, wanted)
            if reason := unfit(info, form.whole.part):
                statement = f"stored as {info.encoding} {list(info.shape)}; {reason}"
                problems[form.name] = BindingProblem(statement, "")
            else:
                place = slice_weight(place, info, form.whole.part)
        found[form] = place
    if problems:
        _add_near(problems, _spare(given, names))
        raise _refusal(graph_name, problems, is_empty=registry is None)
    return found


class _RegistryEntry(NamedTuple):
    """The entry of a registry for a weight, and where its bytes are stored."""

    given: Any
    place: StoredWeight


def _entry(
    registry: Checkpoint | Mapping[str, Any], wanted: WeightForm, names: set[str]
) -> _RegistryEntry:
    """Return a registry's entry for a weight, under its name or one of its second names.

    A second name that another weight of the graph has is ignored. Raises `KeyError` if there is no
    entry, and `EngineError` if two names have different values.
    """
    others = [each for each in wanted.second_names if each not in names and _has(registry, each)]
    try:
        entry = _RegistryEntry(registry[wanted.name], _place(registry[wanted.name], wanted.name))
    except KeyError:
        if not others:
            raise
        first = others.pop(0)
        entry = _RegistryEntry(registry[first], _place(registry[first], first))
    for second in others:
        place = _place(registry[second], second)
        if place.key == entry.place.key:
            continue
        if problem := difference(_data_of(entry.given), _data_of(registry[second])):
            raise EngineError(f"`{second}` is another name of it, but {problem}", hint=_TIED)
    return entry


def _place(entry: Any, name: str) -> StoredWeight:
    try:
        return to_stored_weight(entry, name)
    except MissingTensorError as error:
        if isinstance(entry, WeightData):
            # The entry exists but has no data, so `KeyError` would be misleading.
            raise EngineError(error.message, hint=error.hint) from None
        raise


def _data_of(entry: Any) -> WeightData:
    return entry.data() if isinstance(entry, Weights) else WeightData.from_dlpack(entry, "")


def _resolve_form(registry: Checkpoint | Mapping[str, Any], form: WeightForm) -> WeightForm:
    """Return the form to look up: for a shard without an entry of its own, the whole weight's."""
    whole = form.whole
    if whole is None or _has(registry, form.name):
        return form
    return form._replace(
        name=whole.name,
        shape=whole.shape,
        weight=whole.weight,
        whole=None,
        second_names=whole.second_names,
    )


def _has(registry: Checkpoint | Mapping[str, Any], name: str) -> bool:
    return registry[name].exists() if isinstance(registry, Checkpoint) else name in registry


def _require_registry(given: object) -> None:
    if not isinstance(given, Weights | Mapping):
        raise EngineError(
            f"weights_registry must be a mapping, not a {type(given).__name__}",
            hint="use a tree from open_weights, or a mapping from names to arrays",
        )


def _searchable(
    registry: Weights | Mapping[str, Any] | None,
) -> Checkpoint | Mapping[str, Any]:
    """Return a registry as an object that returns entries by the name of a weight."""
    if registry is None:
        return {}
    return as_checkpoint(registry) if isinstance(registry, Weights) else registry


def _spare(registry: Checkpoint | Mapping[str, Any], wanted: set[str]) -> list[str]:
    """Return names in a registry that the graph does not use: suggestions for missing names."""
    if isinstance(registry, Checkpoint):
        below = registry.name and f"{registry.name}."
        names = [name.removeprefix(below) for name, _ in registry.items()]
    else:
        # Keys of a mapping may be of any type; only text can be a misspelled name.
        names = [name for name in cast("Iterable[object]", registry) if isinstance(name, str)]
    return list(islice((name for name in names if name not in wanted), _MOST_NAMES))


def _add_near(problems: dict[str, BindingProblem], names: list[str]) -> None:
    missing = [name for name, problem in problems.items() if problem.reason == "missing"]
    for name in missing[:_MOST_HINTS]:
        if near := difflib.get_close_matches(name, names, n=1):
            problems[name] = BindingProblem(f"missing (did you mean `{near[0]}`?)", NAMES)


def _refusal(
    graph_name: str, problems: Mapping[str, BindingProblem], *, is_empty: bool
) -> EngineError:
    count = "1 weight" if len(problems) == 1 else f"{len(problems)} weights"
    lines = "".join(f"\n  `{name}`: {problem.reason}" for name, problem in problems.items())
    # A dictionary removes duplicates and keeps the order.
    hints = dict.fromkeys(problem.hint for problem in problems.values() if problem.hint)
    hint = _REGISTRY if is_empty else "; ".join(hints)
    return EngineError(f"{count} of graph `{graph_name}` cannot be loaded:{lines}", hint=hint)


class InferenceSession:
    """Runs graphs with torch on the given devices, by default on the CPU.

    `DeviceRef.CPU()` is always included. Raises `EngineError` if torch is not installed or a device
    does not exist.
    """

    def __init__(self, devices: DeviceRef | Iterable[DeviceRef] = (CPU,)) -> None:
        self.devices = devices_of(devices)
        require_devices(self.devices)

    def load(
        self,
        graph: Graph,
        weights_registry: Weights | Mapping[str, Any] | None = None,
        *,
        resident: bool = False,
        memory: int | str = 0,
        observe: ProductObserver | None = None,
        rounds_bf16: bool = False,
    ) -> LoadedGraph:
        """Return the graph with its weights, ready to run.

        `weights_registry` is a checkpoint's tree, or a mapping from names to nodes of trees,
        `WeightData` or arrays; it may have more entries than the graph uses. It accepts the same
        values as `Module.load_state_dict`: in the dtypes of the weights or dtypes that convert
        without loss, at any alignment, and under any name of a shared weight. Each weight is read
        when its operation runs and dropped afterwards, so a model may be larger than memory; only
        the needed rows of an embedding table are read. With `resident`, weights are read once, now,
        and kept: values on their device, blocks as they are stored. With `memory`, a number of
        bytes or a size such as "4GB", weights are kept as stored after the first run, as far as
        they fit, so that further runs read less. `observe` is called after each product
        with a weight, with the weight's name and the left operand. With `rounds_bf16`, vectors on
        the CPU are rounded to bfloat16 before they are multiplied with weights that are stored in
        it; these products are faster on some processors, and less exact. Raises `EngineError` that
        names all weights which are missing or do not fit, and if the graph is placed on a device
        that the session does not have, and `WeightctlError` if `memory` is not a size.
        """
        _require_graph(graph)
        room = parse_size(memory) if isinstance(memory, str) else memory
        return LoadedGraph(
            graph,
            self.devices,
            weights_registry,
            resident=resident,
            memory=room,
            observe=observe,
            rounds_bf16=rounds_bf16,
        )

    def __repr__(self) -> str:
        return f"InferenceSession(devices=[{', '.join(map(str, self.devices))}])"


class LoadedGraph:
    """A graph with its weights, made by `InferenceSession.load`; calling it runs the graph."""

    def __init__(
        self,
        graph: Graph,
        devices: Iterable[DeviceRef],
        weights_registry: Weights | Mapping[str, Any] | None,
        *,
        resident: bool,
        memory: int,
        observe: ProductObserver | None = None,
        rounds_bf16: bool = False,
    ) -> None:
        if not graph.outputs:
            raise EngineError(
                f"graph `{graph.name}` has no outputs",
                hint="define them with `graph.output(value)`",
            )
        used = set(_devices(graph))
        require_placed(graph.name, used, devices)
        self._uses_gpu = any(device.kind != "cpu" for device in used)
        self.name = graph.name
        self.input_types: tuple[TensorType, ...] = tuple(value.type for value in graph.inputs)
        self.output_types: tuple[TensorType, ...] = tuple(value.type for value in graph.outputs)
        self._schedule = schedule(graph)
        reads = self._schedule.forms
        bases = dict.fromkeys(form.base for form in reads)
        found = bind(graph.name, bases, weights_registry)
        self._weights = BoundWeights(
            found, reads if resident else (), memory, rounds_bf16=rounds_bf16
        )
        self._constants: dict[int, Tensor] = {}
        self._observe = observe

    def execute(self, *inputs: Any) -> list[Buffer]:
        """Run the graph on inputs and return its outputs.

        Inputs are NumPy arrays, torch tensors, `Buffer`s and other objects that support DLPack,
        numbers for inputs of rank 0, or a single list or tuple of these. Outputs are on the devices
        where the graph computes them. Raises `EngineError` if the inputs are not of the graph's
        types, and, with the operation, the layer and the shapes, if torch fails.
        """
        if len(inputs) == 1 and isinstance(inputs[0], list | tuple):
            # Each element is checked like a separate argument.
            inputs = tuple(cast("Iterable[Any]", inputs[0]))
        tensors, sizes = prepare_inputs(self.name, self.input_types, inputs)
        with exact_products() if self._uses_gpu else nullcontext():
            results = run(
                self._schedule,
                self._weights,
                tensors,
                sizes,
                self._constants,
                observe=self._observe,
            )
        # If a file was changed during the run, the results are invalid.
        self._weights.refuse_change()
        devices = [kind.device for kind in self.output_types]
        return [make_result_buffer(*each) for each in zip(results, devices, strict=True)]

    __call__ = execute

    def __repr__(self) -> str:
        inputs = ", ".join(map(str, self.input_types))
        outputs = ", ".join(map(str, self.output_types))
        return f"<LoadedGraph {self.name}({inputs}) -> ({outputs})>"


def _require_graph(given: object) -> None:
    from weightctl.graph.graph import Graph

    if not isinstance(given, Graph):
        raise EngineError(
            f"{type(given).__name__} is not a graph",
            hint="load the graph that `with Graph(...)` has built",
        )


def _devices(graph: Graph) -> Iterator[DeviceRef]:
    for node in graph.nodes:
        for value in node.outputs:
            yield value.device
    for subgraph in graph.subgraphs.values():
        yield from _devices(subgraph)
