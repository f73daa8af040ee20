"""A checkpoint at a glance: its tree, with layers that are alike folded into one."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from weightctl.weights.info import Header, TensorInfo
    from weightctl.weights.tree import Node

__all__ = ["Line", "outline"]


class Line(NamedTuple):
    """A line of the outline: a tensor, or a branch with what is below it.

    `times` is how many like it are folded into this line; `tensors` and `nbytes` are of all of
    them. `info` is None for a branch, and `alias` is the tensor that a tied name stands for.
    """

    depth: int
    label: str
    info: TensorInfo | None
    times: int
    tensors: int
    nbytes: int
    alias: str | None = None


class _Measured(NamedTuple):
    """What is below a node; two nodes with the same `shape` number are alike."""

    shape: int
    tensors: int
    nbytes: int


class _Outline:
    """Makes the lines; remembers what it has measured."""

    def __init__(self, header: Header) -> None:
        self._tensors: Mapping[str, TensorInfo] = header.tensors
        self._aliases = header.aliases
        self._measured: dict[int, _Measured] = {}
        self._shapes: dict[object, int] = {}

    def measure(self, node: Node) -> _Measured:
        """Return what is below a node; each node is looked at once."""
        known = self._measured.get(id(node))
        if known is not None:
            return known
        tensors = nbytes = 0
        parts: list[object] = []
        if node.tensor is not None:
            info = self._tensors.get(node.tensor)
            parts.append((info.shape, info.encoding) if info else "tied")
            tensors, nbytes = (1, info.nbytes) if info else (0, 0)
        for segment, below in node.children().items():
            part = self.measure(below)
            parts.append((segment, part.shape))
            tensors += part.tensors
            nbytes += part.nbytes
        shape = self._shapes.setdefault(tuple(parts), len(self._shapes))
        measured = self._measured[id(node)] = _Measured(shape, tensors, nbytes)
        return measured

    def lines(self, node: Node, depth: int, limit: int | None) -> Iterator[Line]:
        """Yield what is below a node, down to `limit` levels."""
        for label, below, times in self._folded(node):
            joined = label
            # A branch with one thing below it shares its line.
            while below.tensor is None and len(inside := self._folded(below)) == 1:
                ((segment, inner, more),) = inside
                if times > 1 < more:
                    break
                joined, below, times = f"{joined}.{segment}", inner, times * more  # noqa: PLW2901
            yield self._line(depth, joined, below, times)
            if below.children() and (limit is None or depth + 1 < limit):
                yield from self.lines(below, depth + 1, limit)

    def _line(self, depth: int, label: str, node: Node, times: int) -> Line:
        measured = self.measure(node)
        info = self._tensors.get(node.tensor) if node.tensor is not None else None
        alias = self._aliases.get(node.tensor) if node.tensor is not None and not info else None
        tensors, nbytes = times * measured.tensors, times * measured.nbytes
        return Line(depth, label, info, times, tensors, nbytes, alias)

    def _folded(self, node: Node) -> list[tuple[str, Node, int]]:
        """Return the children, numbered ones that are alike as one: `[0-2,4]`."""
        groups: dict[int, list[str]] = {}
        order: list[tuple[str, Node] | int] = []
        children = node.children()
        for segment, below in children.items():
            if not segment.isdecimal():
                order.append((segment, below))
                continue
            shape = self.measure(below).shape
            if shape not in groups:
                groups[shape] = []
                order.append(shape)
            groups[shape].append(segment)
        return [
            (*entry, 1)
            if isinstance(entry, tuple)
            else (_numbers(groups[entry]), children[groups[entry][0]], len(groups[entry]))
            for entry in order
        ]


def _numbers(segments: list[str]) -> str:
    if len(segments) == 1:
        return segments[0]
    runs: list[list[int]] = []
    for number in map(int, segments):
        if runs and runs[-1][-1] + 1 == number:
            runs[-1][-1:] = [number] if len(runs[-1]) > 1 else [runs[-1][0], number]
        else:
            runs.append([number])
    return "[" + ",".join("-".join(map(str, run)) for run in runs) + "]"


def outline(root: Node, header: Header, limit: int | None = None) -> Iterator[Line]:
    """Yield the lines that show a tree, `limit` levels deep or whole."""
    return _Outline(header).lines(root, 0, limit)
