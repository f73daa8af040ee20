"""Matrix products and Einstein summation."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weightctl.errors import GraphError
from weightctl.graph.graph import apply
from weightctl.graph.ops.rules import Op, broadcast, require_float, require_rank, require_same_dtype
from weightctl.graph.scope import refusing
from weightctl.shape import Shape
from weightctl.text.wording import pluralize

if TYPE_CHECKING:
    from torch import Tensor

    from weightctl.graph.graph import Value, ValueLike
    from weightctl.graph.types import TensorType
    from weightctl.shape import Dim


def matmul(left: ValueLike, right: ValueLike) -> Value:
    """Return the matrix product over the last two dimensions; the other dimensions are broadcast.

    Shapes are `(..., m, k)` and `(..., k, n)`, and the result is `(..., m, n)`. A vector is a
    single row or column, which the result does not have. Raises `GraphError` if the inner
    dimensions differ, for scalars, and for integers.
    """
    return apply(MATMUL, left, right)


def infer_matmul(left: TensorType, right: TensorType) -> TensorType:
    """Return the common dtype, and the shape as in NumPy."""
    for kind in (left, right):
        require_rank(kind, 1)
    require_same_dtype(left, right)
    require_float(left)
    inner = right.shape[-2] if right.rank > 1 else right.shape[0]
    if left.shape[-1] != inner:
        raise GraphError(
            f"the inner dimensions {left.shape[-1]} and {inner} differ",
            hint="use `x @ w.T` for a weight of shape (outputs, inputs), and `x @ w` for one of "
            "shape (inputs, outputs)"
            if left.shape[-1] == right.shape[-1]
            else "check the sizes of the layer",
        )
    batch = broadcast(left.shape[:-2], right.shape[:-2])
    rows = left.shape[-2:-1]
    columns = right.shape[-1:] if right.rank > 1 else ()
    return replace(left, shape=Shape((*batch, *rows, *columns)))


def lower_matmul(left: Tensor, right: Tensor) -> Tensor:
    """Return the product; on a CPU torch accumulates float16 and bfloat16 in float32."""
    return left @ right


MATMUL = Op("matmul", infer_matmul, lower_matmul)


def einsum(equation: str, *operands: ValueLike) -> Value:
    """Return the Einstein summation of an equation such as `bqd,bkd->bqk`.

    Each letter is a dimension with the same size in all operands; letters that are not on the right
    side are summed over. Without `->` the result has the letters that occur once, in alphabetical
    order, as in NumPy and torch. Raises `GraphError` if the equation does not fit the operands, for
    `...`, and for integers.
    """
    with refusing("einsum", *operands):
        given: Any = equation  # a caller's types are not checked
        if not isinstance(given, str):
            raise GraphError(
                f"the equation must be a string, not {given!r}",
                hint='for example `einsum("ij,jk->ik", a, b)`, with the equation first',
            )
    return apply(EINSUM, *operands, equation=equation.replace(" ", ""))


def infer_einsum(*operands: TensorType, equation: str) -> TensorType:
    """Return the common dtype, and the sizes of the letters on the right side."""
    left, right = _parse_equation(equation)
    if len(left) != len(operands):
        raise GraphError(
            f"`{equation}` describes {pluralize(len(left), 'operand')}, not {len(operands)}",
            hint="separate the letters of operands with a comma",
        )
    require_same_dtype(*operands)
    require_float(*operands)
    sizes: dict[str, Dim] = {}
    for letters, operand in zip(left, operands, strict=True):
        if len(letters) != operand.rank:
            raise GraphError(
                f"`{letters}` has {pluralize(len(letters), 'letter')}, but {operand} has "
                f"{pluralize(operand.rank, 'dimension')}",
                hint="use one letter per dimension",
            )
        for letter, size in zip(letters, operand.shape, strict=True):
            if sizes.setdefault(letter, size) != size:
                raise GraphError(
                    f"einsum index `{letter}` has size {sizes[letter]} in one operand and {size} "
                    "in another",
                    hint="a dimension with the same letter must have the same size in every "
                    "operand",
                )
    unknown = [letter for letter in right if letter not in sizes]
    if unknown or len({*right}) != len(right):
        raise GraphError(
            f"the right side of `{equation}` has a repeated letter, or a letter that is "
            "not on the left side",
            hint="use each letter once, and only letters of the left side",
        )
    return replace(operands[0], shape=Shape([sizes[letter] for letter in right]))


def lower_einsum(*operands: Tensor, equation: str) -> Tensor:
    """Return the sums; on a CPU torch accumulates float16 and bfloat16 in float32."""
    import torch

    return torch.einsum(equation, *operands)


EINSUM = Op("einsum", infer_einsum, lower_einsum)


def _parse_equation(equation: str) -> tuple[list[str], str]:
    """Return the letters of each operand, and those of the result."""
    given, arrow, right = equation.partition("->")
    left = given.split(",")
    letters = "".join(left)
    if not (letters + right).isascii() or not all(map(str.isalpha, letters + right)):
        raise GraphError(
            f"`{equation}` is not a valid equation: it needs letters, commas and one `->`",
            hint="for example `bqd,bkd->bqk`; use reshape instead of `...`",
        )
    if not arrow:
        right = "".join(sorted(letter for letter in {*letters} if letters.count(letter) == 1))
    return left, right
