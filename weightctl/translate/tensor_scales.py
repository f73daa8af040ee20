"""NVFP4 in GGUF with a tensor that scales the whole weight, as llama.cpp's converter writes it.

llama.cpp multiplies the products with `NAME.weight` by `NAME.scale`: one value, or one for each
expert. It reads these tensors for any model (`llama-model.cpp`), but only some of its models apply
them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weightctl.families.model import ARCHITECTURE
from weightctl.plan.file_types import file_type
from weightctl.plan.plan import Item
from weightctl.text.wording import pluralize
from weightctl.weights.derived import Derived, DerivedTensor, StoredTensor
from weightctl.weights.metadata import MetadataValue

if TYPE_CHECKING:
    from weightctl.plan.plan import Plan
    from weightctl.schemes.arrays.trees import ScaledBlocks
    from weightctl.weights.derived import ReadableTensor

# The architectures whose graphs in llama.cpp (src/models) pass the scale of every matrix that can
# have one. In all others the feed-forward layers, or the experts, ignore it.
_APPLIED = frozenset({
    "cohere2", "deepseek32", "glm-dsa", "llama", "mistral3", "nemotron_h", "nemotron_h_moe",
    "qwen3", "qwen35", "qwen35moe", "qwen3moe",
})  # fmt: skip
# The layers that can have a scale, by the last part of their names before `.weight`.
_LAYERS = frozenset({
    "attn_q", "attn_k", "attn_v", "attn_qkv", "attn_gate", "attn_output",
    "ffn_gate", "ffn_up", "ffn_down", "ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp",
    "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps", "ssm_in", "ssm_out", "ssm_alpha", "ssm_beta",
    "output",
})  # fmt: skip
_ENDING, _SCALE = ".weight", ".scale"
_MADE = "scale of the whole weight"


def add_tensor_scales(plan: Plan, *, is_cast: bool) -> Plan:
    """Store weights of NVFP4 in a GGUF with their blocks, and with tensors for their scales.

    These are the weights that are to become NVFP4; without `is_cast`, all weights that are stored
    so. Values that differ in the last bit of float32 are `rounded`. A note says how many weights
    were decoded because llama.cpp would ignore their scales.
    """
    if plan.format != "gguf" or not isinstance(plan.source, Derived):
        return plan
    chosen = [item for item in plan.items if _is_wanted(item, is_cast=is_cast)]
    if not chosen:
        return plan
    # Only plans with float32 weights that were computed need NumPy here.
    from weightctl.schemes.arrays.trees import find_scaled_blocks

    found: dict[str, ScaledBlocks] = {}
    for item in chosen:
        blocks = find_scaled_blocks(StoredTensor(plan.source, item.source.name))
        if blocks is not None:
            found[item.info.name] = blocks
    names = {item.info.name for item in plan.items}
    taken = {*names, *plan.source.header.tensors}
    held = {
        item.info.name: each
        for item in chosen
        if (each := found.get(item.info.name)) is not None
        and taken.isdisjoint({_scale_name(item.info.name), _scale_name(item.source.name)})
        and _can_hold(plan, names, item.info.name, each)
    }
    if len(held) < len(found):
        plan = replace(plan, notes=(*plan.notes, _describe_decoded(plan, found.keys() - held)))
    return _replace_items(plan, held, is_cast=is_cast) if held else plan


def _scale_name(name: str) -> str:
    return name.removesuffix(_ENDING) + _SCALE


def _is_wanted(item: Item, *, is_cast: bool) -> bool:
    if item.source.encoding.name != "F32" or item.origin is None or len(item.info.shape) < 2:
        return False
    return not is_cast or item.info.encoding.name == "NVFP4"


def _can_hold(plan: Plan, names: set[str], name: str, weight: ScaledBlocks) -> bool:
    """Whether the program that reads a GGUF applies the scale of a weight."""
    layer = name.removesuffix(_ENDING)
    if layer == name:
        return False
    shape = weight.blocks.info.shape
    if weight.whole.values.size not in {1, shape[0] if len(shape) == 3 else 1}:
        return False
    if ARCHITECTURE not in plan.metadata:
        return True
    kind = layer.rpartition(".")[2]
    if plan.metadata[ARCHITECTURE].content not in _APPLIED or kind not in _LAYERS:
        return False
    # The feed-forward layers of llama.cpp would multiply the bias too, and stop with an error.
    return not (kind.startswith("ffn_") and f"{layer}.bias" in names)


def _describe_decoded(plan: Plan, names: set[str]) -> str:
    first = next(item.info.name for item in plan.items if item.info.name in names)
    return (
        f"{pluralize(len(names), 'weight')} in NVFP4 with a scale of the whole weight cannot be "
        f"copied, for example `{first}`: llama.cpp does not apply such a scale there"
    )


def _replace_items(plan: Plan, held: dict[str, ScaledBlocks], *, is_cast: bool) -> Plan:
    from weightctl.schemes.arrays.values import ScaleUse
    from weightctl.weights.steps.numbers import Constant

    tensors: dict[str, ReadableTensor] = {}
    items: list[Item] = []
    for item in plan.items:
        name = item.info.name
        if name not in held:
            tensors[item.source.name] = StoredTensor(plan.source, item.source.name)
            items.append(item)
            continue
        blocks, whole = held[name]
        whole, is_exact = whole.put_to(ScaleUse.MULTIPLIES_VALUES)
        values = whole.values
        if len(blocks.info.shape) == 3 and values.size == 1:
            values = values.repeat(blocks.info.shape[0])
        own, scale = item.source.name, _scale_name(item.source.name)
        tensors[own] = blocks
        tensors[scale] = DerivedTensor(scale, Constant(values, _MADE), [])
        info = blocks.info._replace(name=name)
        items.append(replace(
            item, info=info, source=info._replace(name=own), asked=None, origin=blocks.origin,
            is_rounded=not is_exact,
        ))  # fmt: skip
        info = tensors[scale].info
        items.append(Item(
            info._replace(name=_scale_name(name)), info, part=item.part,
            origin=tensors[scale].origin,
        ))  # fmt: skip
    header = plan.source.header
    source = Derived(plan.source, tensors, header.metadata, header.aliases)
    metadata = plan.metadata
    if ARCHITECTURE in metadata and not is_cast:
        number = file_type(item.info for item in items)
        added = {"general.file_type": number, "general.quantization_version": 2}
        metadata = {**metadata, **{key: MetadataValue("u32", each) for key, each in added.items()}}
    return replace(plan, source=source, items=tuple(items), metadata=metadata)
