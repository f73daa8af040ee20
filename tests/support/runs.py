"""Functions, layers and graphs run on arrays of NumPy or torch; results are of the inputs' kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lazy import torch
from weightctl.dtype import DType
from weightctl.engine import InferenceSession
from weightctl.graph import Graph, TensorType
from weightctl.nn import Module

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


def types_of(arrays: Sequence[Any], shapes: Sequence[Any] | None = None) -> list[TensorType]:
    """Return types of arrays, with the shapes that a graph should know them by."""
    known = [array.shape for array in arrays] if shapes is None else shapes
    return [
        TensorType(DType(str(array.dtype).removeprefix("torch.")), shape)
        for array, shape in zip(arrays, known, strict=True)
    ]


def graph_of(function: Callable[..., Any], types: Iterable[TensorType], **options: Any) -> Graph:
    """Return a graph of what a function, or a module that names its weights, does with values."""
    if isinstance(function, Module):
        function.name_weights()
    with Graph("run", types) as graph:
        made = function(*graph.inputs, **options)
        graph.output(*(made if isinstance(made, tuple | list) else (made,)))
    return graph


def executed(graph: Graph, *arrays: Any, weights: Any = None, **options: Any) -> list[Any]:
    """Return all outputs of a graph; the options are those of loading it."""
    found = InferenceSession().load(graph, weights, **options).execute(*arrays)
    is_torch = any(isinstance(array, torch.Tensor) for array in arrays)
    return [torch.from_dlpack(output) if is_torch else output.to_numpy() for output in found]


def run(
    function: Callable[..., Any],
    *arrays: Any,
    shapes: Sequence[Any] | None = None,
    weights: Any = None,
    **options: Any,
) -> Any:
    """Return what a function of values, or a module that was loaded, gives for arrays.

    Several arrays are a list; the options are those of the call.
    """
    graph = graph_of(function, types_of(arrays, shapes), **options)
    if weights is None and isinstance(function, Module):
        weights = function.state_dict()
    outputs = executed(graph, *arrays, weights=weights)
    return outputs if len(outputs) > 1 else outputs[0]
