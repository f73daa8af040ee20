"""Shapes of tensors, outermost dimension first."""

from __future__ import annotations

from operator import index
from typing import Self, SupportsIndex, TypeAlias, cast

__all__ = ["Dim", "DimLike", "Shape", "ShapeLike"]


class Dim:
    """One dimension of a shape: its size, or a name for a size known later.

    Equal to the number or the name it stands for. Raises `ValueError` for a negative size.
    """

    __slots__ = ("value",)

    def __init__(self, value: DimLike) -> None:
        self.value: int | str
        if isinstance(value, Dim):
            self.value = value.value
        elif isinstance(value, str):
            self.value = value
        else:
            self.value = index(value)
            if self.value < 0:
                raise ValueError(f"a dimension cannot be {self.value}")

    def __index__(self) -> int:
        if isinstance(self.value, str):
            raise TypeError(f"the size of dimension `{self.value}` is not known yet")
        return self.value

    __int__ = __index__

    def __eq__(self, other: object) -> bool:
        return self.value == (other.value if isinstance(other, Dim) else other)

    def __hash__(self) -> int:
        return hash(self.value)

    def __repr__(self) -> str:
        return f"Dim({self.value!r})"


DimLike: TypeAlias = "Dim | str | SupportsIndex"
ShapeLike: TypeAlias = "list[DimLike] | list[int] | tuple[DimLike, ...] | Shape"


class Shape(tuple[Dim, ...]):
    """The dimensions of a tensor, outermost first; equal to a list or tuple of the same sizes."""

    __slots__ = ()

    def __new__(cls, dims: ShapeLike = ()) -> Self:
        """Make a shape from sizes, names or `Dim`s."""
        return super().__new__(cls, (Dim(dim) for dim in dims))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes as integers; `TypeError` where one is not known yet."""
        return tuple(int(dim) for dim in self)

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
