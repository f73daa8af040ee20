"""What a graph is run on: arrays that must be of its input types, and give sizes to names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.engine.arrays import describe_tensor, tensor_of
from weightctl.engine.scalars import scalar
from weightctl.engine.symbols import name_of, size_of
from weightctl.errors import EngineError, WeightctlError
from weightctl.graph.ops.lowering import torch_device, torch_dtype

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from weightctl.graph.types import TensorType

__all__ = ["prepare_inputs"]


def prepare_inputs(
    graph_name: str, types: Sequence[TensorType], given: Sequence[Any]
) -> tuple[list[Tensor], dict[str, int]]:
    """Return the inputs of a graph on their devices, and the sizes that they give to names.

    Raises `EngineError` that names the input where one is not of its type, or where a name would
    stand for two sizes.
    """
    if len(given) != len(types):
        raise EngineError(
            f"graph `{graph_name}` has {_count(len(types))}, and {len(given)} were given",
            hint=f"they are {' and '.join(map(str, types))}" if types else "call `execute()`",
        )
    tensors = [_tensor(number, kind, given[number]) for number, kind in enumerate(types)]
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
                    hint=f"the graph has {types[first[name]]} and {kind}",
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
                    f"input {number} is {describe_tensor(tensor)}; dimension {axis} of {kind} is "
                    f"{wanted}{meant}, not {size}",
                )
    return [
        tensor.to(torch_device(kind.device)) for kind, tensor in zip(types, tensors, strict=True)
    ], sizes


def _tensor(number: int, kind: TensorType, given: Any) -> Tensor:
    is_scalar = isinstance(given, bool | int | float | complex) and not kind.rank
    try:
        tensor = scalar(given, kind.dtype) if is_scalar else tensor_of(given)
    except WeightctlError as error:
        raise EngineError(f"input {number}: {error.message}", hint=error.hint) from error
    if tensor.dtype is not torch_dtype(kind.dtype) or tensor.ndim != kind.rank:
        hint = "" if tensor.ndim != kind.rank else f"convert it to {kind.dtype.value} first"
        raise EngineError(
            f"input {number} is {describe_tensor(tensor)}, the graph has {kind}", hint=hint
        )
    return tensor


def _count(number: int) -> str:
    return "1 input" if number == 1 else f"{number} inputs"
