"""Sums of products of elements, by Einstein's notation."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weightctl.errors import GraphError
from weightctl.graph.ops.rules import require_float, same_dtype
from weightctl.graph.scope import refusing
from weightctl.graph.value import apply
from weightctl.shape import Shape

if TYPE_CHECKING:
    from torch import Tensor

    from weightctl.graph.types import TensorType
    from weightctl.graph.value import Value, ValueLike
    from weightctl.shape import Dim

__all__ = ["einsum", "infer", "lower"]


def einsum(equation: str, *operands: ValueLike) -> Value:
    """Return the sums that an equation such as `bqd,bkd->bqk` asks for.

    A letter stands for a dimension, the same size wherever it stands; those that the right side
    lacks are summed over. Without `->` the result has the letters that stand once, in the order of
    the alphabet, as NumPy's and torch's. Raises `GraphError` for an equation that does not fit the
    operands, for `...`, and for integers.
    """
    with refusing("einsum", *operands):
        given: Any = equation  # a caller's types are not checked
        if not isinstance(given, str):
            raise GraphError(
                f"the equation is a string, not {given!r}",
                hint='`einsum("ij,jk->ik", a, b)`: it comes first',
            )
    return apply("einsum", *operands, equation=equation.replace(" ", ""))


def infer(*operands: TensorType, equation: str) -> TensorType:
    """Return the dtype of all, and the sizes of the letters of the right side."""
    left, right = _sides(equation)
    if len(left) != len(operands):
        raise GraphError(
            f"`{equation}` is for {len(left)} operands, and {len(operands)} were given",
            hint="a comma stands between the letters of two operands",
        )
    same_dtype(*operands)
    require_float(*operands)
    sizes: dict[str, Dim] = {}
    for letters, operand in zip(left, operands, strict=True):
        if len(letters) != operand.rank:
            raise GraphError(
                f"`{letters}` is for {len(letters)} dimensions, {operand} has {operand.rank}",
                hint="a letter stands for each dimension",
            )
        for letter, size in zip(letters, operand.shape, strict=True):
            if sizes.setdefault(letter, size) != size:
                raise GraphError(
                    f"`{letter}` is {sizes[letter]} in one place and {size} in another",
                    hint="dimensions of one letter are equal",
                )
    unknown = [letter for letter in right if letter not in sizes]
    if unknown or len({*right}) != len(right):
        raise GraphError(
            f"the right side of `{equation}` has a letter twice, or one that the left side lacks",
            hint="each of its letters stands on the left side",
        )
    return replace(operands[0], shape=Shape([sizes[letter] for letter in right]))


def lower(*operands: Tensor, equation: str) -> Tensor:
    """Return the sums; on a CPU torch adds up float16 and bfloat16 in float32."""
    import torch

    return torch.einsum(equation, *operands)


def _sides(equation: str) -> tuple[list[str], str]:
    given, arrow, right = equation.partition("->")
    left = given.split(",")
    letters = "".join(left)
    if not (letters + right).isascii() or not all(map(str.isalpha, letters + right)):
        raise GraphError(
            f"`{equation}` is not letters, commas and one `->`",
            hint="such as `bqd,bkd->bqk`; reshape instead of `...`",
        )
    if not arrow:
        right = "".join(sorted(letter for letter in {*letters} if letters.count(letter) == 1))
    return left, right
