"""The documented interface of a tree of weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from weightctl.device import CPU

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping

    from weightctl.device import DeviceRef
    from weightctl.graph.graph import Weight
    from weightctl.weights.data import WeightData
    from weightctl.weights.dlpack import DLPackArray


@runtime_checkable
class Weights(Protocol):
    """A node in a tree of weights; attributes and indices select the nodes below it.

    `weights.model.layers[0].weight` is a node whether or not the tensor exists; `exists` tests
    this. `open_weights` returns a `Checkpoint`. Any class that has these members can be loaded into
    a `Module`, run by a session, and saved.
    """

    __slots__ = ()

    @property
    def name(self) -> str:
        """The name of this node: the name of a tensor, or a prefix of names."""
        ...

    @property
    def allocated_weights(self) -> Mapping[str, DLPackArray]:
        """The tensors of the whole tree that were allocated with `allocate`, by name."""
        ...

    def exists(self) -> bool:
        """Whether a tensor has exactly this name."""
        ...

    def data(self) -> WeightData:
        """Return the data of the tensor of this name; raises `KeyError` if there is none."""
        ...

    def items(self) -> Iterator[tuple[str, Weights]]:
        """Yield the full name and node of every tensor at or below this node."""
        ...

    def allocate(
        self,
        # The documented class accepts a `DType` and documented shapes; ours accepts all spellings.
        # Both satisfy this protocol only if it does not restrict the types.
        dtype: Any = None,
        shape: Any = None,
        quantization_encoding: Any = None,
        device: DeviceRef = CPU,
    ) -> Weight:
        """Return a graph's `Weight` for the tensor of this name.

        `dtype` is a `DType`, `shape` a sequence of sizes and names, `quantization_encoding` a
        `QuantizationEncoding`. For None, the stored form is used.
        """
        ...

    def __getattr__(self, segment: str, /) -> Weights: ...

    def __getitem__(self, key: str | int, /) -> Weights: ...


class HasState(Protocol):
    """A module of weightctl or torch: `state_dict` returns its weights as arrays by name."""

    def state_dict(self) -> Any:
        """Return the values of all weights by name."""
        ...


# What functions open: a path or a URL, a tree, arrays by name, or a module.
Openable: TypeAlias = "str | os.PathLike[str] | Weights | Mapping[str, Any] | HasState"
