"""Other encodings for the tensors of a plan: dtypes and block quantization."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from weightctl.dtype import ENCODINGS, Encoding
from weightctl.errors import ConversionError
from weightctl.weights.metadata import Value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.plan import Item, Plan
    from weightctl.weights.info import TensorInfo

__all__ = ["cast", "is_lossy", "is_matrix_weight", "is_unfit_for_llama_cpp"]

# What takes the place of a block type whose block does not divide the row (llama.cpp,
# src/llama-quant.cpp, `tensor_type_fallback`); what does not fit either becomes F16.
_FALLBACK = {
    "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0",
    "Q2_K": "Q4_0", "Q3_K": "Q4_0", "TQ1_0": "Q4_0", "TQ2_0": "Q4_0",
    "IQ1_S": "IQ4_NL", "IQ1_M": "IQ4_NL", "IQ2_XXS": "IQ4_NL", "IQ2_XS": "IQ4_NL",
    "IQ2_S": "IQ4_NL", "IQ3_XXS": "IQ4_NL", "IQ3_S": "IQ4_NL", "IQ4_XS": "IQ4_NL",
}  # fmt: skip

# Matrices that llama.cpp never quantizes: norms, routers, positions, token types, convolutions
# and the small ones of recurrent models, as GGUF and as Hugging Face call them.
_KEPT = re.compile(
    r"_norm\.weight$|norm\.weight$|layernorm|layer_norm|"
    r"ffn_gate_inp|\.(router|gate|shared_expert_gate)\.weight$|"
    r"pos_embd|position_embd|position_embedding|embed_positions|\bwpe\b|token_types|token_type_embeddings|"
    r"ssm_conv1d|shortconv|conv1d|time_mix_|attn_rel_b|relative_attention_bias|altup|laurel|patch_embd|patch_embed",
    re.IGNORECASE,
)

# llama.cpp's `general.file_type` for a file that is mostly of one type (llama.h, `llama_ftype`).
_FILE_TYPES = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10,
    "Q3_K": 12, "Q4_K": 14, "Q5_K": 16, "Q6_K": 18, "BF16": 32,
}  # fmt: skip
_GUESSED = 1024
_ARCHITECTURE = "general.architecture"
# What scales are called that stand beside 8-bit numbers (DeepSeek, compressed-tensors).
_SCALES = ("_scale_inv", "_scale")


def is_matrix_weight(info: TensorInfo) -> bool:
    """Whether a tensor is one that llama.cpp would quantize: a matrix, and no norm or router."""
    return (
        len(info.shape) >= 2
        and info.name.endswith(("weight", "_proj"))
        and _KEPT.search(info.name) is None
    )


def is_lossy(encoding: Encoding) -> bool:
    """Whether numbers have been rounded to fewer than 16 bits to get here."""
    dtype = encoding.dtype
    return encoding.quantization is not None or (
        dtype is not None and dtype.is_float and encoding.size == 1
    )


def cast(plan: Plan, target: Encoding, *, fallback: bool = True, requantize: bool = False) -> Plan:
    """Store what holds fractions in another encoding; integers and truth values stay.

    Blocks are only for the matrices that llama.cpp would quantize. In a GGUF of a model that
    llama.cpp runs any other encoding is only for those too: its vectors become F32, since it
    computes with no other, and norms, routers and positions stay. Where rows do not divide into
    blocks llama.cpp's substitute is taken; with `fallback=False` that is a `ConversionError`, and
    so is, without `requantize`, a second loss on top of a first (Q4_1 to Q8_0).
    """
    items = tuple(_cast_item(plan, item, target) for item in plan.items)
    changed = [item for item in items if not item.is_copy]
    if not requantize:
        _refuse_second_loss(changed, target)
    _refuse_scaled(items, changed)
    if not fallback:
        _refuse_substitutes(items, target)
    return replace(plan, items=items, metadata=_described(plan, items, target))


def _cast_item(plan: Plan, item: Item, target: Encoding) -> Item:
    source = item.source.encoding
    if not source.is_known or (source.dtype is not None and not source.dtype.is_float):
        return item
    if source.quantization is None and not is_matrix_weight(item.info):
        target = _for_others(plan, item.info, target)
    fitting = _fitting(target, item.info.shape)
    asked = None if fitting is target else target.name
    return replace(item, info=item.info._replace(encoding=fitting), asked=asked)


def _for_others(plan: Plan, info: TensorInfo, target: Encoding) -> Encoding:
    """Return the encoding of what is no matrix to quantize."""
    is_gguf = plan.format == "gguf"
    runs_in_llama_cpp = is_gguf and _ARCHITECTURE in plan.metadata
    if target.quantization is None and not runs_in_llama_cpp:
        return target
    cannot_stay = is_gguf and info.encoding.gguf is None
    is_vector = runs_in_llama_cpp and len(info.shape) <= 1
    return ENCODINGS["F32"] if cannot_stay or is_vector else info.encoding


def is_unfit_for_llama_cpp(plan: Plan, item: Item) -> bool:
    """Whether a tensor is a vector of a model for llama.cpp in an encoding it does not add with."""
    dtype = item.info.encoding.dtype
    return (
        plan.format == "gguf"
        and _ARCHITECTURE in plan.metadata
        and len(item.info.shape) <= 1
        and dtype is not None
        and dtype.is_float
        and item.info.encoding.name != "F32"
    )


def _fitting(target: Encoding, shape: tuple[int, ...]) -> Encoding:
    if target.fits(shape):
        return target
    substitute = ENCODINGS.get(_FALLBACK.get(target.name, ""))
    return substitute if substitute and substitute.fits(shape) else ENCODINGS["F16"]


def _refuse_second_loss(changed: list[Item], target: Encoding) -> None:
    twice = [
        item for item in changed if is_lossy(item.source.encoding) and is_lossy(item.info.encoding)
    ]
    if twice:
        first = twice[0]
        raise ConversionError(
            f"{len(twice)} tensors have already lost precision (`{first.source.name}` is "
            f"{first.source.encoding}); {target} would lose more on top",
            hint="start from the unquantized model, or pass --allow-requantize",
        )


def _refuse_scaled(items: Sequence[Item], changed: list[Item]) -> None:
    names = {item.source.name for item in items}
    scaled = [
        item.source
        for item in changed
        if item.source.encoding.size == item.source.encoding.block == 1
        and any(item.source.name + suffix in names for suffix in _SCALES)
    ]
    if scaled:
        raise ConversionError(
            f"{len(scaled)} tensors are {scaled[0].encoding} numbers to be multiplied by scales "
            f"that stand beside them (`{scaled[0].name}`), which weightctl cannot do yet",
            hint="without --dtype and --quant they are copied as they are",
        )


def _refuse_substitutes(items: Sequence[Item], target: Encoding) -> None:
    substituted = [item for item in items if item.asked]
    if substituted:
        first = substituted[0]
        raise ConversionError(
            f"rows of {len(substituted)} tensors are no multiple of {target.block} (`"
            f"{first.info.name}` has rows of {first.info.row}), so they cannot be {target}",
            hint=f"without --no-fallback they become {first.info.encoding}",
        )


def _described(plan: Plan, items: tuple[Item, ...], target: Encoding) -> dict[str, Value]:
    """Keep the two keys that tell llama.cpp of the types in step with them."""
    metadata = dict(plan.metadata)
    if _ARCHITECTURE in metadata:
        metadata["general.file_type"] = Value("u32", _FILE_TYPES.get(target.name, _GUESSED))
        if any(item.info.encoding.quantization for item in items):
            metadata["general.quantization_version"] = Value("u32", 2)
    return metadata
