"""Adapters for the experts of a layer in one tensor, as PEFT's `target_parameters` makes them.

PEFT names the module of the experts, and not the parameter; the shapes decide which one it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import ConversionError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.adapters.reading import LowRank
    from weightctl.weights.info import TensorInfo

_NESTED = ".base_layer"
_EXPERTS = ".experts"
# The parameters of a module of experts, and the weights of one expert that each consists of.
_PARTS = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
_OTHER_NAMES = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}


class ExpertWeight(NamedTuple):
    """A weight that a pair for `experts` experts changes.

    `expert` is the number of the expert if the weight is that of one, else None. `skipped` is the
    number of rows of the second matrix that belong to other weights and precede those of this one.
    """

    name: str
    experts: int
    expert: int | None = None
    skipped: int = 0
    is_transposed: bool = False


def is_of_experts(module: str) -> bool:
    """Whether a module is that of all experts of a layer."""
    return _strip(module).endswith(_EXPERTS)


def find_expert_weights(pair: LowRank, tensors: Mapping[str, TensorInfo]) -> list[ExpertWeight]:
    """Return the weights that a pair changes: one with all experts, or several of each expert.

    Raises `ConversionError` if no weights of the model fit.
    """
    prefix = _strip(pair.module)
    for parameter, parts in _PARTS.items():
        found = _find_stack(pair, f"{prefix}.{parameter}", prefix, tensors)
        found = found or _find_each(pair, prefix, parts, tensors)
        if found:
            return found
    raise ConversionError(
        f"the adapter has `{pair.first.info.name}` of shape {list(pair.first.info.shape)} and "
        f"`{pair.second.info.name}` of shape {list(pair.second.info.shape)}, but the model has no "
        f"weights of experts of these sizes in `{prefix}`",
        hint="check that the adapter belongs to this model; merge it with PEFT if it does",
    )


def _strip(module: str) -> str:
    while module.endswith(_NESTED):
        module = module.removesuffix(_NESTED)
    return module


def _find_stack(
    pair: LowRank, name: str, prefix: str, tensors: Mapping[str, TensorInfo]
) -> list[ExpertWeight]:
    info = tensors.get(name)
    if info is None or len(info.shape) != 3 or pair.rank % info.shape[0]:
        return []
    sizes = (pair.second.info.shape[0], pair.first.info.shape[1])
    if sizes not in {info.shape[1:], info.shape[:0:-1]}:
        return []
    is_transposed = info.shape[1:] != sizes
    down, both = tensors.get(f"{prefix}.down_proj"), tensors.get(f"{prefix}.gate_up_proj")
    if down is not None and both is not None and info.shape[1] == info.shape[2]:
        # A square matrix is stored as the others of the layer.
        is_transposed = both.shape[2] == 2 * down.shape[1]
    return [ExpertWeight(name, info.shape[0], is_transposed=is_transposed)]


def _find_each(
    pair: LowRank, prefix: str, parts: tuple[str, ...], tensors: Mapping[str, TensorInfo]
) -> list[ExpertWeight]:
    if f"{prefix}.0.{parts[0]}.weight" not in tensors:
        parts = tuple(_OTHER_NAMES[part] for part in parts)
    experts = 0
    while f"{prefix}.{experts}.{parts[0]}.weight" in tensors:
        experts += 1
    if not experts or pair.rank % experts:
        return []
    found: list[ExpertWeight] = []
    for expert in range(experts):
        skipped = 0
        for part in parts:
            name = f"{prefix}.{expert}.{part}.weight"
            info = tensors.get(name)
            if info is None or info.shape[1:] != pair.first.info.shape[1:]:
                return []
            found.append(ExpertWeight(name, experts, expert, skipped))
            skipped += info.shape[0]
        if skipped != pair.second.info.shape[0]:
            return []
    return found
