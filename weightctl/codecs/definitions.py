"""The NumPy definition of each encoding, from this package or, to decode only, from `gguf`."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from weightctl.codecs.scalar import ScalarCodec
from weightctl.errors import EncodingError
from weightctl.system.registry import load

if TYPE_CHECKING:
    from weightctl.codecs.base import F32, U8, Codec
    from weightctl.dtype import Encoding

__all__ = ["can_decode", "can_encode", "definition"]

# Encodings that only `gguf.quants.dequantize` decodes.
_DECODED = frozenset({"IQ1_S", "IQ1_M"})


def definition(encoding: Encoding) -> Codec:
    """Return the NumPy codec that defines the bytes of an encoding.

    Raises `EncodingError` for an encoding that is not in the table.
    """
    if encoding.dtype is not None:
        return ScalarCodec(encoding.dtype)
    if encoding.codec:
        return cast("Codec", load(encoding.codec))
    if can_decode(encoding):
        return GgufDecoder(encoding)
    raise EncodingError(
        f"weightctl cannot read {encoding.name} data",
        hint="a newer version of weightctl may support it",
    )


def can_encode(encoding: Encoding) -> bool:
    """Whether values can be encoded in this encoding."""
    return encoding.codec != "" or encoding.dtype is not None


def can_decode(encoding: Encoding) -> bool:
    """Whether this encoding can be decoded to values."""
    return can_encode(encoding) or (encoding.name in _DECODED and encoding.is_known)


class GgufDecoder:
    """The codec of a block type as `gguf.quants` defines it; it only decodes."""

    def __init__(self, encoding: Encoding) -> None:
        self._encoding = encoding

    def encode(self, rows: F32, importance: F32 | None, out: U8) -> None:  # noqa: ARG002
        """Raise `EncodingError`: this type has no encoder."""
        raise EncodingError(f"weightctl has no encoder for {self._encoding.name}")

    def decode(self, blocks: U8, out: F32) -> None:
        """Fill `out` with the values of `blocks`, as `gguf.quants.dequantize` computes them."""
        # Imported on use: the import takes as long as the rest of a conversion's start.
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import dequantize

        out[...] = dequantize(blocks, GGMLQuantizationType[self._encoding.name])
