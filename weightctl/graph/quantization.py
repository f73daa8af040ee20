"""The documented import path of `QuantizationEncoding`."""

from __future__ import annotations

from weightctl.dtype import QuantizationEncoding

__all__ = ["QuantizationEncoding"]
