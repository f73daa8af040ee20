"""Shapes of tensors, outermost dimension first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, TypeAlias, cast

from weightctl.dim import Dim, DimLike

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Dim", "DimLike", "Shape", "ShapeLike", "SizedShape"]

ShapeLike: TypeAlias = "Iterable[DimLike] | Iterable[int] | Shape"


class Shape(tuple[Dim, ...]):
    """The dimensions of a tensor, outermost first; equal to a list or tuple of the same sizes."""

    __slots__ = ()

    def __new__(cls, dims: ShapeLike = ()) -> Self:
        """Make a shape from sizes, names or `Dim`s."""
        if isinstance(dims, str) or not hasattr(dims, "__iter__"):
            raise TypeError(f"a shape must be a sequence of dimensions, not {dims!r}")
        return super().__new__(cls, (Dim(dim) for dim in dims))

    @property
    def is_static(self) -> bool:
        """Whether every size is a plain integer."""
        return all(dim.is_static for dim in self)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes as integers; raises `TypeError` if one is not defined yet."""
        return tuple(int(dim) for dim in self)

    @property
    def size(self) -> Dim:
        """The number of elements."""
        total = Dim(1)
        for dim in self:
            total *= dim
        return total

    @property
    def text(self) -> str:
        """The dimensions as text for messages: `[batch, 256]`."""
        return f"[{', '.join(map(str, self))}]"

    def at(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Return the sizes when the names have these sizes."""
        return tuple(dim.at(sizes) for dim in self)

    def substitute(self, dims: Mapping[str, Dim]) -> Shape:
        """Return the shape with the given names replaced; other names are kept."""
        return Shape([dim.substitute(dims) for dim in self])

    def __eq__(self, other: object) -> bool:
        if isinstance(other, list | tuple):
            return list(self) == list(cast("list[object]", other))
        return NotImplemented

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"[{', '.join(map(repr, self))}]"


class SizedShape(Shape):
    """The shape of existing data: its dimensions are plain integers."""

    __slots__ = ()

    def __new__(cls, sizes: Iterable[int]) -> Self:
        """Make a shape from sizes, which are kept as they are."""
        # The elements of a Shape are Dims; integers compare, print and calculate as these do.
        dims = cast("tuple[Dim, ...]", tuple(sizes))
        return tuple[Dim, ...].__new__(cls, dims)

    @property
    def is_static(self) -> bool:
        """True."""
        return True

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes."""
        return cast("tuple[int, ...]", tuple(self))

    def at(self, sizes: Mapping[str, int]) -> tuple[int, ...]:  # noqa: ARG002  # as in Shape
        """Return the sizes; a sized shape has no names."""
        return self.sizes

    def substitute(self, dims: Mapping[str, Dim]) -> Shape:  # noqa: ARG002  # as in Shape
        """Return the shape itself; a sized shape has no names."""
        return self
