"""gpt-oss: MXFP4 as bytes `[..., rows, groups, 16]`, with a scale per group of 32 elements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.schemes.microscaled import MXFP_BLOCK, cut_blocks
from weightctl.schemes.mxfp4 import decode as decode_mxfp4
from weightctl.schemes.scheme import LogicalWeight, NameEndings, Scheme

if TYPE_CHECKING:
    from weightctl.schemes.cutting import Axes
    from weightctl.schemes.decoding import Decoding, SchemeTensors
    from weightctl.schemes.scheme import Candidate

__all__ = ["SCHEME"]

# The names of Hugging Face's checkpoint, and of the original one.
_NAMES = (
    NameEndings("_scales", "_blocks", "", ("U8",)),
    NameEndings(".scales", ".blocks", "", ("U8",)),
)


def _infer(candidate: Candidate) -> LogicalWeight | None:
    shape = candidate.numbers.shape
    if len(shape) < 2 or shape[-1] != 16 or shape[:-1] != candidate.scales.shape:
        return None
    return LogicalWeight((*shape[:-2], MXFP_BLOCK * shape[-2]))


def _decode(stored: SchemeTensors) -> Decoding:
    """Decode a weight; for experts, the rows are outputs in the file, and inputs in the result.

    Hugging Face's modules and transformers' own dequantization (`convert_moe_packed_tensors`) have
    the inputs as rows. Blocks keep the order of the file.
    """
    found = decode_mxfp4(stored)
    if not stored.numbers.name.endswith("_blocks") or len(found.shape) != 3:
        return found
    experts, outputs, inputs = found.shape
    return found._replace(shape=(experts, inputs, outputs), transposed=True)


def _cut(stored: SchemeTensors) -> list[Axes]:
    """Cut blocks and scales in the same way; the axis of the bytes of a block stays whole."""
    return [cut_blocks(stored)] * len(stored.tensors)


SCHEME = Scheme(label="MXFP4", names=_NAMES, infer=_infer, decode=_decode, cut=_cut)
