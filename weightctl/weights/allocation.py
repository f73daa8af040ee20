"""The weights that graphs have allocated from a tree, in their requested form."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, cast

from weightctl.device import as_device
from weightctl.dtype import QuantizationEncoding, as_dtype, as_quantization
from weightctl.errors import GraphError
from weightctl.shape import Shape
from weightctl.system.registry import load
from weightctl.weights.data import WeightData
from weightctl.weights.deferred import Deferred
from weightctl.weights.request import make_request, of_stored, require_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from weightctl.device import DeviceLike
    from weightctl.dtype import DTypeLike, Encoding
    from weightctl.graph.graph import Graph
    from weightctl.graph.weight import Weight
    from weightctl.shape import ShapeLike
    from weightctl.weights.request import AllocationRequest
    from weightctl.weights.source import Source

# The only upward imports: the graph's `Weight` and where it is used, imported on use.
_ABOVE = {
    "graphs": "weightctl.graph.scope:graphs",
    "weight": "weightctl.graph.weight:Weight",
}


class _Allocation(NamedTuple):
    request: AllocationRequest
    stored: str | None
    weight: Weight


class Allocations:
    """The weights that were allocated from a source, by name."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._made: dict[str, _Allocation] = {}
        self._lock = Lock()
        # By identity, because comparing weights builds a graph operation.
        self._given: set[int] = set()

    def allocate(
        self,
        name: str,
        stored: str | None,
        *,
        dtype: DTypeLike | None,
        shape: ShapeLike | None,
        quantization: QuantizationEncoding | str | None,
        device: DeviceLike,
    ) -> Weight:
        """Return the weight of a name, for the tensor stored as `stored`; if None, declare it.

        Raises the same errors as `Weights.allocate`; then nothing is allocated.
        """
        dtype = None if dtype is None else as_dtype(dtype)
        if isinstance(quantization, str):
            quantization = as_quantization(quantization)
        device = as_device(device)
        require_words(dtype, quantization)
        asked = None if shape is None else Shape(shape)
        if stored is None:
            request = make_request(name, dtype, asked, quantization, device)
        else:
            info = self._source.header.tensors[stored]._replace(name=name)
            request = of_stored(info, dtype, asked, quantization, device)
        with self._lock:
            before = self._made.get(name)
            if before is not None and before.request != request and _is_of_another_graph(before):
                before = None
            if before is None:
                before = self._made[name] = _Allocation(request, stored, _weight(name, request))
                self._given.add(id(before.weight))
        if before.request != request:
            raise GraphError(
                f"`{name}` is already allocated as {before.request}, so it cannot be "
                f"allocated as {request}",
                hint="allocate it once, and cast it in the graph where another dtype is needed",
            )
        return before.weight

    def gave(self, weight: int) -> bool:
        """Whether the weight with this `id` was allocated here."""
        return weight in self._given

    def take(self, name: str, stored: str) -> WeightData:
        """Return the tensor of a name in its requested form, or as it is stored."""
        found = self._made.get(name)
        info = self._source.header.tensors[stored]
        encoding = info.encoding if found is None else found.request.encoding
        deferred = Deferred(self._source, stored, encoding)
        return WeightData.of(info._replace(name=name, encoding=encoding), deferred)

    def data(self) -> Iterator[tuple[str, WeightData]]:
        """Yield each allocated name with its data in the requested form; skip declared weights.

        Names with the same tensor and encoding share their data.
        """
        shared: dict[tuple[str, Encoding], WeightData] = {}
        for name, (request, stored, _) in self._made.items():
            if stored is not None:
                key = (stored, request.encoding)
                if key not in shared:
                    shared[key] = self.take(name, stored)
                found = shared[key]
                yield name, found if found.name == name else found.with_name(name)


def _is_of_another_graph(made: _Allocation) -> bool:
    """Whether a weight has joined a graph, and the open graph is not this one."""
    opened: tuple[Graph, ...] = load(_ABOVE["graphs"]).get()
    is_elsewhere = bool(opened) and made.weight.is_in_a_graph
    return is_elsewhere and not any(graph.has(made.weight) for graph in opened)


def _weight(name: str, request: AllocationRequest) -> Weight:
    make = cast("Callable[..., Weight]", load(_ABOVE["weight"]))
    return make(
        name,
        request.dtype,
        request.shape,
        device=request.device,
        quantization_encoding=request.quantization,
    )
