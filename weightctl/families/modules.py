"""The parts of models: their names, the shapes of their weights, and how ranks divide them."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast

from weightctl.families.config_keys import NamingConvention
from weightctl.families.rank_ranges import OF_BLOCKS, OF_HEADS, OF_STATES, list_runs
from weightctl.split import Heads

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from weightctl.families.config_keys import Config, Fields
    from weightctl.families.fusions import Fusion
    from weightctl.families.rank_ranges import Extent
    from weightctl.weights.derived import Step

# A naming convention, or `module` for a form of our modules that neither of them has.
Form: TypeAlias = NamingConvention | Literal["module"]

_NUMBER, _EXPERT = "{}", "{expert}"
_NOTHING: Mapping[Any, Any] = MappingProxyType({})


class WeightAxes(NamedTuple):
    """What the elements along the two axes of a weight are, as our modules store it.

    `outputs` are the extents along the rows, one after the other (queries, keys and values of a
    fused projection), and `inputs` those along the columns. A vector has no `inputs`. `all_layers`
    states that the part is not in a layer, but that every layer needs it: each pipeline stage gets
    a copy. `kernel` has the extents of further axes, those of the kernel of a convolution.
    """

    outputs: tuple[Extent, ...]
    inputs: tuple[Extent, ...] = ()
    all_layers: bool = False
    kernel: tuple[Extent, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """How a tensor differs between the naming conventions.

    - `to_gguf`, `to_hugging_face`: return the step from the tensor of the other convention, for the
      config of a model; None if the tensors are equal.
    - `runs_as`: the form that our modules compute with; None if they compute with both.
    - `is_of_rows`: whether only whole rows are reordered, so that the change also applies to biases
      and blocks.
    - `is_of_biases`: whether the change applies to biases, too.
    - `stated`: a field of the config that states which form its tensors have, with its value in
      Hugging Face's convention and in GGUF's.
    - `order`: returns the order of rows or columns, if it moves what ranks divide: for each of the
      convention that our modules do not compute with, its number in the model.
    - `is_turned`: whether Hugging Face stores matrices as (inputs, outputs).
    - `gguf_extents`: what the elements along GGUF's first axis are, if it is another axis than that
      of our modules.
    - `has_sizes_of_config`: whether Hugging Face's shape is that of the config, because GGUF files
      may have dimensions of 1 before the others, which mean nothing to ggml.
    - `axes`: for the form `module`, where dimensions of 1 are inserted into the shape of our
      modules. The two steps then change the values only.
    - `at`: returns the change in a layer, if layers differ.
    """

    to_gguf: Callable[[Any], Step | None]
    to_hugging_face: Callable[[Any], Step | None]
    runs_as: Form | None = "hugging_face"
    is_of_rows: bool = False
    is_of_biases: bool = False
    stated: tuple[str, Any, Any] | None = None
    order: Callable[[Any], Sequence[int]] | None = None
    is_turned: bool = False
    gguf_extents: tuple[Extent, ...] = ()
    has_sizes_of_config: bool = False
    axes: Mapping[NamingConvention, tuple[int, ...]] | None = None
    at: Callable[[int], Change] | None = None

    def fields(self, convention: NamingConvention) -> Mapping[str, Any]:
        """Return the fields of a config that state which form its tensors have."""
        if self.stated is None:
            return {}
        name, hugging_face, gguf = self.stated
        return {name: gguf if convention == "gguf" else hugging_face}


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """A part of a model, in each layer or once: what its tensors are called, and what they contain.

    A family has a tuple of these lines; `families/usual_names.py` has the usual ones. In the names,
    `{}` is the layer number and `{expert}` the number of an expert. If the name in a naming
    convention lacks `{expert}`, that convention stores all experts of a layer in one tensor, along
    a new first dimension. A part has the tensor `weight`, and `bias` if the model has biases there.

    - `module`: the name in our modules, for example `layers.{}.attention.q`.
    - `gguf`, `hugging_face`: the names in the naming conventions, without `.weight`. None if the
      convention does not store the tensor on its own: a `Fusion` of the family may contain it, or
      `made` may compute it.
    - `axes`: what the elements along the axes of the weight are. The shape and the shards follow
      from it.
    - `bias`: whether there is a bias, or the name of the config field that states it.
    - `when`: the config fields that must all be true for the part to exist. A field may have a
      value per layer.
    - `unless`: the config field that must be false for the part to exist. With `tied`, a checkpoint
      may still store the tensor, as a copy of the embedding.
    - `change`: how the values or their order differ between the naming conventions.
    - `is_float32`: whether GGUF stores the weight in float32 whatever the type of the other tensors
      is. GGUF does so for all vectors.
    - `first`: the config field that is subtracted from the layer numbers in names, or empty.
    - `made`: a function that returns the tensor's values, float32, from a config whose naming
      convention has them as config keys, or None. A part of layers has a row per layer.
    - `add_fields`: the opposite: a function that adds the fields that the tensor's values define.
    - `unread`: whether nothing reads the tensor, though llama.cpp needs it.
    - `ends`: the ending of the weight's name, by naming convention, where it is not `.weight`.
    - `restarts`: whether Hugging Face's names of layers for MTP have numbers from 0.
    - `counted`: whether Hugging Face's names only count the layers that have the part.
    - `count`: the config field with the number of what `{expert}` numbers.
    """

    module: str
    gguf: str | None
    hugging_face: str | None
    axes: WeightAxes
    bias: bool | str = False
    when: tuple[str, ...] = ()
    unless: str | None = None
    change: Change | None = None
    is_float32: bool = False
    first: str = ""
    made: Callable[[Any], NDArray[np.float32] | None] | None = None
    add_fields: Callable[[Fields, NDArray[np.float32]], Fields] | None = None
    ends: Mapping[NamingConvention, str] = field(default_factory=dict["NamingConvention", str])
    restarts: bool = False
    counted: bool = False
    unread: bool = False
    count: str = "experts"

    @property
    def is_of_experts(self) -> bool:
        """Whether each expert of a layer has the part."""
        return _EXPERT in self.module

    @property
    def is_of_layers(self) -> bool:
        """Whether each layer has the part."""
        return _NUMBER in self.module

    def is_in(self, config: Config, layer: int = 0) -> bool:
        """Whether a model with this config has the part, in the given layer if layers have it."""
        wanted = all(at_layer(config, field, layer) for field in self.when)
        return bool(wanted and not (self.unless and at_layer(config, self.unless, layer)))

    def kinds(self, config: Config) -> tuple[str, ...]:
        """Return which tensors the part has in a model with this config."""
        has_bias = getattr(config, self.bias) if isinstance(self.bias, str) else self.bias
        return ("weight", "bias") if has_bias else ("weight",)

    def template(self, convention: NamingConvention) -> str | None:
        """Return the part's name in a naming convention, None if it is not stored on its own."""
        return self.gguf if convention == "gguf" else self.hugging_face

    def tensor(
        self, convention: NamingConvention, kind: str, layer: int | str, expert: int | str = 0
    ) -> str | None:
        """Return the name of one of the part's tensors, None if the convention does not have it."""
        template = self.tensor_template(convention, kind)
        return None if template is None else template.format(layer, expert=expert)

    def tensor_template(self, convention: NamingConvention, kind: str) -> str | None:
        """Return the name of a tensor of the part, without the numbers filled in."""
        template = self.template(convention)
        if template is None:
            return None
        end = self.ends.get(convention) if kind == "weight" else None
        return template + (f".{kind}" if end is None else end)


def at_layer(config: Any, field: str, layer: int) -> Any:
    """Return the value of a config field for a layer; the field may have a value per layer."""
    value = getattr(config, field)
    return cast("Sequence[Any]", value)[layer] if type(value) is tuple else value


class TensorNames(NamedTuple):
    """A tensor of a model: its names in our modules and in both naming conventions, and its line.

    `layer` and `expert` are 0 for tensors outside of layers and experts. If checkpoints of a naming
    convention store the tensor in a fused one, the name is that of the fused tensor, and `fusions`
    has the `Fusion`.
    """

    module: str
    gguf: str | None
    hugging_face: str | None
    line: Name
    kind: str = "weight"
    layer: int = 0
    expert: int = 0
    fusions: Mapping[NamingConvention, Fusion] = _NOTHING

    def name(self, convention: NamingConvention) -> str | None:
        """Return the name in a naming convention, None if that does not have the tensor."""
        return self.gguf if convention == "gguf" else self.hugging_face

    def is_stacked(self, convention: NamingConvention) -> bool:
        """Whether a naming convention stores all experts of the layer in one tensor."""
        if not self.line.is_of_experts:
            return False
        if convention in self.fusions:
            return self.fusions[convention].of_experts
        template = self.line.template(convention)
        return template is not None and _EXPERT not in template

    @property
    def change(self) -> Change | None:
        """How the tensor differs between the naming conventions; None if it is the same in both."""
        change = self.line.change
        is_bias = self.kind == "bias"
        if change is None or (is_bias and not (change.is_of_rows or change.is_of_biases)):
            return None
        return change

    @property
    def is_float32(self) -> bool:
        """Whether GGUF stores the tensor in float32 whatever the type of the other tensors is."""
        return self.line.is_float32 or self.kind == "bias"


# How ranks divide the parts.

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
    has_own = getattr(given, "layer_heads", None) is not None
    queries = at_layer(given, "layer_heads" if has_own else "heads", layer)
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
