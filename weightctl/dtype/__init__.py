"""Types of values: `DType`, `QuantizationEncoding`, and the table of `Encoding`s."""

from weightctl.dtype.encodings import (
    ENCODINGS,
    BlockScale,
    Encoding,
    encoding_by_id,
    unknown_encoding,
)
from weightctl.dtype.types import (
    DType,
    DTypeLike,
    QuantizationEncoding,
    as_dtype,
    as_quantization,
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
