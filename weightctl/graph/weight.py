"""Weights of a graph: values whose data is loaded when the graph runs."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Self, cast, overload

from weightctl.device import CPU, as_device
from weightctl.dtype import DType, QuantizationEncoding, as_dtype, as_quantization
from weightctl.errors import ArgumentTypeError, GraphError
from weightctl.graph.scope import current_graph
from weightctl.graph.sharding import require_strategy
from weightctl.graph.types import TensorType
from weightctl.graph.value import Value
from weightctl.shape import Shape
from weightctl.split import part_shape
from weightctl.text.wording import pluralize
from weightctl.weights.block_shapes import in_bytes, in_elements

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from weightctl.device import DeviceLike, DeviceRef
    from weightctl.dtype import DTypeLike
    from weightctl.graph.sharding import Strategy
    from weightctl.shape import Dim, ShapeLike
    from weightctl.split import Part

__all__ = ["MOST_ALIGN", "Weight", "is_alignment"]

# The largest page size of common processors, 1 GiB.
MOST_ALIGN = 1 << 30


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
