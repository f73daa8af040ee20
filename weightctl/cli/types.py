"""Types of weights as people ask for them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from weightctl.dtype import parse_encoding
from weightctl.errors import ConversionError, EncodingError
from weightctl.transforms.cast import Rule

if TYPE_CHECKING:
    from weightctl.dtype import Encoding

__all__ = ["default_type", "parse_rule"]

_MADE = "types: f32, f16, bf16, f64, f8_e4m3, f8_e5m2, and as blocks Q8_0, Q5_0, Q4_K"


def default_type(dtype: str | None, quant: str | None) -> Encoding | None:
    """Return the encoding that --dtype or --quant asks for, None without either.

    Raises `ConversionError` where both do, or for a type that is not of theirs.
    """
    if dtype is not None and quant is not None:
        raise ConversionError(
            "--dtype and --quant are both given",
            hint="--tensor-type gives some tensors another type",
        )
    if dtype is not None:
        encoding = parse_encoding(dtype)
        if not _is_plain(encoding):
            raise ConversionError(
                f"--dtype {dtype} is no type for weights",
                hint="--quant takes block types" if encoding.quantization else "try bf16 or f16",
            )
        return encoding
    if quant is not None:
        encoding = _blocks(quant)
        if not encoding.codec:
            raise ConversionError(
                f"weightctl cannot quantize to {encoding}",
                hint=f"--dtype {quant} stores plain numbers"
                if _is_plain(encoding)
                else "it can to Q8_0, Q5_0 and Q4_K",
            )
        return encoding
    return None


def _blocks(text: str) -> Encoding:
    if text.lower().endswith(("_s", "_m", "_l")):
        raise ConversionError(
            f"{text} is a mixture of types, and weightctl quantizes to one",
            hint=f"{text[:-2]} is the plain type; --tensor-type mixes them",
        )
    try:
        return parse_encoding(text)
    except EncodingError as error:
        raise EncodingError(error.message, hint=_MADE) from error


def _is_plain(encoding: Encoding) -> bool:
    dtype = encoding.dtype
    return dtype is not None and dtype.is_float and encoding.name not in {"F8_E8M0", "F4"}


def parse_rule(written: str) -> Rule:
    """Return what `REGEX=TYPE` says; raises `ConversionError` where it says nothing."""
    expression, equals, name = written.rpartition("=")
    if not equals or not expression:
        raise ConversionError(
            f"`--tensor-type {written}` says no type", hint="write REGEX=TYPE: 'ffn_down=Q8_0'"
        )
    try:
        pattern = re.compile(expression)
    except re.error as error:
        raise ConversionError(
            f"`{expression}` is no regular expression: {error}",
            hint=r"a dot is written \. and any text .*",
        ) from error
    if name.strip().lower() == "keep":
        return Rule(pattern, None)
    encoding = _blocks(name)
    if not _is_plain(encoding) and not encoding.codec:
        raise ConversionError(
            f"`--tensor-type {written}`: weightctl cannot make {encoding}",
            hint=f"{_MADE}; or keep",
        )
    return Rule(pattern, encoding)
