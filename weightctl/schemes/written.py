"""The record of a scheme that weightctl writes: its options, tensors, and settings of a config."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from weightctl.dtype import Encoding
    from weightctl.schemes.encoding import WeightEncoding

# Group sizes that engines support, the usual one first.
GROUPS = (128, 64, 32)
# The library whose settings have groups of modules.
_COMPRESSED = "compressed-tensors"


class SchemeOptions(NamedTuple):
    """The options of a scheme: the group size (0 without groups), and whether 0 is the middle.

    `scaled` states that an importance matrix also scales weights by their inputs, as AWQ does.
    """

    group: int = 0
    symmetric: bool = True
    scaled: bool = False


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
    refuse: Callable[[tuple[int, ...], SchemeOptions], str]
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
        return self.settings(self.defaults, ()).get("quant_method") == _COMPRESSED


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


def accept_any(_shape: tuple[int, ...], _: SchemeOptions) -> str:
    return ""


def refuse_groups(shape: tuple[int, ...], options: SchemeOptions) -> str:
    """Return why a weight cannot be stored in groups, or an empty text."""
    if shape[-1] % options.group == 0:
        return ""
    return f"its row length, {shape[-1]}, is not a multiple of the group size, {options.group}"


def describe_compressed(
    form: str,
    weights: dict[str, Any],
    activations: dict[str, Any] | None,
    ignored: Sequence[str],
) -> dict[str, Any]:
    """Return compressed-tensors' settings of a config, for a format such as `pack-quantized`."""
    always = {"dynamic": False, "observer": "minmax"}
    group: dict[str, Any] = {"targets": ["Linear"], "weights": {**weights, **always}}
    group["input_activations"] = activations
    group["output_activations"] = None
    return {
        "quant_method": _COMPRESSED,
        "format": form,
        "quantization_status": "compressed",
        "global_compression_ratio": None,
        "kv_cache_scheme": None,
        "config_groups": {"group_0": group},
        "ignore": [*ignored],
    }


def describe_mixture(
    modules: Mapping[SchemeChoice, Sequence[str]], ignored: Sequence[str]
) -> dict[str, Any]:
    """Return the settings of a config for weights in schemes that can be mixed.

    `modules` are the names of the modules of each scheme, which become a group of their own.
    """
    groups: dict[str, Any] = {}
    stated: dict[str, Any] = {}
    for number, ((scheme, options), names) in enumerate(modules.items()):
        stated = scheme.settings(options, ignored)
        (group,) = stated["config_groups"].values()
        groups[f"group_{number}"] = {**group, "targets": [*names], "format": stated["format"]}
    return {**stated, "format": "mixed-precision", "config_groups": groups}
