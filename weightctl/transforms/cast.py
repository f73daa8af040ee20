"""Other encodings for the tensors of a plan: dtypes and block quantization."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from weightctl.dtype import ENCODINGS, Encoding
from weightctl.errors import ConversionError
from weightctl.formats import FORMATS
from weightctl.logical import is_buffer, parts
from weightctl.weights.metadata import Value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.plan import Item, Plan
    from weightctl.weights.info import TensorInfo

__all__ = ["Rule", "cast", "is_lossy", "is_matrix_weight", "is_unfit_for_llama_cpp"]

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


class Rule(NamedTuple):
    """The encoding for tensors in whose name a pattern is found; None keeps what they have."""

    pattern: re.Pattern[str]
    encoding: Encoding | None


def cast(
    plan: Plan,
    target: Encoding | None,
    rules: Sequence[Rule] = (),
    *,
    fallback: bool = True,
    requantize: bool = False,
) -> Plan:
    """Store what holds fractions in other encodings; all other numbers stay.

    A tensor gets the encoding of the first rule whose pattern is found in its name, else `target`,
    else keeps its own. A rule is obeyed but for blocks where there are no rows to cut into them;
    `target`'s blocks are only for the matrices that llama.cpp would quantize. In a GGUF of a model
    that llama.cpp runs any other `target` is only for those too: its vectors become F32, since it
    computes with no other, and norms, routers and positions stay. Buffers stay everywhere.

    Where rows do not divide into blocks llama.cpp's substitute is taken; with `fallback=False`
    that is a `ConversionError`. So is a rule that matches nothing and, without `requantize`, a
    second loss on top of a first (Q4_1 to Q8_0).
    """
    for rule in rules:
        if not any(rule.pattern.search(item.info.name) for item in plan.items):
            tied = next((name for name in plan.tied if rule.pattern.search(name)), None)
            raise ConversionError(
                f"no tensor's name matches `{rule.pattern.pattern}`",
                hint=f"`{tied}` is tied to `{plan.tied[tied]}`, which may get a type"
                if tied
                else "`weightctl ls --flat` lists the names",
            )
    _refuse_unheld(plan, [target, *(rule.encoding for rule in rules)])
    items = tuple(_cast_item(plan, item, target, rules) for item in plan.items)
    changed = [item for item in items if not item.is_copy]
    _refuse_scaled(plan, changed)
    if not requantize:
        _refuse_second_loss(changed)
    if not fallback:
        _refuse_substitutes(items)
    return replace(plan, items=items, metadata=_described(plan, items, target))


def _cast_item(plan: Plan, item: Item, target: Encoding | None, rules: Sequence[Rule]) -> Item:
    source = item.source.encoding
    if not source.is_known or (source.dtype is not None and not source.dtype.is_float):
        return item
    # PyTorch's half of complex64, and its integers with a scale of their own, have no `DType`.
    if source.pytorch is not None and source.dtype is None:
        return item
    rule = next((rule for rule in rules if rule.pattern.search(item.info.name)), None)
    if rule is not None:
        target = rule.encoding
    if target is None:
        return item
    # Blocks are cut from rows; a vector is none to speak of, and nothing reads one in blocks.
    is_obeyed = rule is not None and (target.quantization is None or len(item.info.shape) >= 2)
    if not is_obeyed and source.quantization is None and not is_matrix_weight(item.info):
        target = _for_others(plan, item.info, target)
    fitting = _fitting(target, item.info.shape)
    asked = None if fitting is target else target.name
    return replace(item, info=item.info._replace(encoding=fitting), asked=asked)


def _for_others(plan: Plan, info: TensorInfo, target: Encoding) -> Encoding:
    """Return the encoding of what is no matrix to quantize."""
    is_gguf = plan.format == "gguf"
    runs_in_llama_cpp = is_gguf and _ARCHITECTURE in plan.metadata
    if target.quantization is None and not runs_in_llama_cpp and not is_buffer(info):
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


def _refuse_unheld(plan: Plan, asked: Sequence[Encoding | None]) -> None:
    for encoding in asked:
        if encoding is not None and getattr(encoding, plan.format, None) is None:
            holders = [name for name in FORMATS if getattr(encoding, name, None) is not None]
            names = " or ".join(f"*{FORMATS[name].suffix}" for name in holders)
            raise ConversionError(
                f"{plan.format} does not have {encoding}",
                hint=f"name the output {names}" if holders else "choose another type",
            )


def _refuse_second_loss(changed: list[Item]) -> None:
    twice = [
        item for item in changed if is_lossy(item.source.encoding) and is_lossy(item.info.encoding)
    ]
    if twice:
        first = twice[0]
        raise ConversionError(
            f"{len(twice)} tensors have already lost precision (`{first.source.name}` is "
            f"{first.source.encoding}); {first.info.encoding} would lose more on top",
            hint="start from the unquantized model, or pass --allow-requantize",
        )


def _refuse_scaled(plan: Plan, changed: list[Item]) -> None:
    together = parts(plan.source.header) if changed else set[str]()
    scaled = [item.source for item in changed if item.source.name in together]
    if scaled:
        first = scaled[0]
        raise ConversionError(
            f"{len(scaled)} tensors are numbers and scales of weights that are quantized already "
            f"(`{first.name}` is {first.encoding}), and have no meaning alone",
            hint="weightctl cannot take them apart yet: start from the unquantized model; "
            "--tensor-type REGEX=keep leaves some as they are",
        )


def _refuse_substitutes(items: Sequence[Item]) -> None:
    substituted = [item for item in items if item.asked]
    if substituted:
        first = substituted[0]
        raise ConversionError(
            f"{len(substituted)} of the tensors cannot be what was asked: `{first.info.name}` has "
            f"rows of {first.info.row}, which do not divide into blocks of {first.asked}",
            hint=f"without --no-fallback they become {first.info.encoding}",
        )


def _described(plan: Plan, items: Sequence[Item], target: Encoding | None) -> dict[str, Value]:
    """Keep the two keys that tell llama.cpp of the types in step with them."""
    metadata = dict(plan.metadata)
    if _ARCHITECTURE in metadata and any(not item.is_copy for item in items):
        name = target.name if target else _most_common(items)
        metadata["general.file_type"] = Value("u32", _FILE_TYPES.get(name, _GUESSED))
        if any(item.info.encoding.quantization for item in items):
            metadata["general.quantization_version"] = Value("u32", 2)
    return metadata


def _most_common(items: Sequence[Item]) -> str:
    sizes: Counter[str] = Counter()
    for item in items:
        sizes[item.info.encoding.name] += item.info.size
    return sizes.most_common(1)[0][0]
