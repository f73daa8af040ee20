"""The Module of Qwen3."""

from __future__ import annotations

from weightctl.nn.models.llama import Llama

__all__ = ["Qwen3"]


class Qwen3(Llama):
    """A dense Qwen3: a llama that norms each head of its queries and keys, then rotates them."""
