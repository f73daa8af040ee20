"""Makes the lines of a checkpoint's tree, with equal layers folded into one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from weightctl.text.columns import Cell
from weightctl.text.wording import join_ranges
from weightctl.weights.nodes import is_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from weightctl.weights.nodes import TreeNode

Entry = TypeVar("Entry")


class OutlineLine(NamedTuple, Generic[Entry]):
    """A line of the outline: a tensor, or a branch with the tensors below it.

    `times` is the number of nodes that are folded into this line, and `tensors` counts those of all
    of them. `entries` describe the tensor, in each way that the folded nodes have; there are none
    for a branch or a tied name. `sizes` are the bytes of the line; there are several if layers that
    are folded further up differ in them. `name` is the full name of the tensor, or of the first one
    that is folded here.
    """

    depth: int
    label: str
    name: str | None
    entries: tuple[Entry, ...]
    times: int
    tensors: int
    sizes: tuple[int, ...]

    @property
    def entry(self) -> Entry | None:
        """The description of the tensor, or of the first one; None for a branch or a tied name."""
        return self.entries[0] if self.entries else None

    @property
    def text(self) -> str:
        """The label, indented by the depth, and how many equal nodes are folded here."""
        times = f"  x{self.times}" if self.times > 1 else ""
        return f"{'  ' * self.depth}{self.label}{times}"

    @property
    def below(self) -> Cell:
        """The number of tensors below: `27 tensors`, or `3 x 9 tensors` for folded branches."""
        each = self.tensors // self.times
        noun = "tensor" if each == 1 else "tensors"
        text = f"{each} {noun}" if self.times == 1 else f"{self.times} x {each} {noun}"
        return Cell(text if self.tensors else "", "dim", right=True)


# The measure of a node: a number that equal nodes share, the number of tensors below it, and the
# bytes of these tensors.
_Measured = tuple[int, int, int]


class _Fold(NamedTuple):
    """Nodes that are shown in one line: one of each kind, and the sizes of the line."""

    label: str
    times: int
    nodes: list[TreeNode]
    sizes: tuple[int, ...]


class _Outline(Generic[Entry]):
    """Makes the lines of a tree, and caches the measure of each node."""

    def __init__(
        self,
        entries: Mapping[str, Entry],
        look: Callable[[Entry], tuple[object, int, int]],
        loosen: Callable[[Entry], object] | None,
    ) -> None:
        self._entries = entries
        self._look = look
        self._loosen = loosen
        self._loose: dict[int, object] = {}
        self._measured: dict[TreeNode, _Measured] = {}
        self._shapes: dict[object, int] = {}

    def measure(self, node: TreeNode) -> _Measured:
        """Return the measure of a node, which is computed once."""
        known = self._measured.get(node)
        if known is None:
            known = self._measured[node] = self._look_at(node)
        return known

    def _look_at(self, node: TreeNode) -> _Measured:
        parts: list[object] = []
        below = node.below
        # Most nodes have one child; a loop is faster than recursion there.
        while len(below) == 1 and node.tensor is None:
            for segment, node in below.items():  # noqa: B007, PLR1704  # the only one
                parts.append(segment)
            below = node.below
        tensors = nbytes = 0
        kind: object = node.tensor is not None
        entry = self._entry(node)
        if entry is not None:
            kind, tensors, nbytes = self._look(entry)
        # The kind is in a tuple, so that it differs from the segments of names.
        parts.append((kind,))
        if below:
            measured = self._measured
            for segment, inner in node.children().items():
                part = measured.get(inner)
                if part is None:
                    part = measured[inner] = self._look_at(inner)
                parts.append(segment)
                parts.append(part[0])
                tensors += part[1]
                nbytes += part[2]
        shapes = self._shapes
        return shapes.setdefault(tuple(parts), len(shapes)), tensors, nbytes

    def _entry(self, node: TreeNode) -> Entry | None:
        return self._entries.get(node.tensor) if node.tensor is not None else None

    def _find_alike(self, node: TreeNode) -> object:
        """Return a key that nodes share if they can be shown in one line."""
        number = self.measure(node)[0]
        if self._loosen is None:
            return number
        if number not in self._loose:
            entry = self._entry(node)
            own = None if entry is None else self._loosen(entry)
            below = ((name, self._find_alike(inner)) for name, inner in node.children().items())
            self._loose[number] = (node.tensor is not None, own, *below)
        return self._loose[number]

    def lines(
        self, nodes: Sequence[TreeNode], depth: int, limit: int | None
    ) -> Iterator[OutlineLine[Entry]]:
        """Yield the lines below nodes that are shown as one, down to `limit` levels."""
        for fold in self._fold_children(nodes):
            label, times, below, sizes = fold
            # A branch with a single child shares its line.
            while below[0].tensor is None and len(inside := self._fold_children(below)) == 1:
                if times > 1 < inside[0].times:
                    break
                label, times = f"{label}.{inside[0].label}", times * inside[0].times
                below = inside[0].nodes
            entries = tuple(entry for node in below if (entry := self._entry(node)) is not None)
            tensors = times * self.measure(below[0])[1]
            yield OutlineLine(depth, label, below[0].tensor, entries, times, tensors, sizes)
            if below[0].children() and (limit is None or depth + 1 < limit):
                yield from self.lines(below, depth + 1, limit)

    def _fold_children(self, nodes: Sequence[TreeNode]) -> list[_Fold]:
        """Return the children of nodes that are shown as one.

        Children with numbers as names are folded into one if they are alike: `[0-2,4]`.
        """
        groups: dict[object, list[str]] = {}
        children = [node.children() for node in nodes]
        for segment, below in children[0].items():
            key = (self._find_alike(below),) if is_number(segment) else segment
            groups.setdefault(key, []).append(segment)
        folds: list[_Fold] = []
        for alike, segments in groups.items():
            kinds: dict[int, TreeNode] = {}
            sizes: dict[int, None] = {}
            for each in children:
                total = 0
                for node in map(each.__getitem__, segments):
                    number, _, nbytes = self.measure(node)
                    kinds.setdefault(number, node)
                    total += nbytes
                sizes[total] = None
            label = alike if isinstance(alike, str) else join_ranges(segments)
            folds.append(_Fold(label, len(segments), [*kinds.values()], tuple(sizes)))
        return folds


def outline(
    root: TreeNode,
    entries: Mapping[str, Entry],
    look: Callable[[Entry], tuple[object, int, int]],
    limit: int | None = None,
    loosen: Callable[[Entry], object] | None = None,
) -> Iterator[OutlineLine[Entry]]:
    """Yield the lines that show a tree, at most `limit` levels of it, if given.

    `look` returns a key that equal entries share, the number of tensors of an entry, and its bytes.
    `loosen` returns a key that entries share if layers that differ in them are shown as one.
    """
    return _Outline(entries, look, loosen).lines([root], 0, limit)
