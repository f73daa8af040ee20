"""What whole models have in common: they know their inputs, and so make their own graph."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from weightctl.dtype import DType
from weightctl.graph.graph import Graph
from weightctl.graph.types import TensorType
from weightctl.nn.module import Module

if TYPE_CHECKING:
    from weightctl.nn.embedding import Embedding

__all__ = ["Network"]


class Network(Module):
    """A whole model, from token ids to what it says of them.

    `INPUTS` names what it is called with, each int64[batch, seq]. `dtype` is that of its
    activations; the weights may be stored in others.
    """

    INPUTS: tuple[str, ...] = ("tokens",)

    embedding: Embedding
    dtype: DType

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs, in `dtype`."""

    def input_types(self) -> list[TensorType]:
        """Return the types of the inputs, on the device of the model's first weight."""
        device = self.embedding.weight.device
        return [TensorType(DType.int64, ("batch", "seq"), device) for _ in self.INPUTS]

    def graph(self, name: str | None = None) -> Graph:
        """Return a graph of the whole model, called `name`, else as its class is."""
        self.name_weights()
        with Graph(name or type(self).__name__.lower(), self.input_types()) as graph:
            graph.output(self(*graph.inputs))
        return graph
