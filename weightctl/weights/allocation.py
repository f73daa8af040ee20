"""The weights that graphs have allocated from a tree, in their requested form."""

from __future__ import annotations

from math import prod
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, cast

from weightctl.device import as_device
from weightctl.dtype import DType, QuantizationEncoding, as_dtype, as_quantization
from weightctl.errors import EncodingError, GraphError
from weightctl.shape import Shape
from weightctl.system.registry import load
from weightctl.weights.block_shapes import in_elements
from weightctl.weights.conversion import require_astype
from weightctl.weights.data import Deferred, WeightData

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from weightctl.device import DeviceLike, DeviceRef
    from weightctl.dtype import DTypeLike, Encoding
    from weightctl.graph.graph import Graph, Weight
    from weightctl.shape import ShapeLike
    from weightctl.weights.data import Source
    from weightctl.weights.info import TensorInfo

# The only upward imports: the graph's `Weight` and where it is used, imported on use.
_ABOVE = {
    "graphs": "weightctl.graph.graph:graphs",
    "weight": "weightctl.graph.graph:Weight",
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


# The requested form of a weight, checked against the stored tensor.


class AllocationRequest(NamedTuple):
    """The requested dtype, shape, quantization and device of a weight."""

    dtype: DType
    shape: Shape
    quantization: QuantizationEncoding | None
    device: DeviceRef

    @property
    def encoding(self) -> Encoding:
        """The encoding of the values: the quantization, or else that of the dtype."""
        return (self.quantization or self.dtype).encoding

    def __str__(self) -> str:
        blocks = f"{self.quantization.name} of " if self.quantization else ""
        return f"{blocks}{self.dtype.value}{self.shape.text} on {self.device}"


def require_words(dtype: object, quantization: object) -> None:
    """Raise `GraphError` unless the types are `DType` and `QuantizationEncoding`, or None."""
    for word, given, kind, example in (
        ("dtype", dtype, DType, "DType.float16"),
        ("quantization_encoding", quantization, QuantizationEncoding, "QuantizationEncoding.Q8_0"),
    ):
        if given is not None and not isinstance(given, kind):
            raise GraphError(
                f"{word} must be a {kind.__name__}, not {given!r}",
                hint=f"for example `{example}`",
            )


def make_request(
    name: str,
    dtype: DType | None,
    shape: Shape | None,
    quantization: QuantizationEncoding | None,
    device: DeviceRef,
) -> AllocationRequest:
    """Return the request for a weight without a stored tensor.

    Raises `GraphError` if the request is incomplete, and `EncodingError` if the rows are not whole
    blocks or blocks are requested with an integer dtype.
    """
    if not name:
        raise GraphError(
            "the root of a tree is not a weight",
            hint="select a tensor first: `weights.layer.weight`",
        )
    if dtype is None or shape is None:
        lacking = " and ".join(
            f"a {word}" for word, given in (("dtype", dtype), ("shape", shape)) if given is None
        )
        raise GraphError(
            f"`{name}` cannot be declared without {lacking}",
            hint=f"pass {lacking}, or use `open_weights` to open a checkpoint that has this tensor",
        )
    if quantization is not None and dtype is DType.uint8:
        dtype, shape = DType.float32, in_elements(name, shape, quantization.encoding)
    elif quantization is not None:
        _require_fractions(name, dtype, quantization)
    return AllocationRequest(dtype, shape, quantization, device)


def of_stored(
    info: TensorInfo,
    dtype: DType | None,
    shape: Shape | None,
    quantization: QuantizationEncoding | None,
    device: DeviceRef,
) -> AllocationRequest:
    """Return the request for a stored tensor; for None, the stored form is used.

    Raises `GraphError` if the shape differs from the tensor's, and `EncodingError` if the tensor
    cannot be converted.
    """
    source = info.encoding
    if source.dtype is None and source.quantization is None:
        raise EncodingError(
            f"`{info.name}` is stored as {source.name}, which graphs do not support",
            hint="the tensor can be listed and copied; a newer version of weightctl may support it",
        )
    if quantization is None and dtype in {None, DType.uint8}:
        # Blocks are kept unless another dtype is requested.
        quantization = source.quantization
    if quantization is None:
        # Without a quantization, the stored tensor has a dtype, as checked above.
        dtype = dtype or cast("DType", source.dtype)
    elif dtype is DType.uint8:
        dtype = DType.float32
        if shape is not None:
            shape = in_elements(info.name, shape, quantization.encoding)
            # A shape in bytes is (rows, bytes per row), for any number of dimensions.
            rows = (prod(info.shape[:-1]), info.row)
            shape = Shape(info.shape) if shape == rows else shape
    else:
        has_fractions = source.dtype is not None and source.dtype.is_float
        dtype = dtype or (source.dtype if has_fractions else None) or DType.float32
        _require_fractions(info.name, dtype, quantization)
    if shape is not None:
        _require_match(info, shape)
    request = AllocationRequest(dtype, Shape(info.shape), quantization, device)
    require_astype(info, request.encoding)
    return request


def _require_fractions(name: str, dtype: DType, quantization: QuantizationEncoding) -> None:
    if not dtype.is_float:
        raise EncodingError(
            f"`{name}`: {quantization.name} blocks hold fractions, but {dtype.value} is an "
            "integer dtype",
            hint="use a float dtype, or uint8 with the shape in bytes",
        )


def _require_match(info: TensorInfo, asked: Shape) -> None:
    """Raise `GraphError` if a requested shape differs from the tensor's.

    A name in the shape must have the same size wherever it is used.
    """
    own = Shape(info.shape)
    mismatch = GraphError(
        f"`{info.name}` has shape {own.text}, not {asked.text}",
        hint="leave out the shape to use the shape of the tensor",
    )
    if len(asked) != len(own):
        raise mismatch
    # Only a single name is equal to its own text; sizes and sums are not.
    sizes = {str(dim): size for dim, size in zip(asked, info.shape, strict=True) if dim == str(dim)}
    unknown = sorted(frozenset[str]().union(*(dim.symbols for dim in asked)) - sizes.keys())
    if unknown:
        raise GraphError(
            f"shape {asked.text} of `{info.name}` cannot be compared with the stored shape "
            f"{own.text}: the size of `{unknown[0]}` is not defined",
            hint=f"`{unknown[0]}` occurs only in an expression: also use it alone as a dimension, "
            "so that it gets the size of the tensor",
        )
    try:
        sizes_asked = asked.at(sizes)
    except (ValueError, ZeroDivisionError) as error:
        raise mismatch from error
    if sizes_asked != info.shape:
        raise mismatch
