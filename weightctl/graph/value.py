"""Values of graphs, and their operators, which add operations to the current graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, cast

from weightctl.device import as_device
from weightctl.errors import GraphError
from weightctl.graph.scope import current_graph

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from weightctl.device import DeviceRef
    from weightctl.dtype import DType, DTypeLike
    from weightctl.graph.graph import Graph
    from weightctl.graph.types import TensorType
    from weightctl.graph.weight import Weight
    from weightctl.shape import DimLike, Shape, ShapeLike


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


def _one_by_one(given: tuple[Any, ...]) -> Any:
    """Return arguments given separately, or as one sequence, as a sequence."""
    (first, *others) = given or ((),)
    is_sequence = not others and hasattr(first, "__iter__") and not isinstance(first, str)
    return first if is_sequence else given


TensorValue = Value
ValueLike: TypeAlias = "Value | bool | float | NDArray[Any] | DimLike"


def apply(op: str, *inputs: ValueLike, **attributes: Any) -> Value:
    """Add an operation to the current graph and return its only result.

    Raises `GraphError` if no graph is open, or if the arguments do not fit.
    """
    (result,) = apply_all(op, *inputs, **attributes)
    return result


def apply_all(op: str, *inputs: ValueLike, **attributes: Any) -> tuple[Value, ...]:
    """Add an operation to the current graph and return all of its results."""
    if isinstance(attributes.get("device"), str):
        attributes["device"] = as_device(attributes["device"])
    return current_graph().append(op, inputs, attributes)
