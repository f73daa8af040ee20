"""A checkpoint as a tree of dotted names."""

from __future__ import annotations

import re
from itertools import chain, islice
from operator import index
from typing import TYPE_CHECKING, Any, cast

from weightctl.errors import MissingTensorError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from weightctl.weights.data import WeightData
    from weightctl.weights.info import Header, TensorInfo
    from weightctl.weights.metadata import Value
    from weightctl.weights.source import Source

__all__ = ["Node", "Weights", "is_number", "natural", "planted"]


class Node:
    """A place in the tree: the tensor of this very name, if any, and what lies below it."""

    __slots__ = ("_is_sorted", "below", "tensor")

    def __init__(self) -> None:
        self.tensor: str | None = None
        self.below: dict[str, Node] = {}
        self._is_sorted = True

    def grow(self, segment: str) -> Node:
        """Return the node of this segment below, made where there is none."""
        found = self.below.get(segment)
        if found is not None:
            return found
        if segment.isdecimal():
            self._is_sorted = False
        made = self.below[segment] = Node()
        return made

    def children(self) -> dict[str, Node]:
        """What lies below by its segment, in the order of the file; numbers in their own."""
        if not self._is_sorted:
            # Experts by the thousand are plain numbers, which sort without being taken apart.
            key = int if all(map(is_number, self.below)) else natural
            self.below = {segment: self.below[segment] for segment in sorted(self.below, key=key)}
            self._is_sorted = True
        return self.below


def is_number(segment: str) -> bool:
    """Whether a segment is a number as layers have it: no leading zero, no more than 9 digits."""
    return (
        segment.isdecimal()
        and len(segment) <= 9
        and segment.isascii()
        and (segment[0] != "0" or segment == "0")
    )


# A name of more segments keeps the rest in one, so that nobody needs to recurse deeper.
_MAX_DEPTH = 32
# Among how many names a missing one is looked for.
_CANDIDATES = 1000


def planted(names: Iterable[str]) -> Node:
    """Return the tree of some names; the node of each knows its full name as its tensor."""
    root = Node()
    for name in names:
        _plant(root, name, name)
    return root


def _plant(root: Node, path: str, tensor: str) -> None:
    node = root
    for segment in path.split(".", _MAX_DEPTH):
        node = node.below.get(segment) or node.grow(segment)
    node.tensor = tensor


def _beyond(deepest: Node, prefix: str) -> Node:
    """Return `deepest` with what starts with `prefix` below a node of its own."""
    node = Node()
    for rest, below in deepest.below.items():
        if rest == prefix:
            node.grow(prefix).tensor = below.tensor
        elif rest.startswith(prefix + "."):
            _plant(node.grow(prefix), rest[len(prefix) + 1 :], cast("str", below.tensor))
    return node


class _Tree:
    """The names of a source as nodes, made when the first is asked for."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._root: Node | None = None

    @property
    def root(self) -> Node:
        if self._root is None:
            header = self.source.header
            self._root = planted(chain(header.tensors, header.aliases))
        return self._root

    def find(self, prefix: str) -> Node | None:
        """Return the node of a name or prefix, None where nothing is there."""
        if not prefix:
            return self.root
        *segments, last = prefix.split(".", _MAX_DEPTH)
        node = self.root
        for segment in segments:
            found = node.below.get(segment)
            if found is None:
                return None
            node = found
        if len(segments) == _MAX_DEPTH:
            node = _beyond(node, last)
        return node.below.get(last)

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

        Raises `MissingTensorError`, a `KeyError`, where there is none.
        """
        found = self.source.data(self._stored_name())
        return found if found.name == self._prefix else found.renamed(self._prefix)

    def items(self) -> Iterator[tuple[str, Weights]]:
        """Yield the full name and node of every tensor at or below this one, layer 2 before 10."""
        node = self._tree.find(self._prefix)
        if node is not None:
            for name in _walk(node):
                yield name, self._at(name)

    @property
    def tree(self) -> Node:
        """The nodes of the whole tree."""
        return self._tree.root

    def _stored_name(self) -> str:
        header, name = self.header, self._prefix
        name = header.aliases.get(name, name)
        if name not in header.tensors:
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
        names = islice(_walk(node), _CANDIDATES) if node is not None else ()
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
        tensors = sum(1 for _ in _walk(node)) if node is not None else 0
        return f"<Weights {self._prefix or 'root'}: {tensors} tensors>"


def _walk(node: Node) -> Iterator[str]:
    # A stack, since names may nest deeper than Python recurses.
    stack = [node]
    while stack:
        current = stack.pop()
        if current.tensor is not None:
            yield current.tensor
        stack.extend(reversed(current.children().values()))


def natural(name: str) -> list[tuple[int, int, str]]:
    """Return a sort key that puts numbers in a name in numeric order."""
    return [
        (0, len(digits := part.lstrip("0")), digits) if part.isdecimal() else (1, 0, part)
        for part in re.split(r"(\d+)", name)
        if part
    ]
