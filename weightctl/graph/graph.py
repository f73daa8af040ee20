"""Graphs, their values and their weights, which are defined in terms of each other.

A graph is operations in order, whose shapes and dtypes are checked when they are added.
"""

from __future__ import annotations

import warnings
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, TypeAlias, cast, overload

from weightctl.device import CPU, as_device
from weightctl.dtype import DType, QuantizationEncoding, as_dtype, as_quantization
from weightctl.errors import ArgumentTypeError, GraphError
from weightctl.graph.scope import layer_path, refusing
from weightctl.graph.types import TensorType
from weightctl.shape import Dim, Shape
from weightctl.split import part_shape
from weightctl.text.untyped import is_list, is_tuple
from weightctl.text.wording import pluralize
from weightctl.weights.block_shapes import in_bytes, in_elements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from weightctl.device import DeviceLike, DeviceRef
    from weightctl.dtype import DTypeLike
    from weightctl.graph.ops.rules import Op
    from weightctl.shape import DimLike, ShapeLike
    from weightctl.split import Part
    from weightctl.weights.tree import Checkpoint

# The graphs whose `with` is open, outermost first.
graphs: ContextVar[tuple[Graph, ...]] = ContextVar("graphs", default=())

# The largest page size of common processors, 1 GiB.
MOST_ALIGN = 1 << 30


def current_graph() -> Graph:
    """Return the graph of the innermost open `with`; raises `GraphError` if none is open."""
    found = graphs.get()
    if not found:
        raise GraphError(
            "no graph is open", hint="call this function inside `with Graph(...) as graph:`"
        )
    return found[-1]


def _make_operator(name: str, *, swaps: bool = False) -> Callable[[Value, ValueLike], Value]:
    """Return a method that adds a binary operation; with `swaps`, `self` is the right operand."""

    def operate(self: Value, other: ValueLike) -> Value:
        from weightctl.graph import ops

        result: Value = getattr(ops, name)(*((other, self) if swaps else (self, other)))
        return result

    return operate


class Value:
    """A result of an operation in a graph, with a dtype, shape and device; it is computed later.

    `Value(x)` converts a number, an array, a `Dim` or a `Shape` to a value of the current graph.
    Operators add operations to the graph, including `==`: use `is` to compare identity.
    """

    __slots__ = ("_type", "graph", "number")

    _type: TensorType
    graph: Graph | None
    number: int

    def __new__(cls, value: ValueLike | Shape) -> Value:  # noqa: PYI034  # in subclasses too
        """Return the argument as a value of the current graph; `GraphError` if it is another's."""
        return current_graph().value_of(value)

    @classmethod
    def of(cls, graph: Graph, number: int, kind: TensorType) -> Value:
        """Create the value with this number in a graph; called by graphs only."""
        made = object.__new__(cls)
        made.graph, made.number, made._type = graph, number, kind
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        # `Value(x)` converts, so that copies and unpickled values are made without it.
        names = [name for kind in type(self).__mro__ for name in getattr(kind, "__slots__", ())]
        state = {name: getattr(self, name) for name in names if hasattr(self, name)}
        return object.__new__, (type(self),), (None, state)

    @property
    def type(self) -> TensorType:
        """The dtype, shape and device."""
        return self._type

    @property
    def dtype(self) -> DType:
        """The dtype of the elements."""
        return self.type.dtype

    @property
    def shape(self) -> Shape:
        """The dimensions, outermost first."""
        return self.type.shape

    @property
    def device(self) -> DeviceRef:
        """The device that it is computed on."""
        return self.type.device

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def weight(self) -> Weight | None:
        """The weight that this value is, None for a computed value."""
        return None if self.graph is None else self.graph.weight_of(self)

    @property
    def tensor(self) -> Value:
        """The value itself, for code that distinguishes tensors from other values."""
        return self

    @property
    def T(self) -> Value:  # noqa: N802  # as arrays call it
        """The value with its last two dimensions swapped."""
        return self.transpose(-1, -2)

    def cast(self, dtype: DTypeLike) -> Value:
        """Return the elements in another dtype."""
        from weightctl.graph import ops

        return ops.cast(self, dtype)

    def reshape(self, *shape: DimLike | ShapeLike) -> Value:
        """Return the elements in another shape; one size may be -1 and is computed from the others.

        The sizes are separate arguments, or one sequence.
        """
        from weightctl.graph import ops

        return ops.reshape(self, _one_by_one(shape))

    def transpose(self, axis_1: int, axis_2: int) -> Value:
        """Return the value with two dimensions swapped."""
        from weightctl.graph import ops

        return ops.transpose(self, axis_1, axis_2)

    def permute(self, *axes: int | Sequence[int]) -> Value:
        """Return the value with its dimensions reordered; `axes` are integers or one sequence."""
        from weightctl.graph import ops

        return ops.permute(self, _one_by_one(axes))

    def broadcast_to(self, *shape: DimLike | ShapeLike) -> Value:
        """Return the value broadcast to a larger shape, given as for `reshape`."""
        from weightctl.graph import ops

        return ops.broadcast_to(self, _one_by_one(shape))

    def unsqueeze(self, axis: int | None = None, *, dim: int | None = None) -> Value:
        """Return the value with an additional dimension of size 1 at `axis`."""
        from weightctl.graph import ops

        return ops.unsqueeze(self, axis, dim=dim)

    def sum(
        self,
        axis: int | None = None,
        *,
        keepdims: bool = False,
        dim: int | None = None,
        keepdim: bool = False,
    ) -> Value:
        """Return the sum along an axis, or of all elements if `axis` is None."""
        from weightctl.graph import ops

        return ops.sum(self, axis, keepdims=keepdims, dim=dim, keepdim=keepdim)

    def mean(
        self,
        axis: int | None = None,
        *,
        keepdims: bool = False,
        dim: int | None = None,
        keepdim: bool = False,
    ) -> Value:
        """Return the mean along an axis, or of all elements if `axis` is None."""
        from weightctl.graph import ops

        return ops.mean(self, axis, keepdims=keepdims, dim=dim, keepdim=keepdim)

    def pow(self, exponent: ValueLike) -> Value:
        """Return the elements raised to a power."""
        from weightctl.graph import ops

        return ops.pow(self, exponent)

    def to(self, device: DeviceRef) -> Value:
        """Return the value on another device."""
        from weightctl.graph import ops

        return ops.transfer_to(self, device)

    def print(self, label: str = "") -> Value:
        """Print the elements whenever the graph runs; returns the value."""
        from weightctl.graph import ops

        return ops.print_value(self, label)

    def __getitem__(self, item: Any) -> Value:
        from weightctl.graph import ops

        return ops.slice_tensor(self, item)

    def __iter__(self) -> Iterator[Value]:
        if not self.rank or not self.shape[0].is_static:
            raise TypeError(f"iteration over the rows of {self.type} is not supported")
        return (self[row] for row in range(int(self.shape[0])))

    def __bool__(self) -> bool:
        raise GraphError(
            "the content of a value is not available while its graph is built",
            hint="use `ops.where` to choose, or compare shapes, which are available",
        )

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"%{self.number}: {self.type}"

    __add__, __radd__ = _make_operator("add"), _make_operator("add", swaps=True)
    __sub__, __rsub__ = _make_operator("sub"), _make_operator("sub", swaps=True)
    __mul__, __rmul__ = _make_operator("mul"), _make_operator("mul", swaps=True)
    __truediv__, __rtruediv__ = _make_operator("div"), _make_operator("div", swaps=True)
    __floordiv__, __rfloordiv__ = _make_operator("floordiv"), _make_operator("floordiv", swaps=True)
    __mod__, __rmod__ = _make_operator("mod"), _make_operator("mod", swaps=True)
    __pow__, __rpow__ = _make_operator("pow"), _make_operator("pow", swaps=True)
    __matmul__, __rmatmul__ = _make_operator("matmul"), _make_operator("matmul", swaps=True)
    __and__ = __rand__ = _make_operator("logical_and")
    __or__ = __ror__ = _make_operator("logical_or")
    __lt__, __le__ = _make_operator("less"), _make_operator("less_equal")
    __gt__, __ge__ = _make_operator("greater"), _make_operator("greater_equal")

    # Comparisons return values, as they do for arrays; `object` would return a bool.
    def __eq__(self, other: object) -> Value:  # type: ignore[override]
        from weightctl.graph import ops

        return ops.equal(self, cast("ValueLike", other))

    def __ne__(self, other: object) -> Value:  # type: ignore[override]
        from weightctl.graph import ops

        return ops.not_equal(self, cast("ValueLike", other))

    def __neg__(self) -> Value:
        from weightctl.graph import ops

        return ops.neg(self)

    def __abs__(self) -> Value:
        from weightctl.graph import ops

        return ops.abs(self)

    def __invert__(self) -> Value:
        from weightctl.graph import ops

        return ops.logical_not(self)

    # Makes NumPy arrays on the left of an operator defer to `__radd__` and the like.
    __array_ufunc__ = None


TensorValue = Value
ValueLike: TypeAlias = "Value | bool | float | NDArray[Any] | DimLike"


def _one_by_one(given: tuple[Any, ...]) -> Any:
    """Return arguments given separately, or as one sequence, as a sequence."""
    (first, *others) = given or ((),)
    is_sequence = not others and hasattr(first, "__iter__") and not isinstance(first, str)
    return first if is_sequence else given


class Strategy(Protocol):
    """A way to cut a weight into one shard per device."""

    @property
    def devices(self) -> int:
        """The number of shards."""
        ...

    def shard(self, weight: Weight, number: int, device: DeviceRef) -> Weight:
        """Return the shard of a weight with this number, on a device."""
        ...


class Weight(Value):
    """A value whose data is loaded later; it can be created inside or outside a graph.

    A weight joins the graph in whose `with` it is first used; raises `GraphError` if there is none.
    With a `quantization_encoding` it is bytes: dtype uint8, shape (rows, bytes per row). Where it
    is used, it is decoded to values of `original_dtype_and_shape`. Declare such a weight with the
    dtype and shape of its values, or with uint8 and the shape of its bytes; its values are then
    float32. `align` is the alignment of its data in bytes, a power of two; None is the alignment of
    its dtype. A graph uses the state of the weight at first use; later changes only affect other
    graphs, and give a `UserWarning`. `Weight(value)` returns that value in the current graph, as
    `Value(value)` does.

    A shard is a weight too: the `part` of the weight `shard_of`, which had `whole_shape`, with the
    number `shard_idx`. By default its name is the name of the whole weight with this number.
    """

    __slots__ = (
        "_align",
        "_device",
        "_name",
        "_original",
        "_quantization",
        "_sharding_strategy",
        "held",
        "is_in_a_graph",
        "part",
        "second_names",
        "shard_idx",
        "shard_of",
        "whole_shape",
    )

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Create a weight outside of any graph; `Weight(value)` returns `Value(value)`."""
        given = kwargs["value"] if not args and kwargs.keys() == {"value"} else None
        if len(args) == 1 and not kwargs and not isinstance(args[0], str):
            (given,) = args
        if given is not None:
            # The documented API defines `Value(value)` for subclasses too. The result is not a
            # Weight, so Python does not call `__init__`.
            return cast("Self", current_graph().value_of(given))
        return object.__new__(cls)

    @overload
    def __init__(self, value: Value | Shape | Dim | float | NDArray[Any]) -> None: ...

    @overload
    def __init__(
        self,
        name: str,
        dtype: DTypeLike,
        shape: ShapeLike,
        device: DeviceLike = CPU,
        quantization_encoding: QuantizationEncoding | str | None = None,
        align: int | None = None,
        sharding_strategy: Strategy | None = None,
    ) -> None: ...

    # `Weight(value)` is handled by `__new__` and does not call this.
    def __init__(  # type: ignore[misc]  # noqa: PLR0917  # pyright: ignore[reportInconsistentOverload]
        self,
        name: str,
        dtype: DTypeLike,
        shape: ShapeLike,
        device: DeviceLike = CPU,
        quantization_encoding: QuantizationEncoding | str | None = None,
        align: int | None = None,
        sharding_strategy: Strategy | None = None,
    ) -> None:
        self.graph, self.number = None, -1
        # Whether a graph has taken its state, so that changes no longer affect that graph.
        self.is_in_a_graph = False
        self._name: str | None = name
        self.shard_of: Weight | None = None
        self.part: Part | None = None
        self.whole_shape: Shape | None = None
        self.device = device
        self.align = align
        self.sharding_strategy = sharding_strategy
        self.shard_idx: int | None = None
        # Other names of this weight in its model: a state dict may have its value under any of
        # them.
        self.second_names: tuple[str, ...] = ()
        # The value that a Module has loaded for this weight.
        self.held: object = None
        self.configure(dtype, shape, quantization_encoding)

    @property
    def name(self) -> str:
        """The name in graphs and in the source that the weight is loaded from."""
        if self._name is None and self.shard_of is not None:
            return f"{self.shard_of.name}.shard.{self.shard_idx}"
        return self._name or ""

    @name.setter
    def name(self, name: str) -> None:
        self._name = name

    @property
    def align(self) -> int | None:
        """The alignment of the data in bytes when a graph runs; None is the alignment of its dtype.

        Raises `GraphError` if it is set to a number that is not a power of two.
        """
        return self._align

    @align.setter
    def align(self, align: int | None) -> None:
        given: Any = align
        if given is not None and not is_alignment(given):
            raise GraphError(
                f"the alignment {given!r} of `{self.name}` is not a power of two up to "
                f"{MOST_ALIGN}",
                hint="use a number of bytes such as 64, or None for the alignment of the dtype",
            )
        self._warn("align", align)
        self._align = align

    @property
    def sharding_strategy(self) -> Strategy | None:
        """The strategy that `shard` uses; None if it is not set.

        Raises `ArgumentTypeError` if it is set to another type, such as the name of a strategy.
        """
        return self._sharding_strategy

    @sharding_strategy.setter
    def sharding_strategy(self, strategy: Strategy | None) -> None:
        if strategy is not None:
            require_strategy(strategy)
        self._sharding_strategy = strategy

    def configure(
        self,
        dtype: DTypeLike,
        shape: ShapeLike,
        quantization_encoding: QuantizationEncoding | str | None = None,
    ) -> None:
        """Set dtype, shape and encoding together, with the arguments of `Weight`; never warns.

        Raises `EncodingError`, a `ValueError`, if rows are not whole blocks, and `GraphError` if
        the dtype of blocks is not a float dtype.
        """
        kind, shape = as_dtype(dtype), Shape(shape)
        quantization = _as_quantization(self.name, kind, quantization_encoding)
        if quantization is not None:
            encoding = quantization.encoding
            if kind is DType.uint8:
                kind, shape = DType.float32, in_elements(self.name, shape, encoding)
            in_bytes(self.name, shape, encoding)  # raises for rows that are not whole blocks
        self._quantization = quantization
        self._original = (kind, shape)

    @property
    def original_dtype_and_shape(self) -> tuple[DType, Shape]:
        """The dtype and shape of the values, also of a quantized weight that is loaded as bytes.

        Setting them keeps the encoding. Raises `EncodingError` if rows are not whole blocks, and
        `GraphError` if the dtype of a quantized weight is not a float dtype.
        """
        return self._original

    @original_dtype_and_shape.setter
    def original_dtype_and_shape(self, original: tuple[DTypeLike, ShapeLike]) -> None:
        given: Any = original
        if not isinstance(given, tuple | list) or len(cast("Sequence[Any]", given)) != 2:  # a pair
            raise ArgumentTypeError(
                f"the original dtype and shape of `{self.name}` must be a pair, not {given!r}",
                hint="for example `(DType.float32, (2, 64))`",
            )
        dtype, shape = original
        kind, quantization = as_dtype(dtype), self._quantization
        if quantization is not None and kind is DType.uint8:
            raise GraphError(
                f"the original dtype of `{self.name}` must be the dtype of its elements, "
                "not of its bytes",
                hint="usually `DType.float32`",
            )
        self._warn("original_dtype_and_shape", (kind, Shape(shape)))
        self.configure(kind, shape, quantization)

    @property
    def type(self) -> TensorType:
        """The dtype, shape and device."""
        return TensorType(self.dtype, self.shape, self.device)

    @property
    def dtype(self) -> DType:
        """The dtype of the values; uint8 for a quantized weight."""
        return self._original[0] if self.quantization_encoding is None else DType.uint8

    @dtype.setter
    def dtype(self, dtype: DTypeLike) -> None:
        kind = as_dtype(dtype)
        _as_quantization(self.name, kind, self.quantization_encoding)
        if self.quantization_encoding is None or kind is not DType.uint8:
            attribute = "dtype" if self._quantization is None else "original_dtype_and_shape"
            after = kind if self._quantization is None else (kind, self._original[1])
            self._warn(attribute, after)
            self._original = (kind, self._original[1])

    @property
    def quantization_encoding(self) -> QuantizationEncoding | None:
        """The encoding of the blocks that it is loaded as, None for values.

        Setting an encoding keeps the shape as that of the values. If the dtype was uint8, it
        becomes the dtype of the bytes, and the values are float32. Raises `EncodingError` if the
        rows are not whole blocks.
        """
        return self._quantization

    @quantization_encoding.setter
    def quantization_encoding(self, encoding: QuantizationEncoding | str | None) -> None:
        dtype, shape = self._original
        quantization = _as_quantization(self.name, dtype, encoding)
        if quantization is not None:
            in_bytes(self.name, shape, quantization.encoding)  # raises for parts of blocks
        self._warn("quantization_encoding", quantization)
        if quantization is not None and dtype is DType.uint8:
            self._original = (DType.float32, shape)
        self._quantization = quantization

    @property
    def shape(self) -> Shape:
        """The dimensions; (rows, bytes per row) for a quantized weight."""
        shape, quantization = self._original[1], self.quantization_encoding
        if quantization is None:
            return shape
        return in_bytes(self.name, shape, quantization.encoding)

    @shape.setter
    def shape(self, shape: ShapeLike) -> None:
        shape = Shape(shape)
        self._warn("shape", shape)
        if self.quantization_encoding is not None:
            shape = in_elements(self.name, shape, self.quantization_encoding.encoding)
        self._original = (self._original[0], shape)

    @property
    def device(self) -> DeviceRef:
        """The device that uses the weight; the data is moved there when the graph runs."""
        return self._device

    @device.setter
    def device(self, device: DeviceLike) -> None:
        device = as_device(device)
        self._warn("device", device)
        self._device = device

    def place(self, device: DeviceLike) -> None:
        """Set the device without a warning, for callers that warn once for many weights."""
        self._device = as_device(device)

    @property
    def weight(self) -> Weight:
        """The weight itself."""
        return self

    def shard(self, devices: Iterable[DeviceLike]) -> list[Weight]:
        """Return a shard of this weight for each device, cut by its `sharding_strategy`.

        Raises `GraphError`, a `ValueError`, if there is no strategy, if it is for another number of
        devices, or if this weight is itself a shard; and `ShardingError`, a `ValueError` too, if
        the weight cannot be split in this way.
        """
        return self.shard_by(self.sharding_strategy, devices)

    def shard_by(self, strategy: Strategy | None, devices: Iterable[DeviceLike]) -> list[Weight]:
        """Return the shards that a given strategy cuts; raises the same errors as `shard`."""
        placed = [as_device(device) for device in devices]
        self._refuse_shard()
        if strategy is None:
            raise GraphError(
                f"`{self.name}` has no sharding_strategy",
                hint="set one before sharding it, such as `ShardingStrategy.rowwise(2)`",
            )
        require_strategy(strategy)
        if strategy.devices != len(placed):
            raise GraphError(
                f"the sharding strategy of `{self.name}` is for "
                f"{pluralize(strategy.devices, 'device')}, but got {len(placed)}",
                hint=f"pass {pluralize(strategy.devices, 'device')}, or change `sharding_strategy`",
            )
        return [strategy.shard(self, number, device) for number, device in enumerate(placed)]

    def part_for(self, part: Part, number: int, device: DeviceRef) -> Weight:
        """Return the shard with this number on a device: a part of this weight, in whole blocks.

        Raises `GraphError` if this weight is itself a shard.
        """
        self._refuse_shard()
        dtype, shape = self._original
        made = Weight(
            self.name,
            dtype,
            part_shape(shape.sizes, part) if part else shape,
            device,
            self.quantization_encoding,
            self.align,
        )
        made._name = None
        made.shard_of, made.part, made.shard_idx = self, part, number
        made.whole_shape = shape
        return made

    def _warn(self, attribute: str, after: object) -> None:
        """Warn if an attribute changes after a graph has taken the weight."""
        if self.is_in_a_graph and (before := getattr(self, attribute)) != after:
            warnings.warn(
                f"graphs that are already built keep `{self.name}` with {attribute} "
                f"{_phrase(before)}; only graphs that are built from now on use {_phrase(after)}",
                stacklevel=3,
            )

    def _refuse_shard(self) -> None:
        if self.shard_idx is not None:
            raise GraphError(
                f"`{self.name}` is already a shard and cannot be sharded again",
                hint="shard the whole weight for more devices instead",
            )

    def __repr__(self) -> str:
        dtype, shape = self._original
        kind = TensorType(dtype, shape, self.device)
        encoding = self.quantization_encoding
        quantized = "" if encoding is None else f" as {encoding.name}"
        return f"Weight({self.name!r}, {kind}{quantized})"


def is_alignment(given: object) -> bool:
    """Whether a value is an alignment in bytes: a power of two up to `MOST_ALIGN`."""
    return type(given) is int and 1 <= given <= MOST_ALIGN and not given & (given - 1)


def _phrase(given: object) -> str:
    return given.text if isinstance(given, Shape) else str(given)


def _as_quantization(name: str, dtype: DType, given: Any) -> QuantizationEncoding | None:
    """Return an encoding; raises `GraphError` if it does not match the dtype."""
    if given is None:
        return None
    if isinstance(given, str):
        given = as_quantization(given)
    if not isinstance(given, QuantizationEncoding):
        raise ArgumentTypeError(
            f"{given!r} is not a quantization encoding for `{name}`",
            hint="use a QuantizationEncoding, such as `QuantizationEncoding.Q4_K`, or None",
        )
    if not dtype.is_float and dtype is not DType.uint8:
        raise GraphError(
            f"`{name}` of dtype {dtype.value} cannot be stored as {given.name}, whose "
            "values are floats",
            hint="use float32 or another float dtype for the decoded values, or uint8 for the "
            "stored bytes",
        )
    return given


def require_strategy(given: Any) -> None:
    """Raise `ArgumentTypeError` if the value is not a strategy, but for example the name of one."""
    if not (hasattr(given, "devices") and hasattr(given, "shard")):
        raise ArgumentTypeError(
            f"a sharding_strategy must be a ShardingStrategy, not {given!r}",
            hint="for example `ShardingStrategy.rowwise(2)`, which splits rows across two devices",
        )


class WeightName(NamedTuple):
    """The name of a weight in a graph: a full name, or the part after the prefix of a call."""

    name: str
    is_placeholder: bool

    def add_prefix(self, prefix: str, *, stays_open: bool) -> WeightName:
        """Return the name of the weight in a graph that calls this one with a prefix."""
        if not self.is_placeholder:
            return self
        return WeightName(prefix + self.name, stays_open)


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
        self, op: Op, inputs: Sequence[ValueLike], attributes: Mapping[str, Any]
    ) -> tuple[Value, ...]:
        """Add an operation and return its results.

        Raises `GraphError` that names the operation, its arguments and the current layer if the
        arguments do not fit.
        """
        function = attributes.get("function", op.name)
        with refusing(function, *inputs):
            values = self._values(inputs, takes_blocks=op.takes_blocks)
        with refusing(function, *values, **attributes):
            types = [value.type for value in values]
            if not op.crosses_devices:
                _refuse_devices(types)
            found = op.infer(*types, **attributes)
        # `infer` returns one type, or a tuple of types.
        results = found if isinstance(found, tuple) else (found,)
        return self._add(op.name, tuple(values), attributes, results)

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
        from weightctl.graph import ops

        if like is None:
            return ops.constant(value)
        if isinstance(value, bool | int | float):
            _refuse_loss(value, like)
            return ops.constant(value, dtype=like.dtype, device=like.device)
        return ops.constant(value, device=like.device)

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
        from weightctl.graph import ops

        node = self.weight_node(value)
        has_values = node is None or node.attributes["encoding"] is None
        return value if has_values else ops.dequantize(value)

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
    from weightctl.graph import ops

    if like is None:
        return ops.dims(value)
    sizes = ops.dims(value, device=like.device)
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


# Nested graphs: which graph calls which, and the names of weights across all of them.


def is_placeholder(graph: Graph, name: str) -> bool:
    """Whether the name starts with the graph's prefix, so that each call uses another weight."""
    return graph.weight_prefix != "" and name.startswith(graph.weight_prefix)


def weight_names(graph: Graph) -> set[WeightName]:
    """Return the names of the weights of a graph and of all graphs that it calls."""
    return _weight_names(graph, {})


def calls(graph: Graph, wanted: Graph) -> bool:
    """Whether a graph is `wanted`, or calls it directly or indirectly."""
    seen: dict[int, Graph] = {}
    left = [graph]
    while left:
        found = left.pop()
        if found is wanted:
            return True
        if id(found) not in seen:
            seen[id(found)] = found
            left += [node.attributes["subgraph"] for node in found.nodes if node.op == "call"]
    return False


def refuse_fixed_name(graph: Graph, name: str) -> None:
    """Raise `GraphError` if a full name is used in a graph that represents several layers."""
    for outer in _enclosing(graph):
        if is_placeholder(outer, name):
            raise GraphError(
                f"subgraph `{graph.name}` uses the fixed name `{name}`, so every call of "
                f"`{outer.name}` would use the same weight, whatever the prefix of the call",
                hint=f"build `{graph.name}` inside `{outer.name}` with a `weight_prefix` that "
                f"starts with `{outer.weight_prefix}`, and pass the same string to `ops.call` "
                "as `prefix`",
            )


def refuse_renamed(graph: Graph, weight: Weight) -> None:
    """Raise `GraphError` if a weight was renamed after the graph took it."""
    if graph.weights_by_name.get(weight.name) is weight:
        return
    known = next(name for name, found in graph.weights_by_name.items() if found is weight)
    raise GraphError(
        f"weight `{known}` of graph `{graph.name}` was renamed to `{weight.name}` after the graph "
        "was built",
        hint="rename weights before you build the graph",
    )


def refuse_second_weight(graph: Graph, weight: Weight) -> None:
    """Raise `GraphError` if another weight has the same name, also in another subgraph.

    Placeholder names in other subgraphs do not count: weights are not loaded by those names.
    """
    name = weight.name
    *_, root = _enclosing(graph)
    others = () if is_placeholder(graph, name) else _all_graphs(root)
    for found in (graph, *others):
        other = found.weights_by_name.get(name)
        if other is None or other is weight or (found is not graph and is_placeholder(found, name)):
            continue
        where = f"graph `{graph.name}`"
        if found is not graph:
            where = f"graphs `{found.name}` and `{graph.name}`"
        raise GraphError(
            f"two weights of {where} are named `{name}`: {other.type} and {weight.type}",
            hint="call `state_dict()` of the outermost Module to give its weights unique names",
        )


def _weight_names(graph: Graph, known: dict[int, set[WeightName]]) -> set[WeightName]:
    if id(graph) in known:
        return known[id(graph)]
    names: set[WeightName] = set()
    for node in graph.nodes:
        attributes = node.attributes
        if node.op == "weight":
            names.add(WeightName(attributes["name"], attributes["is_placeholder"]))
        elif node.op == "call":
            prefix, stays_open = attributes["prefix"], attributes["is_placeholder"]
            names |= {
                name.add_prefix(prefix, stays_open=stays_open)
                for name in _weight_names(attributes["subgraph"], known)
            }
    known[id(graph)] = names
    return names


def _enclosing(graph: Graph) -> Iterator[Graph]:
    """Yield a graph, the graph that it is a subgraph of, and so on to the outermost."""
    outer: Graph | None = graph
    while outer is not None:
        yield outer
        outer = outer.parent


def _all_graphs(graph: Graph) -> Iterator[Graph]:
    yield graph
    for subgraph in graph.subgraphs.values():
        yield from _all_graphs(subgraph)


# What the functions of `ops` add operations with.


def apply(op: Op, *inputs: ValueLike, **attributes: Any) -> Value:
    """Add an operation to the current graph and return its only result.

    Raises `GraphError` if no graph is open, or if the arguments do not fit.
    """
    (result,) = apply_all(op, *inputs, **attributes)
    return result


def apply_all(op: Op, *inputs: ValueLike, **attributes: Any) -> tuple[Value, ...]:
    """Add an operation to the current graph and return all of its results."""
    if isinstance(attributes.get("device"), str):
        attributes["device"] = as_device(attributes["device"])
    return current_graph().append(op, inputs, attributes)
