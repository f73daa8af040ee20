"""Numbers of Python as tensors of rank 0, where these hold them."""

from __future__ import annotations

from math import isfinite, isnan
from typing import TYPE_CHECKING

from weightctl.dtype import DType
from weightctl.errors import EngineError
from weightctl.graph.ops.lowering import torch_dtype

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["scalar"]

# Python does not write out the digits of any integer.
_LONG = 128
_ROUNDED = "`float(number)` is rounded where it is not too large"


def scalar(number: complex, dtype: DType) -> Tensor:
    """Return a number in a dtype; fractions are rounded to the nearest that it has.

    Raises `EngineError` where it has none: for whole numbers that it does not hold exactly, for
    what is too large, and for fractions in a dtype of whole numbers.
    """
    import torch

    if not _is_held(number, dtype):
        is_long = isinstance(number, int) and number.bit_length() > _LONG
        raise EngineError(
            f"{'an integer of many digits' if is_long else number} does not fit {dtype.value}",
            hint=_ROUNDED if isinstance(number, int) and dtype.is_float else "",
        )
    return torch.tensor(number, dtype=torch_dtype(dtype))


def _is_held(number: complex, dtype: DType) -> bool:
    if isinstance(number, complex):
        return dtype.is_complex and all(
            _is_held(part, dtype) for part in (number.real, number.imag)
        )
    if dtype is DType.bool:
        return isinstance(number, bool)
    if dtype.is_float or dtype.is_complex:
        return _is_held_by_fractions(number, dtype)
    import torch

    limits = torch.iinfo(torch_dtype(dtype))
    return isinstance(number, int) and limits.min <= number <= limits.max


def _is_held_by_fractions(number: float, dtype: DType) -> bool:
    import torch

    kind = torch_dtype(dtype)
    if isinstance(number, int) or not isfinite(number):
        try:
            held: complex = torch.tensor(number, dtype=kind).item()
        except OverflowError:
            return False
        return held == number or (isnan(number) and held != held)  # noqa: PLR0124  # of NaN alone
    limits = torch.finfo(kind)
    # What is nearer to the largest number than to the next, which is not there, is rounded to it.
    reach = 1 + limits.eps / 4
    return limits.min * reach <= number <= limits.max * reach
