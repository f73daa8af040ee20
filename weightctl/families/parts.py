"""The parts of models: what lies along the axes of their weights, and how ranks share it out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from weightctl.families.changes import TRANSPOSED
from weightctl.split import Heads

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.family import Name, TensorNames
    from weightctl.families.keys import Config

__all__ = [
    "PARTS",
    "ROLES",
    "Extent",
    "Role",
    "WeightAxes",
    "count_heads",
    "part_of_layer",
    "role",
    "shape_of",
]

# What is shared out: heads of queries, heads of keys or values, the numbers between the two halves
# of an MLP, and tokens. Every rank has all of the rest: one head's numbers, pairs of them that are
# rotated, positions.
Extent: TypeAlias = Literal[
    "queries",
    "keys",
    "inner",
    "vocabulary",
    "hidden",
    "head",
    "pairs",
    "context",
    "token_types",
    "experts",
]
_SHARED: frozenset[Extent] = frozenset({"queries", "keys", "inner", "vocabulary"})


class WeightAxes(NamedTuple):
    """What lies along the axes of a part's weight: `outputs` one after the other, and `inputs`.

    A vector has no inputs. `all_layers` need a part though it is of none.
    """

    outputs: tuple[Extent, ...]
    inputs: tuple[Extent, ...] = ()
    all_layers: bool = False


# Every part that a family's lines name has one here, without the number of its layer.
PARTS: Mapping[str, WeightAxes] = {
    "embedding": WeightAxes(("vocabulary",), ("hidden",)),
    "output": WeightAxes(("vocabulary",), ("hidden",)),
    "position_embedding": WeightAxes(("context",), ("hidden",)),
    "token_type_embedding": WeightAxes(("token_types",), ("hidden",)),
    "embedding_norm": WeightAxes(("hidden",)),
    "rope_factors": WeightAxes(("pairs",), all_layers=True),
    "long_rope_factors": WeightAxes(("pairs",), all_layers=True),
    "short_rope_factors": WeightAxes(("pairs",), all_layers=True),
    "norm": WeightAxes(("hidden",)),
    "attention_norm": WeightAxes(("hidden",)),
    "post_attention_norm": WeightAxes(("hidden",)),
    "mlp_norm": WeightAxes(("hidden",)),
    "post_mlp_norm": WeightAxes(("hidden",)),
    "attention.q": WeightAxes(("queries",), ("hidden",)),
    "attention.k": WeightAxes(("keys",), ("hidden",)),
    "attention.v": WeightAxes(("keys",), ("hidden",)),
    "attention.qkv": WeightAxes(("queries", "keys", "keys"), ("hidden",)),
    "attention.o": WeightAxes(("hidden",), ("queries",)),
    # Each head is normed by itself, all with the same weights.
    "attention.q_norm": WeightAxes(("head",)),
    "attention.k_norm": WeightAxes(("head",)),
    "mlp.gate": WeightAxes(("inner",), ("hidden",)),
    "mlp.up": WeightAxes(("inner",), ("hidden",)),
    "mlp.gate_up": WeightAxes(("inner", "inner"), ("hidden",)),
    "mlp.down": WeightAxes(("hidden",), ("inner",)),
    # Every rank chooses among all experts.
    "mlp.router": WeightAxes(("experts",), ("hidden",)),
    "mlp.experts.{expert}.gate": WeightAxes(("inner",), ("hidden",)),
    "mlp.experts.{expert}.up": WeightAxes(("inner",), ("hidden",)),
    "mlp.experts.{expert}.down": WeightAxes(("hidden",), ("inner",)),
}


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
# By how many extents lie along the outputs.
_OF_OUTPUTS = {1: "rowwise", 2: "gate_up", 3: "stacked_qkv"}


def _derive_role(part: WeightAxes) -> Role:
    """Return how a part is cut whose outputs or inputs may be divided."""
    if _SHARED.issuperset(part.outputs):
        return Role(_OF_OUTPUTS[len(part.outputs)], 0, part.outputs)
    if part.inputs and _SHARED.issuperset(part.inputs):
        is_of_heads = "queries" in part.inputs
        return Role("head_aware_columnwise" if is_of_heads else "columnwise", 1, part.inputs)
    return _WHOLE._replace(all_layers=part.all_layers)


ROLES: Mapping[str, Role] = {name: _derive_role(part) for name, part in PARTS.items()}

_LAYER = "layers.{}."


def part_of_layer(line: Name) -> str:
    """Return the module of a line as `PARTS` has it."""
    return line.module.removeprefix(_LAYER)


def role(line: Name, kind: str) -> Role:
    """Return how a tensor of a line, `weight` or `bias`, is cut."""
    found = ROLES[part_of_layer(line)]
    return _WHOLE if kind == "bias" and found.axis else found


def count_heads(config: Config) -> Heads:
    """Return the heads of a model of this config."""
    # Where a family's heads all have keys of their own, and share the hidden size, its configs
    # have no fields for that.
    given: Any = config
    keys = getattr(given, "kv_heads", given.heads)
    return Heads(given.heads, keys, getattr(given, "head_dim", given.hidden // given.heads))


def shape_of(names: TensorNames, config: Config) -> tuple[int, ...]:
    """Return the shape that a tensor has in a model of this config."""
    part = PARTS[part_of_layer(names.line)]
    if names.kind == "bias":
        return (_length(part.outputs, names.line, config),)
    shape = tuple(
        _length(extents, names.line, config) for extents in (part.outputs, part.inputs) if extents
    )
    # Only configs of families with such lines get there, and those have the field.
    given: Any = config
    is_transposed = names.line.change is TRANSPOSED and given.transposed
    return shape[::-1] if is_transposed else shape


def _length(extents: tuple[Extent, ...], line: Name, config: Config) -> int:
    """Return how many elements there are along an axis with these extents."""
    return sum(_size(extent, line, config) for extent in extents)


def _size(extent: Extent, line: Name, config: Config) -> int:
    """Return how many elements an extent of a line's part is of."""
    given: Any = config
    if extent in {"queries", "keys", "head"}:
        heads = count_heads(config)
        return heads.size * {"queries": heads.queries, "keys": heads.keys, "head": 1}[extent]
    if extent == "inner":
        size: int = given.expert_intermediate if line.is_of_experts else given.intermediate
        return size
    if extent == "pairs":
        return int(given.rope_dimensions // 2)
    # All others are fields of a config.
    return int(getattr(given, extent))
