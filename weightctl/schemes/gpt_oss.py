"""gpt-oss: MXFP4 as bytes `[..., rows, groups, 16]`, with a scale per group of 32 elements."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

from weightctl.schemes import encoding
from weightctl.schemes.cutting import Along
from weightctl.schemes.microscaled import MXFP_BLOCK, cut_blocks
from weightctl.schemes.mxfp4 import decode as decode_mxfp4
from weightctl.schemes.mxfp4 import pack
from weightctl.schemes.naming import LogicalWeight, NameEndings
from weightctl.schemes.scheme import Scheme
from weightctl.schemes.written import SchemeOptions, WrittenScheme, refuse_groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.dtype import Encoding
    from weightctl.schemes.cutting import Axes
    from weightctl.schemes.decoding import Decoding, SchemeTensors
    from weightctl.schemes.encoding import WeightEncoding
    from weightctl.schemes.naming import Candidate
    from weightctl.weights.info import TensorInfo

# The modules that openai/gpt-oss-20b's config leaves out.
_KEPT = ("model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head")
# The names of Hugging Face's checkpoint, and of the original one.
_NAMES = (
    NameEndings("_scales", "_blocks", "", ("U8",)),
    NameEndings(".scales", ".blocks", "", ("U8",)),
)


def _infer(candidate: Candidate) -> LogicalWeight | None:
    shape = candidate.numbers.shape
    if len(shape) < 2 or shape[-1] != 16 or shape[:-1] != candidate.scales.shape:
        return None
    rows = (*shape[:-2], MXFP_BLOCK * shape[-2])
    return LogicalWeight(_swap(rows) if _has_outputs_as_rows(candidate.numbers, rows) else rows)


def _has_outputs_as_rows(numbers: TensorInfo, shape: tuple[int, ...]) -> bool:
    """Whether a weight is of experts in Hugging Face's checkpoint.

    Its modules have inputs as rows, as transformers' own dequantization has
    (`convert_moe_packed_tensors`).
    """
    return numbers.name.endswith("_blocks") and len(shape) == 3


def _swap(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:-2], shape[-1], shape[-2])


def _decode(stored: SchemeTensors) -> Decoding:
    """Decode a weight. Blocks keep the order of the file, also where rows are not outputs."""
    if not _has_outputs_as_rows(stored.numbers, stored.shape):
        return decode_mxfp4(stored)
    rows = stored.weight._replace(shape=_swap(stored.shape))
    found = decode_mxfp4(replace(stored, weight=rows))
    return found._replace(shape=stored.shape, transposed=True)


def _cut(stored: SchemeTensors) -> list[Axes]:
    """Cut blocks and scales in the same way; the axis of the bytes of a block stays whole."""
    if _has_outputs_as_rows(stored.numbers, stored.shape):
        axes: Axes = (Along(0), Along(2, MXFP_BLOCK), Along(1))
    else:
        axes = cut_blocks(stored)
    return [axes] * len(stored.tensors)


SCHEME = Scheme(label="MXFP4", names=_NAMES, infer=_infer, decode=_decode, cut=_cut)


def _encode(shape: tuple[int, ...], _: SchemeOptions, __: Encoding) -> WeightEncoding:
    rows, columns = prod(shape[:-1]), shape[-1]
    blocks = columns // MXFP_BLOCK
    return encoding.WeightEncoding(
        parts=(
            encoding.StoredPart(
                "_blocks", (*shape[:-1], blocks, MXFP_BLOCK // 2), "U8", unit=columns // 2
            ),
            encoding.StoredPart("_scales", (*shape[:-1], blocks), "U8", unit=blocks),
        ),
        rows=rows, columns=columns, rounding=encoding.Microscaled4(MXFP_BLOCK), pack=pack,
    )  # fmt: skip


def _describe(_: SchemeOptions, ignored: Sequence[str]) -> dict[str, Any]:
    kept = [name for name in ignored if name.endswith(".experts")]
    return {"modules_to_not_convert": [*_KEPT, *kept], "quant_method": "mxfp4"}


MXFP4_EXPERTS = WrittenScheme(
    name="MXFP4",
    summary="4-bit floats (E2M1), with a power-of-two scale per 32 elements, as gpt-oss has them",
    encode=_encode,
    settings=_describe,
    refuse=refuse_groups,
    defaults=SchemeOptions(group=MXFP_BLOCK),
    of_experts=True,
)
