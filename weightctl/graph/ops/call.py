"""Calls of subgraphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.errors import GraphError
from weightctl.graph.graph import (
    apply_all,
    calls,
    current_graph,
    graphs,
    is_placeholder,
    refuse_fixed_name,
    weight_names,
)
from weightctl.graph.ops.rules import Op
from weightctl.graph.scope import refusing
from weightctl.text.untyped import is_sequence
from weightctl.text.wording import pluralize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.graph.graph import Graph, Value, ValueLike
    from weightctl.graph.types import TensorType
    from weightctl.shape import Dim


def call(
    subgraph: Graph, *args: ValueLike | Sequence[ValueLike], prefix: str = ""
) -> tuple[Value, ...]:
    """Return the outputs of a subgraph; `prefix` is put before the names of its weights.

    Lists among the arguments are flattened. If the current graph has a `weight_prefix` itself, a
    `prefix` that starts with it is a placeholder too, which each call of the current graph
    replaces. That `weight_prefix` is the default for a subgraph that has the same. Raises
    `GraphError` if the arguments do not match the subgraph's input types, where each named
    dimension has one size; if the subgraph was not built inside this graph, or calls it; if the
    weights are placeholders and there is no prefix; or if there is a prefix and the weights have
    full names.
    """
    graph = current_graph()
    given = _flatten(args)
    with refusing("call", *given):
        _require_callable(graph, subgraph)
        if not prefix and subgraph.weight_prefix == graph.weight_prefix:
            prefix = graph.weight_prefix
        stays_open = is_placeholder(graph, prefix)
        _require_prefix(graph, subgraph, prefix, stays_open=stays_open)
    return apply_all(
        CALL,
        *given,
        subgraph=subgraph,
        prefix=prefix.removeprefix(graph.weight_prefix) if stays_open else prefix,
        is_placeholder=stays_open,
    )


def _require_callable(graph: Graph, subgraph: Any) -> None:
    """Raise `GraphError` unless the graph may call this subgraph."""
    if not hasattr(subgraph, "subgraphs"):
        raise GraphError(
            f"{subgraph!r} is not a graph", hint="use `Graph.add_subgraph` to make a subgraph"
        )
    open_graphs = graphs.get()
    if any(subgraph is one for one in open_graphs):
        raise GraphError(f"graph `{subgraph.name}` cannot call itself")
    if not any(subgraph is one for outer in open_graphs for one in outer.subgraphs.values()):
        raise GraphError(
            f"`{subgraph.name}` is not a subgraph of graph `{graph.name}`",
            hint="use `Module.build_subgraph` or `Graph.add_subgraph` in the open graph",
        )
    if calls(subgraph, graph):
        raise GraphError(
            f"`{subgraph.name}` calls graph `{graph.name}`, so the graph would call itself",
            hint="calls between graphs must not form a cycle",
        )


def _require_prefix(graph: Graph, subgraph: Graph, prefix: str, *, stays_open: bool) -> None:
    """Raise `GraphError` if the prefix is missing or has no effect."""
    names = weight_names(subgraph)
    is_open = any(name.is_placeholder for name in names)
    if is_open and not prefix:
        raise GraphError(
            f"the weights of subgraph `{subgraph.name}` are placeholders, but no prefix is given",
            hint="supply a matching prefix, such as `ops.call(..., "
            f'prefix="{subgraph.weight_prefix}")`',
        )
    if prefix and names and not is_open and not subgraph.weight_prefix:
        raise GraphError(
            f"the weights of subgraph `{subgraph.name}` have full names, so the prefix "
            f"`{prefix}` has no effect",
            hint="build the subgraph with the weight_prefix that the names of its weights "
            "start with",
        )
    for name in sorted(names):
        called = name.add_prefix(prefix, stays_open=stays_open)
        if not called.is_placeholder:
            refuse_fixed_name(graph, called.name)


def _flatten(args: Sequence[Any]) -> list[ValueLike]:
    """Return the values of nested lists, in order."""
    flat: list[ValueLike] = []
    for arg in args:
        flat += _flatten(arg) if is_sequence(arg) else [arg]
    return flat


def infer_call(
    *types: TensorType,
    subgraph: Graph,
    prefix: str,  # noqa: ARG001  # does not change the types
    is_placeholder: bool,  # noqa: ARG001  # does not change the types
) -> tuple[TensorType, ...]:
    """Return the subgraph's output types, with its named dimensions replaced by the caller's."""
    expected = [value.type for value in subgraph.inputs]
    if not subgraph.outputs:
        raise GraphError(
            f"subgraph `{subgraph.name}` has no outputs",
            hint="call `.output(...)` on it before calling it",
        )
    if len(types) != len(expected):
        raise GraphError(
            f"subgraph `{subgraph.name}` takes {pluralize(len(expected), 'input')}, but was called "
            f"with {len(types)}"
        )
    dims: dict[str, Dim] = {}
    for given, wanted in zip(types, expected, strict=True):
        _bind_names(given, wanted, dims)
    for number, (given, wanted) in enumerate(zip(types, expected, strict=True)):
        if given != wanted.substitute(dims):
            sizes = "".join(f", with {name} = {dim}" for name, dim in dims.items())
            raise GraphError(
                f"input {number} of subgraph `{subgraph.name}` must be {wanted}{sizes}, not {given}"
            )
    return tuple(value.type.substitute(dims) for value in subgraph.outputs)


CALL = Op("call", infer_call)


def _bind_names(given: TensorType, wanted: TensorType, dims: dict[str, Dim]) -> None:
    """Record the size of each named dimension that is a plain name in `wanted`."""
    for size, dim in zip(given.shape, wanted.shape, strict=False):
        for symbol in dim.symbols:
            if dim == symbol:
                dims.setdefault(symbol, size)
