"""The documented place of `QuantizationEncoding`."""

from __future__ import annotations

from weightctl.dtype import QuantizationEncoding

__all__ = ["QuantizationEncoding"]
