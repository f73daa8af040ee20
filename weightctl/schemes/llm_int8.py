"""bitsandbytes' LLM.int8(): I8 values, with the largest absolute value of each row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.schemes import decoding, encoding
from weightctl.schemes.cutting import cut_upright
from weightctl.schemes.naming import LogicalWeight, NameEndings
from weightctl.schemes.scheme import Scheme
from weightctl.schemes.written import SchemeOptions, WrittenScheme, accept_any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from weightctl.codecs.base import U8
    from weightctl.dtype import Encoding
    from weightctl.schemes.decoding import Decoding, SchemeTensors
    from weightctl.schemes.encoding import Codes, WeightEncoding
    from weightctl.schemes.naming import Candidate

_NAMES = (NameEndings(".SCB", ".weight", ".weight", ("I8",), (".weight_format",)),)
# The float32 that bitsandbytes' kernels use for 1 / 127.
_PER_127 = 7.874015718698502e-3


def _infer(candidate: Candidate) -> LogicalWeight | None:
    shape = candidate.numbers.shape
    fits = len(shape) == 2 and candidate.scales.shape == shape[:1]
    return LogicalWeight(shape) if fits else None


def _decode(stored: SchemeTensors) -> Decoding:
    """Decode rows whose largest absolute value represents 127."""
    stored.refuse_others(".weight_format")
    place = stored.find(".weight_format")
    if place is not None and stored.raw(place).strip(b"\0"):
        raise stored.cannot_dequantize(
            f"`{stored.tensors[place].info.name}` states a layout that only some GPUs can read"
        )
    grid = stored.grid(stored.shape, (stored.shape[0], 1))
    scales = stored.per_block(1, grid)
    values = decoding.Scaled(numbers=stored.plain(0), scales=scales, factor=_PER_127)
    return decoding.Decoding(stored.shape, values)


SCHEME = Scheme(label="LLM.int8()", names=_NAMES, infer=_infer, decode=_decode, cut=cut_upright)


def _encode(shape: tuple[int, ...], _: SchemeOptions, __: Encoding) -> WeightEncoding:
    rows, columns = shape
    return encoding.WeightEncoding(
        parts=(
            encoding.StoredPart(".weight", shape, "I8", unit=columns),
            encoding.StoredPart(".SCB", (rows,), "F32", unit=4),
            encoding.StoredPart(".weight_format", (), "U8", content=b"\0"),
        ),
        rows=rows, columns=columns, rounding=encoding.RowScaled(), pack=_pack,
    )  # fmt: skip


def _pack(made: Codes, _peak: np.float32) -> tuple[U8, U8]:
    return made.codes, made.scales


def _describe(_: SchemeOptions, ignored: Sequence[str]) -> dict[str, Any]:
    return {
        "quant_method": "bitsandbytes",
        "load_in_4bit": False,
        "load_in_8bit": True,
        "llm_int8_threshold": 6.0,
        "llm_int8_has_fp16_weight": False,
        "llm_int8_skip_modules": [*ignored],
    }


BNB_INT8 = WrittenScheme(
    name="BNB-INT8",
    summary="bitsandbytes' 8-bit integers (LLM.int8()), with a scale per row",
    encode=_encode,
    settings=_describe,
    refuse=accept_any,
)
