"""The specification of an encoder's blocks and sizes, which one Module runs."""

from __future__ import annotations

from dataclasses import dataclass

from weightctl.families.decoder import DecoderConfig

__all__ = ["EncoderConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig(DecoderConfig):
    """The sizes of an encoder, and which blocks it is made of, as those of a decoder.

    Besides words and positions, there may be an embedding of `token_types`. It has no output but
    the states of its last layer.
    """

    token_types: int = 0
    tied: bool = True
    causal: bool = False
