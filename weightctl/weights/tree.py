"""A checkpoint as a tree of dotted names."""

from __future__ import annotations

from itertools import chain, islice
from operator import index
from typing import TYPE_CHECKING, Any

from weightctl.device import CPU
from weightctl.errors import MissingTensorError
from weightctl.weights.nodes import find, planted, walk

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from weightctl.device import DeviceRef
    from weightctl.dtype import DType, QuantizationEncoding
    from weightctl.graph.weight import Weight
    from weightctl.shape import ShapeLike
    from weightctl.weights.allocation import Allocations
    from weightctl.weights.data import WeightData
    from weightctl.weights.dlpack import DLPackArray
    from weightctl.weights.info import Header, TensorInfo
    from weightctl.weights.metadata import Value
    from weightctl.weights.nodes import Node
    from weightctl.weights.source import Source

__all__ = ["Weights"]

# Among how many names a missing one is looked for.
_CANDIDATES = 1000


class _Tree:
    """The names of a source as nodes, made when the first is asked for, and what is allocated.

    A copy, or what comes back from a pickle, has the same names and has allocated nothing.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self._root: Node | None = None
        self._allocations: Allocations | None = None

    @property
    def allocations(self) -> Allocations:
        if self._allocations is None:
            from weightctl.weights.allocation import Allocations  # a listing needs none

            self._allocations = Allocations(self.source)
        return self._allocations

    @property
    def root(self) -> Node:
        if self._root is None:
            header = self.source.header
            self._root = planted(chain(header.tensors, header.aliases))
        return self._root

    def find(self, prefix: str) -> Node | None:
        """Return the node of a name or prefix, None where nothing is there."""
        return find(self.root, prefix)

    def __reduce__(self) -> tuple[type[_Tree], tuple[Source]]:
        return (_Tree, (self.source,))


class Weights:
    """A node in a checkpoint's tree of names; a tensor where one has exactly this name.

    `weights.model.layers[0].weight`, `weights["model.layers.0.weight"]` and
    `weights.model["layers"][0].weight` are the same node. Going somewhere never fails; asking a
    place for what is not there does. Iterating gives the names of the children, numbers in order.
    """

    __slots__ = ("_prefix", "_tree")

    def __init__(self, source: Source) -> None:
        self._tree = _Tree(source)
        self._prefix = ""

    @classmethod
    def from_data(
        cls, tensors: Mapping[str, WeightData], metadata: Mapping[str, Value] | None = None
    ) -> Weights:
        """Make a tree of tensors in memory."""
        from weightctl.weights.source import Held

        return cls(Held(dict(tensors), dict(metadata or {})))

    @classmethod
    def declared(cls) -> Weights:
        """Make a tree in which nothing is loaded: `allocate` declares weights of any name."""
        from weightctl.weights.source import Declared

        return cls(Declared())

    @property
    def name(self) -> str:
        """The name, or prefix of names, that this node stands for."""
        return self._prefix

    @property
    def source(self) -> Source:
        """Where the bytes of the whole tree come from."""
        return self._tree.source

    @property
    def header(self) -> Header:
        """What the checkpoint says about itself."""
        return self._tree.source.header

    @property
    def metadata(self) -> Mapping[str, Value]:
        """The checkpoint's metadata, each value with its type."""
        return self.header.metadata

    @property
    def info(self) -> TensorInfo:
        """Shape and encoding of the tensor of this name; `MissingTensorError` where none is."""
        info = self.header.tensors[self._stored_name()]
        return info._replace(name=self._prefix)

    def exists(self) -> bool:
        """Whether a tensor has exactly this name."""
        return self._prefix in self.header.tensors or self._prefix in self.header.aliases

    def data(self) -> WeightData:
        """Return the data of the tensor of this name; nothing is read before it is touched.

        The data of a file is a private mapping of it, where its bytes can be used in place. Access
        to a mapping ends the process (SIGBUS) if another program has made the file shorter since.
        Commands read files instead; `source.read_into` does that, and raises `FormatError` then.
        Raises `MissingTensorError`, a `KeyError`, where there is none.
        """
        found = self.source.data(self._stored_name())
        return found if found.name == self._prefix else found.renamed(self._prefix)

    def taken(self) -> WeightData:
        """Return the data as `allocate` was asked for it, or where it was not, as it is stored.

        Nothing is read or converted before it is touched, and the tree keeps nothing of it. Raises
        `MissingTensorError` where there is none.
        """
        return self._tree.allocations.taken(self._prefix, self._stored_name())

    def gave(self, weight: int) -> bool:
        """Whether the weight that has this `id` is one that `allocate` gave, of whatever name."""
        return self._tree.allocations.gave(weight)

    def allocate(
        self,
        dtype: DType | None = None,
        shape: ShapeLike | None = None,
        quantization_encoding: QuantizationEncoding | None = None,
        device: DeviceRef = CPU,
    ) -> Weight:
        """Return a graph's `Weight` for the tensor of this name; nothing is read.

        What is not given is as it is stored. Another dtype converts the numbers, and dequantizes
        blocks; an encoding packs them into blocks, and `dtype` is then what they become where they
        are used, or uint8, with which `shape` too is that of the bytes. A name in `shape` stands
        for any size, the same wherever it stands, and the weight has the sizes themselves. The same
        request for the same name gives the same weight.

        In a tree of `declared` the weight is what is asked for, of a dtype and shape that must be
        given. Raises `MissingTensorError` where the checkpoint has no such tensor, `EncodingError`
        where it cannot be stored like that, and `GraphError` for another shape than it has and for
        a name that was allocated otherwise before; nothing is allocated then. The latter two are
        `ValueError`s.
        """
        return self._tree.allocations.allocate(
            self._prefix,
            None if self._is_declaring else self._stored_name(),
            dtype=dtype,
            shape=shape,
            quantization=quantization_encoding,
            device=device,
        )

    @property
    def allocated_weights(self) -> dict[str, DLPackArray]:
        """The tensors of the whole tree that were allocated, each as it was asked for.

        They are `WeightData`, read and converted when their data is first touched, and made anew
        each time: the tree keeps none. What is only declared has no data, and is not among them.
        """
        return dict(self._tree.allocations.data())

    @property
    def _is_declaring(self) -> bool:
        return self.header.format == "declared"

    def items(self) -> Iterator[tuple[str, Weights]]:
        """Yield the full name and node of every tensor at or below this one, layer 2 before 10."""
        node = self._tree.find(self._prefix)
        if node is not None:
            for name in walk(node):
                yield name, self._at(name)

    @property
    def tree(self) -> Node:
        """The nodes of the whole tree."""
        return self._tree.root

    def _stored_name(self) -> str:
        header, name = self.header, self._prefix
        name = header.aliases.get(name, name)
        if name not in header.tensors:
            if self._is_declaring:
                from weightctl.weights.source import nothing_loaded

                raise nothing_loaded(name)
            raise MissingTensorError(f"no tensor is called `{name}`", hint=self._suggestion(name))
        return name

    def _suggestion(self, name: str) -> str:
        import difflib  # only on an error

        # What is below the part of the name that is right; among all names of a large tree the
        # search would take a second.
        known = name
        while known and self._tree.find(known) is None:
            known = known.rpartition(".")[0]
        node = self._tree.find(known)
        names = islice(walk(node), _CANDIDATES) if node is not None else ()
        near = difflib.get_close_matches(name, names, n=3)
        if near:
            return f"did you mean {' or '.join(f'`{match}`' for match in near)}?"
        return f"the checkpoint has {len(self.header.tensors)} tensors; `items()` yields them"

    def _at(self, name: str) -> Weights:
        node = object.__new__(Weights)
        node._tree, node._prefix = self._tree, name  # of this class
        return node

    def __getattr__(self, segment: str) -> Weights:
        # What Python and its tools probe for is no tensor; saying that it were would break them.
        if segment.startswith(("__", "_repr_", "_ipython_")):
            raise AttributeError(segment)
        return self[segment]

    def __getitem__(self, key: str | int) -> Weights:
        segment = key if isinstance(key, str) else str(index(key))
        return self._at(f"{self._prefix}.{segment}" if self._prefix else segment)

    def __iter__(self) -> Iterator[str]:
        node = self._tree.find(self._prefix)
        return iter(node.children() if node is not None else ())

    def __contains__(self, segment: object) -> bool:
        if not isinstance(segment, str | int):
            return False
        return self._tree.find(self[segment].name) is not None

    def __dir__(self) -> list[str]:
        return [*object.__dir__(self), *self]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Weights):
            return NotImplemented
        return self._tree is other._tree and self._prefix == other._prefix

    def __hash__(self) -> int:
        return hash((id(self._tree), self._prefix))

    def __getstate__(self) -> tuple[_Tree, str]:
        return (self._tree, self._prefix)

    def __setstate__(self, state: tuple[Any, str]) -> None:
        self._tree, self._prefix = state

    def __repr__(self) -> str:
        if self.exists():
            info = self.info
            return f"<Weights {self._prefix}: {info.encoding} {list(info.shape)}>"
        node = self._tree.find(self._prefix)
        tensors = sum(1 for _ in walk(node)) if node is not None else 0
        return f"<Weights {self._prefix or 'root'}: {tensors} tensors>"
