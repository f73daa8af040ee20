"""One dimension of a shape: a size, a name for a size that is defined later, or an expression."""

from __future__ import annotations

import re
from math import prod, sqrt
from operator import index
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias, TypeGuard

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAME = re.compile(r"[^\W\d]\w*")
# The maximum length of a quotient's text, which is abbreviated beyond it. The text of a quotient
# that contains another one twice, such as a sum of halves and thirds, doubles with every level.
_LONGEST = 10_000
_KINDS = "use an integer such as 4, a name such as `batch`, or a Dim made of these"


class _Quotient:
    """A `left // right` or `left % right` that cannot be computed yet; it is used like a name.

    Quotients are compared by their text, which is built once, so nested ones are not visited again.
    """

    __slots__ = ("_hash", "left", "operator", "right", "text")

    def __init__(self, left: Dim, operator: str, right: Dim) -> None:
        self.left, self.operator, self.right = left, operator, right
        sides = [f"({side})" if " " in side else side for side in (str(left), str(right))]
        text = f"({sides[0]} {operator} {sides[1]})"
        self.text = text if len(text) <= _LONGEST else _abbreviate(text)
        self._hash = hash(self.text)

    def of(self, left: int, right: int) -> int:
        """Return the result for the values of both sides."""
        return left // right if self.operator == "//" else left % right

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Quotient) and self.text == other.text

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return self.text


def _abbreviate(text: str) -> str:
    from hashlib import sha256

    return f"({text[:40]}... {sha256(text.encode()).hexdigest()})"


_Factor: TypeAlias = "str | _Quotient"
# Products of sorted factors, and the coefficient of each in the sum.
_Terms: TypeAlias = "dict[tuple[_Factor, ...], int]"


class Dim:
    """A size, a name such as `batch`, or a sum of products of them: `2*batch + 1`.

    It is equal to the number or name that it represents, and to every `Dim` that expands to the
    same sum. Raises `ValueError` if the size is negative or the name is not valid.
    """

    __slots__ = ("terms",)

    def __init__(self, value: DimLike) -> None:
        self.terms: _Terms
        if isinstance(value, Dim):
            self.terms = value.terms
        elif isinstance(value, str):
            if not _NAME.fullmatch(value):
                raise ValueError(f"{value!r} is not a valid dimension name; `batch` is an example")
            self.terms = {(value,): 1}
        else:
            if not _is_dim(value):
                raise TypeError(f"{value!r} is not a dimension: {_KINDS}")
            size = index(value)
            if size < 0:
                raise ValueError(f"a dimension cannot have size {size}")
            self.terms = {(): size} if size else {}

    @property
    def value(self) -> int | str:
        """The size, or the expression as text."""
        return int(self) if self.is_static else str(self)

    @property
    def is_static(self) -> bool:
        """Whether the size is a plain integer."""
        return not any(self.terms)

    @property
    def symbols(self) -> frozenset[str]:
        """The names that the size depends on."""
        dims = [self]
        for one in self._quotients():
            dims += [one.left, one.right]
        terms = [factors for dim in dims for factors in dim.terms]
        return frozenset(name for factors in terms for name in factors if isinstance(name, str))

    def substitute(self, dims: Mapping[str, Dim]) -> Dim:
        """Return the dimension with the given names replaced; other names are kept."""
        known = dict[_Factor, Dim](dims.items())
        for one in self._quotients():
            left, right = _substitute(one.left, known), _substitute(one.right, known)
            known[one] = left // right if one.operator == "//" else left % right
        return _substitute(self, known)

    def at(self, sizes: Mapping[str, int]) -> int:
        """Return the size when the names have these sizes.

        Raises `KeyError` if a name has no size, `ValueError` if the size or an intermediate size is
        negative, and `ZeroDivisionError` if a divisor is 0.
        """
        quotients = self._quotients()
        if not quotients:
            return _value(self, sizes, sizes)
        known = dict[_Factor, int](sizes.items())
        for one in quotients:
            left, right = (_value(side, known, sizes) for side in (one.left, one.right))
            if not right:
                raise ZeroDivisionError(
                    f"the divisor {one.right} is 0 in {one}, with {dict(sizes)}"
                )
            known[one] = one.of(left, right)
        return _value(self, known, sizes)

    def _quotients(self) -> list[_Quotient]:
        """Return the quotients in the expression, each once, inner ones first.

        Uses a list instead of recursion, since some models nest deeper than Python's stack allows.
        """
        found: dict[_Quotient, None] = {}
        left = [(one, False) for one in _quotients_of(self)]
        while left:
            one, is_open = left.pop()
            if is_open:
                found[one] = None
            elif one not in found:
                left.append((one, True))
                inner = (*_quotients_of(one.left), *_quotients_of(one.right))
                left += [(below, False) for below in inner]
        return list(found)

    def __index__(self) -> int:
        if not self.is_static:
            raise TypeError(f"the size of dimension `{self}` is not defined yet")
        return self.terms.get((), 0)

    __int__ = __index__

    def __float__(self) -> float:
        return float(int(self))

    def sqrt(self) -> float:
        """Return the square root of a size that is an integer; `np.sqrt` calls this."""
        return sqrt(self._number("sqrt"))

    # NotImplemented lets other types, such as `Value`, apply their own operator.

    def __add__(self, other: DimLike) -> Dim:
        return _of(_sum(self.terms, _terms_of(other), 1)) if _is_dim(other) else NotImplemented

    __radd__ = __add__

    def __sub__(self, other: DimLike) -> Dim:
        return _of(_sum(self.terms, _terms_of(other), -1)) if _is_dim(other) else NotImplemented

    def __rsub__(self, other: DimLike) -> Dim:
        return _of(_sum(_terms_of(other), self.terms, -1)) if _is_dim(other) else NotImplemented

    def __mul__(self, other: DimLike) -> Dim:
        return _of(_product(self.terms, _terms_of(other))) if _is_dim(other) else NotImplemented

    __rmul__ = __mul__

    def __truediv__(self, other: DimLike | float) -> float:
        if not _is_number(other):
            return NotImplemented
        return self._number("/") / float(other)

    def __rtruediv__(self, other: DimLike | float) -> float:
        if not _is_number(other):
            return NotImplemented
        return float(other) / self._number("/")

    def __pow__(self, other: float) -> float:
        if not _is_number(other):
            return NotImplemented
        exponent: float = other if isinstance(other, float) else index(other)
        found: float = self._number("**") ** exponent
        return found

    def _number(self, operator: str) -> int:
        if not self.is_static:
            raise TypeError(
                f"dimension `{self}` has no size yet, so `{operator}` cannot be computed; use "
                "`//` to divide sizes, or `Value(dim).cast(DType.float32)` to compute in the "
                "graph"
            )
        return int(self)

    def _order(self, other: DimLike | float, operator: str) -> float:
        """Return the difference from another size; raises `TypeError` if it depends on names."""
        if isinstance(other, float):
            return self._number(operator) - other
        terms = _sum(self.terms, _terms_of(other), -1)
        if any(factors and count for factors, count in terms.items()):
            raise TypeError(
                f"`{self} {operator} {other}` cannot be decided before the sizes are defined; "
                f"use `Value(dim) {operator} ...` to compute it when the graph runs"
            )
        return terms.get((), 0)

    def __lt__(self, other: DimLike | float) -> bool:
        return self._order(other, "<") < 0 if _is_size(other) else NotImplemented

    def __le__(self, other: DimLike | float) -> bool:
        return self._order(other, "<=") <= 0 if _is_size(other) else NotImplemented

    def __gt__(self, other: DimLike | float) -> bool:
        return self._order(other, ">") > 0 if _is_size(other) else NotImplemented

    def __ge__(self, other: DimLike | float) -> bool:
        return self._order(other, ">=") >= 0 if _is_size(other) else NotImplemented

    def __floordiv__(self, other: DimLike) -> Dim:
        if not _is_dim(other):
            return NotImplemented
        divisor = Dim(other)
        whole = self._divide_exactly(divisor)
        if whole is not None:
            return whole
        dividend, times = self._unfold_quotient() if divisor.is_static else (self, 1)
        if times > 1:
            return dividend // (divisor * times)
        return _quotient(self, "//", divisor)

    def __rfloordiv__(self, other: DimLike) -> Dim:
        return Dim(other) // self if _is_dim(other) else NotImplemented

    def __mod__(self, other: DimLike) -> Dim:
        if not _is_dim(other):
            return NotImplemented
        divisor = Dim(other)
        return _quotient(self, "%", divisor) if self._divide_exactly(divisor) is None else Dim(0)

    def __rmod__(self, other: DimLike) -> Dim:
        return Dim(other) % self if _is_dim(other) else NotImplemented

    def _divide_exactly(self, divisor: Dim) -> Dim | None:
        """Return the quotient by a single product of factors, None if the division is not exact."""
        if not divisor.terms:
            raise ZeroDivisionError(f"{self} cannot be divided by 0")
        if len(divisor.terms) != 1:
            return Dim(1) if divisor == self else None
        ((taken, times),) = divisor.terms.items()
        terms: _Terms = {}
        for factors, count in self.terms.items():
            left = list(factors)
            for factor in taken:
                if factor not in left:
                    return None
                left.remove(factor)
            if count % times:
                return None
            terms[tuple(left)] = count // times
        return _of(terms)

    def _unfold_quotient(self) -> tuple[Dim, int]:
        """Return a dimension and a divisor whose floor quotient is this dimension.

        The divisor is 1 unless this is one quotient plus other terms: (a // b + c) // d is (a +
        b*c) // (b*d) for all integers a and c, and b and d above 0. This keeps repeated divisions
        short.
        """
        quotients = [
            factors
            for factors in self.terms
            if any(isinstance(factor, _Quotient) for factor in factors)
        ]
        if len(quotients) != 1 or len(quotients[0]) != 1 or self.terms[quotients[0]] != 1:
            return self, 1
        ((one,),) = quotients
        if isinstance(one, str) or one.operator != "//" or not one.right.is_static:
            return self, 1
        rest = {factors: count for factors, count in self.terms.items() if factors != (one,)}
        times = int(one.right)
        return _of(_sum(one.left.terms, _product(rest, {(): times}), 1)), times

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Dim):
            return self.terms == other.terms
        if isinstance(other, str):
            return self.terms == {(other,): 1}
        return self.is_static and self.terms.get((), 0) == other

    def __hash__(self) -> int:
        return hash(self.value)

    def __str__(self) -> str:
        # Terms with names first and the plain number last, as usual.
        terms = sorted(self.terms.items(), key=lambda term: (not term[0], str(term[0])))
        text = ""
        for factors, count in terms:
            size = [str(abs(count))] if abs(count) != 1 or not factors else []
            product = "*".join([*size, *map(str, factors)])
            if text:
                text += f" {'-' if count < 0 else '+'} {product}"
            else:
                text = f"-{product}" if count < 0 else product
        return text or "0"

    def __repr__(self) -> str:
        return f"Dim({self.value!r})"


DimLike: TypeAlias = "Dim | str | SupportsIndex"


def _is_dim(given: object) -> bool:
    # An array has `__index__` too, whatever its shape.
    return isinstance(given, Dim | str | int | SupportsIndex) and not getattr(given, "shape", ())


def _is_number(given: object) -> TypeGuard[float | SupportsIndex]:
    return isinstance(given, float | int | SupportsIndex) and not getattr(given, "shape", ())


def _is_size(given: object) -> bool:
    return isinstance(given, float) or _is_dim(given)


def _of(terms: _Terms) -> Dim:
    made = object.__new__(Dim)
    made.terms = {factors: count for factors, count in terms.items() if count}
    if made.is_static and int(made) < 0:
        raise ValueError(f"a dimension cannot have size {int(made)}")
    return made


def _terms_of(value: DimLike) -> _Terms:
    """Return the terms of a dimension, or of an integer operand of either sign."""
    if isinstance(value, Dim | str):
        return Dim(value).terms
    return {(): index(value)}


def _sum(left: _Terms, right: _Terms, sign: int) -> _Terms:
    terms = dict(left)
    for factors, count in right.items():
        terms[factors] = terms.get(factors, 0) + sign * count
    return terms


def _product(left: _Terms, right: _Terms) -> _Terms:
    terms: _Terms = {}
    for some, count in left.items():
        for others, times in right.items():
            factors = tuple(sorted((*some, *others), key=str))
            terms[factors] = terms.get(factors, 0) + count * times
    return terms


def _quotients_of(dim: Dim) -> list[_Quotient]:
    """Return the quotients that are factors in a dimension, without nested ones."""
    return [one for factors in dim.terms for one in factors if isinstance(one, _Quotient)]


def _substitute(dim: Dim, known: Mapping[_Factor, Dim]) -> Dim:
    total: _Terms = {}
    for factors, count in dim.terms.items():
        product: _Terms = {(): count}
        for factor in factors:
            # All quotients are in `known`; a name that is not is kept.
            product = _product(product, known[factor].terms if factor in known else {(factor,): 1})
        total = _sum(total, product, 1)
    return _of(total)


def _value(dim: Dim, known: Mapping[Any, int], sizes: Mapping[str, int]) -> int:
    size = sum(
        count * prod(known[factor] for factor in factors) for factors, count in dim.terms.items()
    )
    if size < 0:
        raise ValueError(f"dimension {dim} cannot have size {size}, with {dict(sizes)}")
    return size


def _quotient(left: Dim, operator: str, right: Dim) -> Dim:
    if left.is_static and right.is_static:
        return Dim(int(left) // int(right) if operator == "//" else int(left) % int(right))
    return _of({(_Quotient(left, operator, right),): 1})
