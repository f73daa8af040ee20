"""Dotted names as a tree of nodes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class TreeNode:
    """A node of the tree: the tensor with exactly this name, if it exists, and the children."""

    __slots__ = ("_is_sorted", "below", "tensor")

    def __init__(self) -> None:
        self.tensor: str | None = None
        self.below: dict[str, TreeNode] = {}
        self._is_sorted = True

    def grow(self, segment: str) -> TreeNode:
        """Return the child of a segment; create it if it does not exist."""
        found = self.below.get(segment)
        if found is not None:
            return found
        if segment.isdecimal():
            self._is_sorted = False
        made = self.below[segment] = TreeNode()
        return made

    def children(self) -> dict[str, TreeNode]:
        """The children by segment: in natural order if any is a number, else in file order."""
        if not self._is_sorted:
            # Layers can have thousands of experts; plain numbers sort without further parsing.
            key = int if all(map(is_number, self.below)) else natural
            self.below = {segment: self.below[segment] for segment in sorted(self.below, key=key)}
            self._is_sorted = True
        return self.below


def is_number(segment: str) -> bool:
    """Whether a segment is a layer number: at most 9 digits, without leading zeros."""
    return (
        segment.isdecimal()
        and len(segment) <= 9
        and segment.isascii()
        and (segment[0] != "0" or segment == "0")
    )


# The rest of a longer name is one segment, which limits the depth of the tree.
_MAX_DEPTH = 32


def build_tree(names: Iterable[str]) -> TreeNode:
    """Return the tree of some names; `tensor` of each leaf is the full name."""
    root = TreeNode()
    for name in names:
        _plant(root, name, name)
    return root


def _plant(root: TreeNode, path: str, tensor: str) -> None:
    node = root
    for segment in path.split(".", _MAX_DEPTH):
        node = node.below.get(segment) or node.grow(segment)
    node.tensor = tensor


def _beyond(deepest: TreeNode, prefix: str) -> TreeNode:
    """Return a copy of `deepest`, with the entries that start with `prefix` below one node."""
    node = TreeNode()
    # At this depth, each child is the rest of a name, so it has a tensor.
    for rest, below in deepest.below.items():
        if rest == prefix:
            node.grow(prefix).tensor = below.tensor
        elif rest.startswith(prefix + "."):
            _plant(node.grow(prefix), rest[len(prefix) + 1 :], cast("str", below.tensor))
    return node


def find(root: TreeNode, prefix: str) -> TreeNode | None:
    """Return the node of a name or prefix; None if it does not exist."""
    if not prefix:
        return root
    *segments, last = prefix.split(".", _MAX_DEPTH)
    node = root
    for segment in segments:
        found = node.below.get(segment)
        if found is None:
            return None
        node = found
    if len(segments) == _MAX_DEPTH:
        node = _beyond(node, last)
    return node.below.get(last)


def walk(node: TreeNode) -> Iterator[str]:
    """Yield the names of all tensors at and below a node, in order."""
    # A stack instead of recursion, because names can be nested deeply.
    stack = [node]
    while stack:
        current = stack.pop()
        if current.tensor is not None:
            yield current.tensor
        stack.extend(reversed(current.children().values()))


def natural(name: str) -> list[tuple[int, int, str]]:
    """Return a sort key that orders the numbers in names by value: 2 before 10."""
    return [
        (0, len(digits := part.lstrip("0")), digits) if part.isdecimal() else (1, 0, part)
        for part in re.split(r"(\d+)", name)
        if part
    ]
