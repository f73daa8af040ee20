"""Block types that are decoded by the NumPy code of the `gguf` package."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.errors import EncodingError

if TYPE_CHECKING:
    from weightctl.codecs.base import F32, U8
    from weightctl.dtype import Encoding

__all__ = ["Ggml"]

# What `gguf.quants.dequantize` knows.
_DECODED = frozenset({
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
    "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS",
    "TQ1_0", "TQ2_0", "MXFP4", "NVFP4",
})  # fmt: skip


class Ggml:
    """The codec of a block type as `gguf.quants` defines it; it only decodes."""

    def __init__(self, encoding: Encoding) -> None:
        self._encoding = encoding

    @staticmethod
    def decodes(encoding: Encoding) -> bool:
        """Whether the `gguf` package decodes this type."""
        return encoding.name in _DECODED and encoding.is_known

    def encode(self, rows: F32, importance: F32 | None, out: U8) -> None:  # noqa: ARG002
        """Raise `EncodingError`: this type has no encoder."""
        raise EncodingError(f"weightctl has no encoder for {self._encoding.name}")

    def decode(self, blocks: U8, out: F32) -> None:
        """Fill `out` with the values of `blocks`, as `gguf.quants.dequantize` computes them."""
        # Imported late: it takes as long as the rest of a conversion's start.
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import dequantize

        out[...] = dequantize(blocks, GGMLQuantizationType[self._encoding.name])
