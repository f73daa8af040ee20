"""Graphs, and sources of weights, that the tests of the engine share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from runs import executed
from weightctl import DeviceRef, DType, Weights
from weightctl.engine import InferenceSession
from weightctl.graph import Graph, TensorType, Weight, ops
from weightctl.weights.tree import Checkpoint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weightctl.engine import LoadedGraph
    from weightctl.graph import Value
    from weightctl.storage.base import FileRange, Reader
    from weightctl.weights.data import Source, WeightData
    from weightctl.weights.info import Header

    Array = np.ndarray[Any, Any]

CPU, F32 = DeviceRef.CPU(), DType.float32


class Counted:
    """A source that counts how often each tensor is read, and how many bytes of it."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.reads: dict[str, int] = {}
        self.nbytes: dict[str, int] = {}

    @property
    def header(self) -> Header:
        return self._source.header

    @property
    def files(self) -> Sequence[Reader]:
        return self._source.files

    def data(self, name: str) -> WeightData:
        return self._source.data(name)

    def read_into(self, name: str, start: int, buffer: memoryview) -> None:
        self.reads[name] = self.reads.get(name, 0) + 1
        self.nbytes[name] = self.nbytes.get(name, 0) + buffer.nbytes
        self._source.read_into(name, start, buffer)

    def file_range(self, name: str, /) -> FileRange | None:
        return self._source.file_range(name)

    def refuse_change(self) -> None:
        self._source.refuse_change()


def counted(weights: Weights) -> tuple[Weights, dict[str, int]]:
    """Return a tree of the same tensors, and how often each has been read."""
    source = Counted(weights.source)
    return Checkpoint(source), source.reads


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def stack(layers: int = 3, width: int = 8, device: DeviceRef = CPU) -> Graph:
    """Return a graph of layers `silu(x @ w.T + b)`, with weights `layers.0.w`, `layers.0.b`, ..."""
    with Graph("stack", [TensorType(F32, ("batch", width), device)]) as graph:
        x: Value = graph.inputs[0]
        for layer in range(layers):
            weight = Weight(f"layers.{layer}.w", F32, (width, width), device)
            bias = Weight(f"layers.{layer}.b", F32, (width,), device)
            x = ops.silu(x @ weight.T + bias)
        graph.output(x)
    return graph


def stack_weights(layers: int = 3, width: int = 8) -> dict[str, Array]:
    found = {}
    for layer in range(layers):
        found[f"layers.{layer}.w"] = numbers(width, width, seed=2 * layer)
        found[f"layers.{layer}.b"] = numbers(width, seed=2 * layer + 1)
    return found


def stack_in_numpy(x: Array, weights: Mapping[str, Array], layers: int = 3) -> Array:
    for layer in range(layers):
        y = x @ weights[f"layers.{layer}.w"].T + weights[f"layers.{layer}.b"]
        x = y / (1 + np.exp(-y))
    return x


def loaded(graph: Graph, registry: Any = None, **options: Any) -> LoadedGraph:
    return InferenceSession().load(graph, registry, **options)


def ran(graph: Graph, *inputs: Any, registry: Any = None, **options: Any) -> Array:
    found: Array = executed(graph, *inputs, weights=registry, **options)[0]
    return found
