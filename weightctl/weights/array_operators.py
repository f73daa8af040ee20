"""Arithmetic of data through NumPy, so that data behaves as an array does."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

__all__ = ["ArrayOperators"]


def _forward(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def apply(self: ArrayOperators, other: Any) -> Any:
        return function(self.operand(), _operand_of(other))

    return apply


def _reflected(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def apply(self: ArrayOperators, other: Any) -> Any:
        return function(_operand_of(other), self.operand())

    return apply


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

    __add__, __radd__ = _forward(operator.add), _reflected(operator.add)
    __sub__, __rsub__ = _forward(operator.sub), _reflected(operator.sub)
    __mul__, __rmul__ = _forward(operator.mul), _reflected(operator.mul)
    __truediv__, __rtruediv__ = _forward(operator.truediv), _reflected(operator.truediv)
    __floordiv__, __rfloordiv__ = _forward(operator.floordiv), _reflected(operator.floordiv)
    __mod__, __rmod__ = _forward(operator.mod), _reflected(operator.mod)
    __pow__, __rpow__ = _forward(operator.pow), _reflected(operator.pow)
    __matmul__, __rmatmul__ = _forward(operator.matmul), _reflected(operator.matmul)
