"""Rows that some columns choose: their numbers, and sums of what is computed for them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from weightctl.dtype import DType
from weightctl.errors import GraphError
from weightctl.graph.graph import apply, apply_all, current_graph
from weightctl.graph.ops.rules import Op, require_float, require_integer, require_same_dtype
from weightctl.graph.ops.value_checks import is_on_gpu
from weightctl.graph.scope import refusing
from weightctl.graph.types import TensorType
from weightctl.shape import Dim, Shape

if TYPE_CHECKING:
    from torch import Tensor

    from weightctl.graph.graph import Value, ValueLike
    from weightctl.shape import DimLike


def chosen_rows(shares: ValueLike) -> tuple[Value, ...]:
    """Return the numbers of the rows that are not 0, int64[chosen], for each column.

    `shares` is [rows, columns]. The numbers are in ascending order. How many there are is known in
    the run only, so each result has a dimension with a name of its own. The engine does not run
    operations on the rows of a column that chooses none, and does not read their weights. Raises
    `GraphError` if the number of columns is not fixed.
    """
    value = current_graph().value_of(shares)
    with refusing("chosen_rows", value):
        if value.type.rank != 2 or not value.shape[1].is_static:
            raise GraphError("the shares must be [rows, columns], with a fixed number of columns")
    names = tuple(f"chosen_{value.number}_{column}" for column in range(int(value.shape[1])))
    return apply_all(CHOSEN_ROWS, value, names=names)


def infer_chosen_rows(shares: TensorType, *, names: tuple[str, ...]) -> tuple[TensorType, ...]:
    """Return the type of the numbers of each column."""
    require_float(shares)
    return tuple(TensorType(DType.int64, [name], shares.device) for name in names)


def lower_chosen_rows(shares: Tensor, *, names: tuple[str, ...]) -> tuple[Tensor, ...]:
    """Return the numbers; they are found for all columns together.

    On a GPU, the counts are the only values that are waited for, once for each call: the sizes of
    the results are theirs.
    """
    import torch

    del names
    chosen = shares.T.contiguous() != 0
    # torch has no annotations for `tolist`.
    counts: list[int] = cast("Any", chosen.sum(-1)).tolist()
    rows = number_chosen(chosen, sum(counts)) if is_on_gpu(shares) else chosen.nonzero()[:, 1]
    none, parts = rows[:0], iter(torch.split(rows, [count for count in counts if count]))
    return tuple([next(parts) if count else none for count in counts])


def number_chosen(chosen: Tensor, count: int) -> Tensor:
    """Return the columns of the `count` true elements of a matrix, row by row, int64[count].

    Unlike `nonzero`, this does not wait for the device.
    """
    import torch

    # A stable sort keeps the order of the elements that are true.
    last = chosen.logical_not().flatten().to(torch.uint8)
    order = torch.sort(last, stable=True).indices
    return order[:count] % max(chosen.shape[1], 1)


CHOSEN_ROWS = Op("chosen_rows", infer_chosen_rows, lower_chosen_rows)


def sum_rows(*pairs: ValueLike, count: DimLike) -> Value:
    """Return [count, ...], in which row `n` is the sum of the rows whose number is `n`.

    `pairs` are rows, [given, ...], and their numbers, [given], in turn. A row without a number is
    0. Rows are added in their order. Raises `GraphError` if there are not as many numbers as rows.
    """
    return apply(SUM_ROWS, *pairs, count=Dim(count))


def infer_sum_rows(*pairs: TensorType, count: Dim) -> TensorType:
    """Return the type of the sums."""
    rows, numbers = pairs[::2], pairs[1::2]
    if not rows or len(rows) != len(numbers):
        raise GraphError("`sum_rows` needs rows and their numbers, in turn")
    require_same_dtype(*rows)
    require_float(*rows)
    for each, own in zip(rows, numbers, strict=True):
        require_integer(own)
        if not each.rank or own.shape != each.shape[:1]:
            raise GraphError(
                "there must be one number for each row",
                hint="use rows [given, ...] and numbers [given]",
            )
        if each.shape[1:] != rows[0].shape[1:]:
            raise GraphError(
                f"rows of shape {each.shape[1:]} cannot be added to rows of shape "
                f"{rows[0].shape[1:]}"
            )
    return replace(rows[0], shape=Shape([count, *rows[0].shape[1:]]))


def lower_sum_rows(*pairs: Tensor, count: int) -> Tensor:
    """Return the sums; raises `IndexError` if a number is not below `count`."""
    made = pairs[0].new_zeros((count, *pairs[0].shape[1:]))
    for rows, numbers in zip(pairs[::2], pairs[1::2], strict=True):
        if rows.shape[0]:
            made.index_add_(0, numbers.long(), rows)
    return made


SUM_ROWS = Op("sum_rows", infer_sum_rows, lower_sum_rows)

# The bytes of an int64.
_LONG = 8


def sum_weighted_rows(shares: ValueLike, *pairs: ValueLike, first: int = 0) -> Value:
    """Return [rows, ...], in which row `n` is the weighted sum of the rows whose number is `n`.

    `shares` is [rows, columns]. `pairs` are as for `sum_rows`, one for each column from `first` on:
    a row with number `n` is multiplied by the share in row `n` of its column. Raises `GraphError`
    as `sum_rows` does, and if there are fewer columns than pairs.
    """
    return apply(SUM_WEIGHTED_ROWS, shares, *pairs, first=first)


def infer_sum_weighted_rows(shares: TensorType, *pairs: TensorType, first: int) -> TensorType:
    """Return the type of the sums."""
    if shares.rank != 2 or not shares.shape[1].is_static:
        raise GraphError("the shares must be [rows, columns], with a fixed number of columns")
    require_same_dtype(shares, *pairs[:1])
    columns, wanted = int(shares.shape[1]), first + len(pairs) // 2
    if first < 0 or wanted > columns:
        raise GraphError(f"columns {first} to {wanted - 1} are not among the {columns} columns")
    return infer_sum_rows(*pairs, count=shares.shape[0])


def lower_sum_weighted_rows(shares: Tensor, *pairs: Tensor, first: int) -> Tensor:
    """Return the sums; raises `IndexError` if a number is not a row of the shares."""
    count = shares.shape[0]
    made = pairs[0].new_zeros((count, *pairs[0].shape[1:]))
    beyond = (1,) * (made.dim() - 1)
    for column, (rows, numbers) in enumerate(zip(pairs[::2], pairs[1::2], strict=True), first):
        if not rows.shape[0]:
            continue
        chosen = numbers if numbers.element_size() == _LONG else numbers.long()
        own = shares[:, column].index_select(0, chosen).view(-1, *beyond)
        if count == rows.shape[0] == 1:
            made.addcmul_(rows, own)
        else:
            made.index_add_(0, chosen, rows * own)
    return made


SUM_WEIGHTED_ROWS = Op("sum_weighted_rows", infer_sum_weighted_rows, lower_sum_weighted_rows)
