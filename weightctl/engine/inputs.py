"""Inputs of a run: arrays and scalars checked against the graph's input types, and named sizes."""

from __future__ import annotations

from math import isfinite, isnan
from typing import TYPE_CHECKING, Any, TypeAlias

from weightctl.dtype import DType
from weightctl.engine.arrays import describe_tensor, tensor_of
from weightctl.errors import EngineError, WeightctlError
from weightctl.graph.ops.lowering import torch_device, torch_dtype
from weightctl.shape import Dim, Shape
from weightctl.text.untyped import is_list, is_tuple
from weightctl.text.wording import pluralize

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from weightctl.graph.types import TensorType

# Integers with more bits are not printed: Python refuses to format very long ones.
_LONG = 128
_ROUNDED = "use `float(number)`, which rounds, unless the number is too large"


def name_of(dim: Dim) -> str | None:
    """Return the name of a dimension that is only a name, None for a size or an expression."""
    if dim.is_static:
        return None
    (name, *others) = dim.symbols
    return name if not others and dim == name else None


def size_of(dim: Dim, sizes: Mapping[str, int]) -> int:
    """Return the size of a dimension.

    Raises `EngineError` if one of its names has no size yet, if the result is negative, or if the
    expression divides by 0.
    """
    if dim.is_static:
        return int(dim)
    try:
        return dim.at(sizes)
    except KeyError as error:
        unknown = min(dim.symbols - sizes.keys())
        raise EngineError(
            f"the size of `{unknown}`, on which {dim} depends, is not defined",
            hint=f"add an input that has `{unknown}` as a dimension",
        ) from error
    except (ValueError, ZeroDivisionError) as error:
        known = " and ".join(f"{name} is {sizes[name]}" for name in sorted(dim.symbols))
        reason = "divides by 0" if isinstance(error, ZeroDivisionError) else "is less than 0"
        raise EngineError(f"{dim} {reason} with {known}") from error


# A dimension as an engine compares it: a size, a name, or an expression.
Size: TypeAlias = "int | str | Dim"


def simplify_shape(shape: Sequence[Dim]) -> tuple[Size, ...]:
    """Return the sizes and names of dimensions; expressions are returned as they are."""
    return tuple(int(dim) if dim.is_static else name_of(dim) or dim for dim in shape)


def sizes_of(shape: Sequence[Size], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the size of each dimension of a simplified shape; raises as `size_of` does."""
    return tuple([
        each if isinstance(each, int)
        else sizes[each] if isinstance(each, str) and each in sizes
        else size_of(Dim(each), sizes)
        for each in shape
    ])  # fmt: skip


def has_names(attributes: Mapping[str, Any]) -> bool:
    """Whether the attributes of an operation contain dimensions with names."""
    return any(map(_has_names, attributes.values()))


def resolve_attributes(attributes: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return attributes with sizes instead of dimensions, and tuples of sizes instead of shapes."""
    return {key: _resolve_value(value, sizes) for key, value in attributes.items()}


def _has_names(content: Any) -> bool:
    if isinstance(content, Dim):
        return not content.is_static
    if is_list(content) or is_tuple(content) or isinstance(content, Shape):
        return any(map(_has_names, content))
    return False


def _resolve_value(content: Any, sizes: Mapping[str, int]) -> Any:
    if isinstance(content, Dim):
        return size_of(content, sizes)
    if is_list(content):
        return [_resolve_value(value, sizes) for value in content]
    if is_tuple(content) or isinstance(content, Shape):
        return tuple(_resolve_value(value, sizes) for value in content)
    return content


def prepare_inputs(
    graph_name: str, types: Sequence[TensorType], given: Sequence[Any]
) -> tuple[list[Tensor], dict[str, int]]:
    """Return the inputs of a graph on their devices, and the size of each named dimension.

    Raises `EngineError` that names the input if an input is not of its type, or if a name would
    have two sizes.
    """
    if len(given) != len(types):
        listed = ", ".join(map(str, types))
        raise EngineError(
            f"graph `{graph_name}` takes {pluralize(len(types), 'input')}, not {len(given)}",
            hint=f"the {'input is' if len(types) == 1 else 'inputs are'} {listed}"
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
    """Return an input as a tensor; raises `EngineError` if it is not of the input's type."""
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


def _read_scalar(number: complex, dtype: DType) -> Tensor:
    """Return a scalar in a dtype, rounded to the nearest value if it is a fraction.

    Raises `EngineError` if the dtype cannot hold the scalar: an integer that it does not represent
    exactly, a number that is too large, or a fraction in an integer dtype.
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
    """Whether a dtype can hold a scalar; fractions may be rounded."""
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
    """Whether a float dtype can hold a real number: integers exactly, fractions rounded."""
    import torch

    kind = torch_dtype(dtype)
    if isinstance(number, int) or not isfinite(number):
        try:
            held: complex = torch.tensor(number, dtype=kind).item()
        except OverflowError:
            return False
        return held == number or (isnan(number) and held != held)  # noqa: PLR0124  # NaN only
    limits = torch.finfo(kind)
    # A number that exceeds the largest value by less than half a step is rounded to that value.
    reach = 1 + limits.eps / 4
    return limits.min * reach <= number <= limits.max * reach
