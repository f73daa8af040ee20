"""The parts of models: the shapes of their weights, and how ranks divide them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.families.family import at_layer
from weightctl.families.sharing import OF_BLOCKS, OF_HEADS, OF_STATES, list_runs
from weightctl.split import Heads

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.family import Extent, Name, TensorNames, WeightAxes
    from weightctl.families.keys import Config

# How messages call the heads of a gated delta net, of which several share a key head.
DELTA_HEADS = ("value head", "key head")
# The same for the heads of a state space model, of which several share a group of states.
SSM_HEADS = ("SSM head", "group")
# The same for the blocks of a linear recurrent unit, which share nothing.
LRU_BLOCKS = ("block", "block")

# The extents that ranks divide: query heads, KV heads, the inner elements of an MLP, tokens, and
# heads, blocks or channels of recurrent layers.
# Every rank has all of the other extents: elements of one head, rotated pairs, positions.
_SHARED: frozenset[Extent] = frozenset(
    {
        "queries", "keys", "plain_keys", "values", "key_values", "inner", "expert_inner",
        "shared_inner", "vocabulary", "convolved", "each_head", "ssm_channels",
        "ssm_gated_channels", "ssm_group_states", "ssm_heads", "ssm_inner", "layer_vocabulary",
        "layer_inputs", "lru_channels", "lru_blocks",
    }
)  # fmt: skip
# The config fields with the sizes of extents whose names differ from the field's.
_FIELDS: Mapping[Extent, str] = {
    "convolved": "hidden",
    "inner": "intermediate",
    "expert_inner": "expert_intermediate",
    "shared_inner": "shared_intermediate",
}


class Role(NamedTuple):
    """How ranks divide a part: `strategy` is the usual name of that.

    `extents` are those along the outputs (`axis` 0) or the inputs (`axis` 1) that are divided, one
    after the other; if there are none, every rank has the whole part. A bias lies along the
    outputs, and is whole if the inputs are divided. `all_layers` states that every pipeline stage
    gets the part though it is outside of the layers.
    """

    strategy: str
    axis: int = 0
    extents: tuple[Extent, ...] = ()
    all_layers: bool = False


_WHOLE = Role("replicate")
# The strategy by the number of extents along the outputs, if it does not depend on their kind.
_OF_OUTPUTS = {1: "rowwise", 2: "gate_up"}


def _derive_role(part: WeightAxes) -> Role:
    """Return how ranks divide a part with these axes."""
    if part.outputs and _SHARED.issuperset(part.outputs):
        is_of_heads = not (OF_HEADS - OF_STATES).isdisjoint(part.outputs)
        several = "stacked_qkv" if is_of_heads else "segmented"
        return Role(_OF_OUTPUTS.get(len(part.outputs), several), 0, part.outputs)
    if part.inputs and _SHARED.issuperset(part.inputs):
        is_of_heads = not OF_HEADS.isdisjoint(part.inputs)
        return Role("head_aware_columnwise" if is_of_heads else "columnwise", 1, part.inputs)
    return _WHOLE._replace(all_layers=part.all_layers)


_LAYER = "layers.{}."


def part_of_layer(line: Name) -> str:
    """Return the module name of a line without the prefix of its layer."""
    return line.module.removeprefix(_LAYER)


def role(line: Name, kind: str) -> Role:
    """Return how ranks divide a tensor of a line, its `weight` or `bias`."""
    found = _derive_role(line.axes)
    return _WHOLE if kind == "bias" and found.axis else found


def count_heads(config: Config, layer: int = 0, extents: tuple[Extent, ...] = ()) -> Heads:
    """Return the numbers and sizes of the heads in a layer of a model with this config.

    They are those of a state space model, or the blocks of a linear recurrent unit, if the
    `extents` are, and in a layer with a gated delta net those of the net.
    """
    # If every head of a family has its own keys, and the heads together are as wide as the hidden
    # size, its configs do not have fields for that.
    given: Any = config
    if not OF_STATES.isdisjoint(extents):
        heads = given.ssm_heads
        size = given.ssm_inner // heads
        return Heads(heads, given.ssm_groups, size, value=given.ssm_state, called=SSM_HEADS)
    if not OF_BLOCKS.isdisjoint(extents):
        return Heads(given.heads, given.heads, given.lru_size, called=LRU_BLOCKS)
    if hasattr(given, "delta_layers") and at_layer(given, "delta_layers", layer):
        return Heads(
            given.delta_heads,
            given.delta_key_heads,
            given.delta_key_size,
            value=given.delta_value_size,
            called=DELTA_HEADS,
        )
    queries = at_layer(given, "heads", layer)
    keys = at_layer(given, "kv_heads", layer) if hasattr(given, "kv_heads") else queries
    plain, value = (getattr(given, name, 0) for name in ("plain_dimensions", "value_dimensions"))
    size = at_layer(given, "head_dim", layer) if hasattr(given, "head_dim") else 0
    return Heads(queries, keys, size or given.hidden // queries, plain, value)


def shape_of(names: TensorNames, config: Config) -> tuple[int, ...]:
    """Return the shape of a tensor in a model with this config."""
    axes = names.line.axes
    if names.kind == "bias":
        return (_length(axes.outputs, config, names.layer),)
    kernel = ((extent,) for extent in axes.kernel)
    shape = tuple(
        _length(extents, config, names.layer)
        for extents in (axes.outputs, axes.inputs, *kernel)
        if extents
    )
    change = names.line.change
    # Only configs of families with lines that modules compute with both ways have this field.
    has_both_forms = change is not None and change.is_turned and change.runs_as is None
    given: Any = config
    return shape[::-1] if has_both_forms and given.transposed else shape


def _length(extents: tuple[Extent, ...], config: Config, layer: int) -> int:
    """Return the number of elements along an axis with these extents, in a layer."""
    return sum(_size(extent, config, layer) for extent in extents)


def _size(extent: Extent, config: Config, layer: int) -> int:
    """Return the number of elements of an extent, in a layer."""
    if extent == "single":
        return 1
    if extent == "head":
        return count_heads(config, layer).size
    if (of_heads := extent.removeprefix("all_")) in OF_HEADS:
        (run,) = list_runs([of_heads], 0, count_heads(config, layer, (of_heads,)))
        return run.stop
    if extent == "pairs":
        return int(at_layer(config, "rope_dimensions", layer) // 2)
    return int(at_layer(config, _FIELDS.get(extent, extent), layer))
