"""The NumPy definition of each encoding."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from weightctl.codecs.scalar import ScalarCodec
from weightctl.errors import EncodingError
from weightctl.system.registry import load

if TYPE_CHECKING:
    from weightctl.codecs.base import Codec
    from weightctl.dtype import Encoding


def definition(encoding: Encoding) -> Codec:
    """Return the NumPy codec that defines the bytes of an encoding.

    Raises `EncodingError` for an encoding that is not in the table.
    """
    if encoding.dtype is not None:
        return ScalarCodec(encoding.dtype)
    if encoding.codec:
        return cast("Codec", load(encoding.codec))
    raise EncodingError(
        f"weightctl cannot read {encoding.name} data",
        hint="a newer version of weightctl may support it",
    )


def can_encode(encoding: Encoding) -> bool:
    """Whether values can be encoded in this encoding."""
    return encoding.codec != "" or encoding.dtype is not None


def can_decode(encoding: Encoding) -> bool:
    """Whether this encoding can be decoded to values; all codecs encode and decode."""
    return can_encode(encoding)
