"""Graphs as readable text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.device import DeviceRef
from weightctl.dtype import DType, QuantizationEncoding
from weightctl.shape import Dim
from weightctl.text.untyped import is_sequence
from weightctl.weights.buffer import Buffer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weightctl.graph.graph import Graph, GraphNode

# Constants with more elements are shown by their number of elements.
_MOST_NUMBERS = 8


def dump(graph: Graph) -> str:
    """Return a line for each operation, with the types of its results and the layer that added it.

    Subgraphs follow, each once, however often they are called.
    """
    return "\n".join(_lines(graph))


def _lines(graph: Graph) -> Iterator[str]:
    inputs = ", ".join(map(repr, graph.inputs))
    yield f"graph {graph.name}({inputs}):"
    path = ""
    for node in graph.nodes:
        if node.op == "input":
            continue
        if node.path != path:
            path = node.path
            yield f"  # {path or graph.name}"
        yield f"  {_line(node)}"
    yield f"  return {', '.join(f'%{value.number}' for value in graph.outputs)}"
    for subgraph in graph.subgraphs.values():
        yield ""
        yield from _lines(subgraph)


def _line(node: GraphNode) -> str:
    results = ", ".join(f"%{value.number}" for value in node.outputs)
    types = ", ".join(str(value.type) for value in node.outputs)
    name = node.attributes.get("function", node.op)
    given = [f"%{value.number}" for value in node.inputs]
    if node.op == "weight":
        given = [_weight(node)]
    elif node.op == "call":
        name = f"call {node.attributes['subgraph'].name}"
        given.append(f"prefix={_prefix(node)}")
    else:
        given += [
            f"{key}={_text(content)}"
            for key, content in node.attributes.items()
            if key != "function" and content is not None
        ]
    return f"{results} = {name}({', '.join(given)}): {types}"


def _weight(node: GraphNode) -> str:
    encoding = node.attributes["encoding"]
    quantized = "" if encoding is None else f", {encoding.name}"
    return f"{_prefix(node, 'name')}{quantized}"


def _prefix(node: GraphNode, key: str = "prefix") -> str:
    before = "<prefix>" if node.attributes["is_placeholder"] else ""
    return f"{before}{node.attributes[key]}"


def _text(content: Any) -> str:
    if isinstance(content, DType | QuantizationEncoding):
        return content.name
    if content is None or isinstance(content, Dim | DeviceRef | str | int | float):
        return str(content)
    if isinstance(content, Buffer):
        return _show_values(content)
    if is_sequence(content):
        return f"[{', '.join(map(_text, content))}]"
    return type(content).__name__


def _show_values(held: Buffer) -> str:
    if held.size > _MOST_NUMBERS:
        return f"<{held.size} numbers>"
    return str(held.to_numpy().tolist())
