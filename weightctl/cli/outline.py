"""Makes the lines of a checkpoint's tree, with equal layers folded into one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from weightctl.cli.render import Cell
from weightctl.text.wording import join_ranges
from weightctl.weights.nodes import is_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from weightctl.weights.nodes import TreeNode

Entry = TypeVar("Entry")


class OutlineLine(NamedTuple, Generic[Entry]):
    """A line of the outline: a tensor, or a branch with the tensors below it.

    `times` is the number of equal nodes that are folded into this line; `tensors` and `nbytes`
    count those of all of them. `entry` describes the tensor; it is None for a branch or a tied
    name. `name` is the full name of the tensor, or of the first one that is folded here.
    """

    depth: int
    label: str
    name: str | None
    entry: Entry | None
    times: int
    tensors: int
    nbytes: int

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


class _Outline(Generic[Entry]):
    """Makes the lines of a tree, and caches the measure of each node."""

    def __init__(
        self, entries: Mapping[str, Entry], look: Callable[[Entry], tuple[object, int, int]]
    ) -> None:
        self._entries = entries
        self._look = look
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

    def lines(self, node: TreeNode, depth: int, limit: int | None) -> Iterator[OutlineLine[Entry]]:
        """Yield the lines below a node, down to `limit` levels."""
        for label, below, times in self._fold_children(node):
            joined = label
            # A branch with a single child shares its line.
            while below.tensor is None and len(inside := self._fold_children(below)) == 1:
                ((segment, inner, more),) = inside
                if times > 1 < more:
                    break
                joined, below, times = f"{joined}.{segment}", inner, times * more  # noqa: PLW2901
            yield self._line(depth, joined, below, times)
            if below.children() and (limit is None or depth + 1 < limit):
                yield from self.lines(below, depth + 1, limit)

    def _line(self, depth: int, label: str, node: TreeNode, times: int) -> OutlineLine[Entry]:
        _, tensors, nbytes = self.measure(node)
        entry = self._entry(node)
        return OutlineLine(depth, label, node.tensor, entry, times, times * tensors, times * nbytes)

    def _fold_children(self, node: TreeNode) -> list[tuple[str, TreeNode, int]]:
        """Return the children, each with its label and the number of nodes that it stands for.

        Equal children with numbers as names are folded into one: `[0-2,4]`.
        """
        groups: dict[int, list[str]] = {}
        order: list[tuple[str, TreeNode] | int] = []
        children = node.children()
        for segment, below in children.items():
            if not is_number(segment):
                order.append((segment, below))
                continue
            shape = self.measure(below)[0]
            if shape not in groups:
                groups[shape] = []
                order.append(shape)
            groups[shape].append(segment)
        return [
            (*entry, 1)
            if isinstance(entry, tuple)
            else (join_ranges(groups[entry]), children[groups[entry][0]], len(groups[entry]))
            for entry in order
        ]


def outline(
    root: TreeNode,
    entries: Mapping[str, Entry],
    look: Callable[[Entry], tuple[object, int, int]],
    limit: int | None = None,
) -> Iterator[OutlineLine[Entry]]:
    """Yield the lines that show a tree, at most `limit` levels of it, if given.

    `look` returns a key that equal entries share, the number of tensors of an entry, and its bytes.
    """
    return _Outline(entries, look).lines(root, 0, limit)
