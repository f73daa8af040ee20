"""Types of values: `DType`, `QuantizationEncoding`, and the table of `Encoding`s."""

from weightctl.dtype.types import (
    ENCODINGS,
    BlockScale,
    DType,
    DTypeLike,
    Encoding,
    QuantizationEncoding,
    as_dtype,
    as_quantization,
    encoding_by_id,
    unknown_encoding,
)

__all__ = [
    "ENCODINGS",
    "BlockScale",
    "DType",
    "DTypeLike",
    "Encoding",
    "QuantizationEncoding",
    "as_dtype",
    "as_quantization",
    "encoding_by_id",
    "unknown_encoding",
]
