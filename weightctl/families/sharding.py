"""How the parts of a model are cut for ranks that compute it together, by our modules' names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.arch import Name

__all__ = ["ROLES", "Extent", "Role", "part_of_layer", "role"]

# What lies along an axis and is shared out: heads of queries, heads of keys or values, the numbers
# between the two halves of an MLP, and tokens.
Extent: TypeAlias = Literal["queries", "keys", "inner", "vocabulary"]


class Role(NamedTuple):
    """How a part is cut; `strategy` is what people call that.

    `extents` are what its outputs (`axis` 0) or inputs (1) are, one after the other; where there
    are none every rank has all of it. A bias is of outputs, and whole where inputs are cut. What is
    for `all_layers` though it is of none goes with each run of them.
    """

    strategy: str
    axis: int = 0
    extents: tuple[Extent, ...] = ()
    all_layers: bool = False


_WHOLE = Role("replicate")
_OF_ALL_LAYERS = Role("replicate", all_layers=True)
_TOKENS = Role("rowwise", 0, ("vocabulary",))
_QUERIES = Role("rowwise", 0, ("queries",))
_KEYS = Role("rowwise", 0, ("keys",))
_ATTENDED = Role("head_aware_columnwise", 1, ("queries",))
_WIDER = Role("rowwise", 0, ("inner",))
_NARROWER = Role("columnwise", 1, ("inner",))

# Every part that a family's lines name has one here, without the number of its layer.
ROLES: Mapping[str, Role] = {
    "embedding": _TOKENS,
    "output": _TOKENS,
    "position_embedding": _WHOLE,
    "token_type_embedding": _WHOLE,
    "embedding_norm": _WHOLE,
    "rope_factors": _OF_ALL_LAYERS,
    "long_rope_factors": _OF_ALL_LAYERS,
    "short_rope_factors": _OF_ALL_LAYERS,
    "norm": _WHOLE,
    "attention_norm": _WHOLE,
    "post_attention_norm": _WHOLE,
    "mlp_norm": _WHOLE,
    "post_mlp_norm": _WHOLE,
    "attention.q": _QUERIES,
    "attention.k": _KEYS,
    "attention.v": _KEYS,
    "attention.qkv": Role("stacked_qkv", 0, ("queries", "keys", "keys")),
    "attention.o": _ATTENDED,
    # Each head is normed by itself, all with the same weights.
    "attention.q_norm": _WHOLE,
    "attention.k_norm": _WHOLE,
    "mlp.gate": _WIDER,
    "mlp.up": _WIDER,
    "mlp.gate_up": Role("gate_up", 0, ("inner", "inner")),
    "mlp.down": _NARROWER,
    # Every rank chooses among all experts.
    "mlp.router": _WHOLE,
    "mlp.experts.{expert}.gate": _WIDER,
    "mlp.experts.{expert}.up": _WIDER,
    "mlp.experts.{expert}.down": _NARROWER,
}

_LAYER = "layers.{}."


def part_of_layer(line: Name) -> str:
    """Return the module of a line as `ROLES` has it."""
    return line.module.removeprefix(_LAYER)


def role(line: Name, kind: str) -> Role:
    """Return how a tensor of a line, `weight` or `bias`, is cut."""
    found = ROLES[part_of_layer(line)]
    return _WHOLE if kind == "bias" and found.axis else found
