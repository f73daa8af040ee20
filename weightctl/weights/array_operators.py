"""Arithmetic of data through NumPy, so that data behaves as an array does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = ["ArrayOperators"]


def _operand_of(other: Any) -> Any:
    return other.operand() if isinstance(other, ArrayOperators) else other


class ArrayOperators:
    """Operators, indexing, length and iteration by those of `operand()`, a NumPy array."""

    __slots__ = ()

    def operand(self) -> NDArray[Any]:
        """Return the elements; raises where they cannot be calculated with."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.operand())

    def __getitem__(self, index: Any) -> Any:
        return self.operand()[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.operand())

    def __bool__(self) -> bool:
        return bool(self.operand())

    def __neg__(self) -> Any:
        return -self.operand()

    def __abs__(self) -> Any:
        return abs(self.operand())

    def __add__(self, other: Any) -> Any:
        return self.operand() + _operand_of(other)

    def __radd__(self, other: Any) -> Any:
        return _operand_of(other) + self.operand()

    def __sub__(self, other: Any) -> Any:
        return self.operand() - _operand_of(other)

    def __rsub__(self, other: Any) -> Any:
        return _operand_of(other) - self.operand()

    def __mul__(self, other: Any) -> Any:
        return self.operand() * _operand_of(other)

    def __rmul__(self, other: Any) -> Any:
        return _operand_of(other) * self.operand()

    def __truediv__(self, other: Any) -> Any:
        return self.operand() / _operand_of(other)

    def __rtruediv__(self, other: Any) -> Any:
        return _operand_of(other) / self.operand()

    def __floordiv__(self, other: Any) -> Any:
        return self.operand() // _operand_of(other)

    def __rfloordiv__(self, other: Any) -> Any:
        return _operand_of(other) // self.operand()

    def __mod__(self, other: Any) -> Any:
        return self.operand() % _operand_of(other)

    def __rmod__(self, other: Any) -> Any:
        return _operand_of(other) % self.operand()

    def __pow__(self, other: Any) -> Any:
        return self.operand() ** _operand_of(other)

    def __rpow__(self, other: Any) -> Any:
        return _operand_of(other) ** self.operand()

    def __matmul__(self, other: Any) -> Any:
        return self.operand() @ _operand_of(other)

    def __rmatmul__(self, other: Any) -> Any:
        return _operand_of(other) @ self.operand()
