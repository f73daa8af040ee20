"""The base class of whole models, which build their own graph."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, TypeAlias

from weightctl.dtype import DType
from weightctl.errors import ArchitectureError, FormatError
from weightctl.families import FAMILIES
from weightctl.graph.graph import Graph
from weightctl.graph.types import TensorType
from weightctl.nn.module import Module
from weightctl.system.registry import load
from weightctl.text.wording import join_names

if TYPE_CHECKING:
    from weightctl.families.checkpoint import RecognizedModel
    from weightctl.graph.graph import Value
    from weightctl.nn.base_layer import LayerList
    from weightctl.nn.embedding import Embedding

Beside: TypeAlias = "tuple[Value, ...]"


class Network(Module):
    """A whole model, from token ids to its output.

    `INPUTS` names its inputs, each int64[batch, seq]. `dtype` is that of its activations; the
    weights may be stored in others.
    """

    INPUTS: tuple[str, ...] = ("tokens",)

    embedding: Embedding
    layers: LayerList[Any]
    dtype: DType

    @abstractmethod
    def begin(self, *args: Any, **kwargs: Any) -> tuple[Value, Beside]:
        """Return the input of the first layer, and additional arguments of all layers.

        The arguments of `begin` are the inputs of the model; the first layer's input is [batch,
        seq, hidden].
        """

    def through(self, layer: Any, x: Value, beside: Beside) -> Value:
        """Return the output of a layer for its input, in the shape of `x`."""
        value: Value = layer(x, *beside)
        return value

    @abstractmethod
    def end(self, x: Value) -> Value:
        """Return the model's output, computed from the output of the last layer."""

    def __call__(self, *args: Any, **kwargs: Any) -> Value:
        """Return the output of the model for its inputs, in `dtype`."""
        x, beside = self.begin(*args, **kwargs)
        for layer in self.layers:
            x = self.through(layer, x, beside)
        return self.end(x)

    def input_types(self) -> list[TensorType]:
        """Return the types of the inputs, on the device of the model's first weight."""
        device = self.embedding.weight.device
        return [TensorType(DType.int64, ("batch", "seq"), device) for _ in self.INPUTS]

    def graph(self, name: str | None = None) -> Graph:
        """Return a graph of the whole model, named `name`, by default after its class."""
        self.name_weights()
        with Graph(name or type(self).__name__.lower(), self.input_types()) as graph:
            graph.output(self(*graph.inputs))
        return graph


def build_network(model: RecognizedModel, dtype: DType = DType.float32) -> Network:
    """Return the whole model, computing in `dtype`, with each weight as the checkpoint stores it.

    Raises `ArchitectureError` if the family does not have a Module, or if the checkpoint is not the
    whole model of its config, as `RecognizedModel.check` does, and `FormatError` if the file of the
    family has tensors that no layer reads.
    """
    obstacle = model.family.find_obstacle(model.config)
    if obstacle is not None:
        raise ArchitectureError(
            obstacle,
            hint="they can be listed, converted, sharded and compared tensor by tensor",
        )
    model.check()
    network: Network = load(model.family.module)(model.config, dtype)
    weights = network.raw_state_dict()
    if unread := [name for name in model.tensors if name not in weights]:
        raise FormatError(
            FAMILIES[model.family.name].source,
            None,
            f"no layer of the family reads {join_names([f'`{name}`' for name in unread], 3)}",
            hint="give the setting of `blocks` or the key that these tensors belong to; without "
            "them, the result would be wrong",
        )
    for name, weight in weights.items():
        tensor = model.tensors.get(name)
        if tensor is None:  # the caller provides it, as `verify` does for missing tensors
            continue
        encoding = tensor.info.encoding
        shape = weight.original_dtype_and_shape[1]
        if encoding.quantization is not None:
            weight.configure(DType.float32, shape, encoding.quantization)
        elif encoding.dtype is not None:
            weight.configure(encoding.dtype, shape)
    return network
