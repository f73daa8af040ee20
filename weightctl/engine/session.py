"""Sessions, which load graphs with their weights and run them."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, cast

from weightctl.device import CPU
from weightctl.engine.arrays import make_result_buffer
from weightctl.engine.binding import bind
from weightctl.engine.bound_weights import BoundWeights
from weightctl.engine.devices import devices_of, exact_products, require_devices, require_placed
from weightctl.engine.inputs import prepare_inputs
from weightctl.engine.run import run
from weightctl.engine.schedule import schedule
from weightctl.errors import EngineError
from weightctl.text.sizes import parse_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from torch import Tensor

    from weightctl.device import DeviceRef
    from weightctl.engine.run import ProductObserver
    from weightctl.graph.graph import Graph
    from weightctl.graph.types import TensorType
    from weightctl.weights.buffer import Buffer
    from weightctl.weights.protocol import Weights


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
