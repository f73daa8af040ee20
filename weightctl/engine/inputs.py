"""Inputs of a run: arrays and numbers of the graph's input types, which give sizes to names."""

from __future__ import annotations

from math import isfinite, isnan
from typing import TYPE_CHECKING, Any

from weightctl.dtype import DType
from weightctl.engine.arrays import describe_tensor, tensor_of
from weightctl.engine.symbols import name_of, size_of
from weightctl.errors import EngineError, WeightctlError
from weightctl.graph.ops.lowering import torch_device, torch_dtype

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from weightctl.graph.types import TensorType

__all__ = ["prepare_inputs"]

# Python does not write out the digits of any integer.
_LONG = 128
_ROUNDED = "use `float(number)`, which rounds, unless the number is too large"


def prepare_inputs(
    graph_name: str, types: Sequence[TensorType], given: Sequence[Any]
) -> tuple[list[Tensor], dict[str, int]]:
    """Return the inputs of a graph on their devices, and the sizes that they give to names.

    Raises `EngineError` that names the input if one is not of its type, or if a name would
    represent two sizes.
    """
    if len(given) != len(types):
        raise EngineError(
            f"graph `{graph_name}` has {_count_inputs(len(types))}, but {len(given)} were given",
            hint=f"the inputs are {' and '.join(map(str, types))}"
            if types
            else ("call `execute()` without arguments"),
        )
    tensors = [_read_input(number, kind, given[number]) for number, kind in enumerate(types)]
    sizes: dict[str, int] = {}
    first: dict[str, int] = {}
    for number, (kind, tensor) in enumerate(zip(types, tensors, strict=True)):
        for dim, size in zip(kind.shape, tensor.shape, strict=True):
            name = name_of(dim)
            if name is None:
                continue
            if sizes.setdefault(name, size) != size:
                raise EngineError(
                    f"`{name}` is {sizes[name]} in input {first[name]} and {size} in input "
                    f"{number}: {describe_tensor(tensors[first[name]])} and "
                    f"{describe_tensor(tensor)}",
                    hint=f"the types in the graph are {types[first[name]]} and {kind}",
                )
            first.setdefault(name, number)
    for number, (kind, tensor) in enumerate(zip(types, tensors, strict=True)):
        for axis, (dim, size) in enumerate(zip(kind.shape, tensor.shape, strict=True)):
            try:
                wanted = size_of(dim, sizes)
            except EngineError as error:
                where = f"dimension {axis} of input {number}, {kind}"
                raise EngineError(f"{where}: {error.message}", hint=error.hint) from error
            if wanted != size:
                meant = "" if dim.is_static else f" ({dim})"
                raise EngineError(
                    f"input {number} is {describe_tensor(tensor)}; dimension {axis} of "
                    f"{kind} must be {wanted}{meant}, not {size}",
                )
    return [
        tensor.to(torch_device(kind.device)) for kind, tensor in zip(types, tensors, strict=True)
    ], sizes


def _read_input(number: int, kind: TensorType, given: Any) -> Tensor:
    """Return what is given for an input; raises `EngineError` if it is not of the input's type."""
    is_scalar = isinstance(given, bool | int | float | complex) and not kind.rank
    try:
        tensor = _read_scalar(given, kind.dtype) if is_scalar else tensor_of(given)
    except WeightctlError as error:
        raise EngineError(f"input {number}: {error.message}", hint=error.hint) from error
    if tensor.dtype is not torch_dtype(kind.dtype) or tensor.ndim != kind.rank:
        hint = "" if tensor.ndim != kind.rank else f"convert it to {kind.dtype.value} first"
        raise EngineError(
            f"input {number} is {describe_tensor(tensor)}, but the graph expects {kind}", hint=hint
        )
    return tensor


def _count_inputs(number: int) -> str:
    """Return a count with its noun."""
    return "1 input" if number == 1 else f"{number} inputs"


def _read_scalar(number: complex, dtype: DType) -> Tensor:
    """Return a number in a dtype; fractions are rounded to the nearest that it has.

    Raises `EngineError` if it has none: for integers that it does not hold exactly, for what is too
    large, and for fractions in a dtype of integers.
    """
    import torch

    if not _is_held(number, dtype):
        is_long = isinstance(number, int) and number.bit_length() > _LONG
        raise EngineError(
            f"{'an integer of many digits' if is_long else number} cannot be stored in "
            f"{dtype.value}",
            hint=_ROUNDED if isinstance(number, int) and dtype.is_float else "",
        )
    return torch.tensor(number, dtype=torch_dtype(dtype))


def _is_held(number: complex, dtype: DType) -> bool:
    """Whether a dtype holds a number, or a fraction near enough to it."""
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
    """Whether a dtype of fractions does; integers are held exactly, or not."""
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
