"""The records of schemes: how their tensors are named, matched, decoded, cut and written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from weightctl.schemes import SCHEMES, added_schemes
from weightctl.system.registry import load

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from weightctl.dtype import Encoding
    from weightctl.schemes.arrays.tensors import SchemeTensors
    from weightctl.schemes.arrays.values import Decoding
    from weightctl.schemes.cutting import Axes
    from weightctl.schemes.layout import WeightEncoding
    from weightctl.schemes.naming import Candidate, LogicalWeight, NameEndings

# Group sizes that engines support, the usual one first.
GROUPS = (128, 64, 32)
# The library whose settings have groups of modules.
COMPRESSED_TENSORS = "compressed-tensors"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Scheme:
    """A way to store a weight in several tensors.

    `label` is the name for users; it can contain the `{bits}` of a value, or the name of an
    `{element}`. No code depends on it.

    `summary` says for users how weights are stored.

    `names` are the names that tools give the tensors, the usual ones first.

    `infer` returns the weight that tensors of these names represent, by their shapes. It returns
    None if they do not fit together; they are then unrelated, and stay as they are.

    `decode` returns how the values of a weight are computed from its tensors, and raises
    `ConversionError` if a weight cannot be decoded. It is None if no weight can be decoded.

    `cut` returns, for each tensor of a weight, how the axes of the weight map to its axes, and
    raises `ConversionError` if a weight cannot be split. It is None if no weight can be split.
    """

    label: str
    summary: str
    names: tuple[NameEndings, ...]
    infer: Callable[[Candidate], LogicalWeight | None]
    decode: Callable[[SchemeTensors], Decoding] | None = None
    cut: Callable[[SchemeTensors], Sequence[Axes]] | None = None


def load_scheme(name: str) -> Scheme:
    """Return the scheme with a name of `SCHEMES`, or of a package."""
    line = SCHEMES.get(name) or added_schemes()[name]
    return cast("Scheme", load(line.record, f"{__name__}:Scheme"))


def load_written(reference: str) -> WrittenScheme:
    """Return the written scheme that a table refers to."""
    return cast("WrittenScheme", load(reference, f"{__name__}:WrittenScheme"))


class SchemeOptions(NamedTuple):
    """The options of a scheme: the group size (0 without groups), and whether 0 is the middle.

    `scaled` states that an importance matrix also scales weights by their inputs, as AWQ does.
    """

    group: int = 0
    symmetric: bool = True
    scaled: bool = False


def refuse_groups(shape: tuple[int, ...], options: SchemeOptions, *, rows: int = 1) -> str:
    """Return why a weight cannot be stored in groups and words of `rows`, or an empty text.

    Schemes with a group size of 0 have none.
    """
    if shape[0] % rows:
        return f"its {shape[0]} rows are not a multiple of {rows}"
    if not options.group or shape[-1] % options.group == 0:
        return ""
    return f"its row length, {shape[-1]}, is not a multiple of the group size, {options.group}"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class WrittenScheme:
    """A way to store weights that serving engines read.

    `summary` describes it for users. `groups` are the group sizes that can be chosen, the default
    first; `defaults` are the options without a choice, `has_zeros` states that a weight can have
    zero points, and `can_scale` that weights can be scaled by their inputs.

    `refuse` returns why a weight of a shape cannot be stored, or an empty text. `encode` returns
    how such a weight is stored, with scales in an encoding. `settings` returns the settings of a
    config.json, given the modules that are not quantized, under each of `keys`. With `shares_peak`,
    weights that engines join (queries, keys and values) need the same scale of the whole weight.

    `encode_with` is given if the blocks are NVFP4: it returns how a weight is stored with a given
    scale, by which the scales of its blocks are divided.

    With `of_experts`, only experts that share a tensor are stored, which has inputs as rows; shapes
    are then (experts, outputs, inputs). `variants` are the records to use instead for models whose
    config has a `model_type`.
    """

    name: str
    summary: str
    encode: Callable[[tuple[int, ...], SchemeOptions, Encoding], WeightEncoding]
    settings: Callable[[SchemeOptions, Sequence[str]], dict[str, Any]]
    refuse: Callable[[tuple[int, ...], SchemeOptions], str] = refuse_groups
    defaults: SchemeOptions = field(default_factory=SchemeOptions)
    encode_with: Callable[[tuple[int, ...], float], WeightEncoding] | None = None
    groups: tuple[int, ...] = ()
    has_zeros: bool = False
    can_scale: bool = False
    shares_peak: bool = False
    of_experts: bool = False
    variants: Mapping[str, str] = field(default_factory=dict[str, str])
    keys: tuple[str, ...] = ("quantization_config",)
    note: str = ""

    @property
    def can_mix(self) -> bool:
        """Whether one model can have weights in this scheme and in others that can be mixed."""
        return self.settings(self.defaults, ()).get("quant_method") == COMPRESSED_TENSORS


class SchemeChoice(NamedTuple):
    """A scheme and its options."""

    scheme: WrittenScheme
    options: SchemeOptions

    def __str__(self) -> str:
        found: list[str] = []
        if self.options.group != self.scheme.defaults.group:
            found.append(f"group={self.options.group}")
        if self.options.symmetric != self.scheme.defaults.symmetric:
            found.append(f"symmetric={'yes' if self.options.symmetric else 'no'}")
        if self.options.scaled != self.scheme.defaults.scaled:
            found.append(f"scaled={'yes' if self.options.scaled else 'no'}")
        return ":".join(filter(None, [self.scheme.name, ",".join(found)]))
