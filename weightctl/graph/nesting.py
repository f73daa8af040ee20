"""Nested graphs: which graph calls which, and the names of weights across all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import GraphError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weightctl.graph.graph import Graph
    from weightctl.graph.weight import Weight


class WeightName(NamedTuple):
    """The name of a weight in a graph: a full name, or the part after the prefix of a call."""

    name: str
    is_placeholder: bool

    def add_prefix(self, prefix: str, *, stays_open: bool) -> WeightName:
        """Return the name of the weight in a graph that calls this one with a prefix."""
        if not self.is_placeholder:
            return self
        return WeightName(prefix + self.name, stays_open)


def is_placeholder(graph: Graph, name: str) -> bool:
    """Whether the name starts with the graph's prefix, so that each call uses another weight."""
    return graph.weight_prefix != "" and name.startswith(graph.weight_prefix)


def weight_names(graph: Graph) -> set[WeightName]:
    """Return the names of the weights of a graph and of all graphs that it calls."""
    return _weight_names(graph, {})


def calls(graph: Graph, wanted: Graph) -> bool:
    """Whether a graph is `wanted`, or calls it directly or indirectly."""
    seen: dict[int, Graph] = {}
    left = [graph]
    while left:
        found = left.pop()
        if found is wanted:
            return True
        if id(found) not in seen:
            seen[id(found)] = found
            left += [node.attributes["subgraph"] for node in found.nodes if node.op == "call"]
    return False


def refuse_fixed_name(graph: Graph, name: str) -> None:
    """Raise `GraphError` if a full name is used in a graph that represents several layers."""
    for outer in _enclosing(graph):
        if is_placeholder(outer, name):
            raise GraphError(
                f"subgraph `{graph.name}` uses the fixed name `{name}`, so every call of "
                f"`{outer.name}` would use the same weight, whatever the prefix of the call",
                hint=f"build `{graph.name}` inside `{outer.name}` with a `weight_prefix` that "
                f"starts with `{outer.weight_prefix}`, and pass the same string to `ops.call` "
                "as `prefix`",
            )


def refuse_renamed(graph: Graph, weight: Weight) -> None:
    """Raise `GraphError` if a weight was renamed after the graph took it."""
    if graph.weights_by_name.get(weight.name) is weight:
        return
    known = next(name for name, found in graph.weights_by_name.items() if found is weight)
    raise GraphError(
        f"weight `{known}` of graph `{graph.name}` was renamed to `{weight.name}` after the graph "
        "was built",
        hint="rename weights before you build the graph",
    )


def refuse_second_weight(graph: Graph, weight: Weight) -> None:
    """Raise `GraphError` if another weight has the same name, also in another subgraph.

    Placeholder names in other subgraphs do not count: weights are not loaded by those names.
    """
    name = weight.name
    *_, root = _enclosing(graph)
    others = () if is_placeholder(graph, name) else _all_graphs(root)
    for found in (graph, *others):
        other = found.weights_by_name.get(name)
        if other is None or other is weight or (found is not graph and is_placeholder(found, name)):
            continue
        where = f"graph `{graph.name}`"
        if found is not graph:
            where = f"graphs `{found.name}` and `{graph.name}`"
        raise GraphError(
            f"two weights of {where} are named `{name}`: {other.type} and {weight.type}",
            hint="call `state_dict()` of the outermost Module to give its weights unique names",
        )


def _weight_names(graph: Graph, known: dict[int, set[WeightName]]) -> set[WeightName]:
    if id(graph) in known:
        return known[id(graph)]
    names: set[WeightName] = set()
    for node in graph.nodes:
        attributes = node.attributes
        if node.op == "weight":
            names.add(WeightName(attributes["name"], attributes["is_placeholder"]))
        elif node.op == "call":
            prefix, stays_open = attributes["prefix"], attributes["is_placeholder"]
            names |= {
                name.add_prefix(prefix, stays_open=stays_open)
                for name in _weight_names(attributes["subgraph"], known)
            }
    known[id(graph)] = names
    return names


def _enclosing(graph: Graph) -> Iterator[Graph]:
    """Yield a graph, the graph that it is a subgraph of, and so on to the outermost."""
    outer: Graph | None = graph
    while outer is not None:
        yield outer
        outer = outer.parent


def _all_graphs(graph: Graph) -> Iterator[Graph]:
    yield graph
    for subgraph in graph.subgraphs.values():
        yield from _all_graphs(subgraph)
