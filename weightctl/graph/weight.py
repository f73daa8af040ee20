"""The documented place of `Weight`."""

from __future__ import annotations

from weightctl.graph.graph import Weight

__all__ = ["Weight"]
