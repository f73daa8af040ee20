"""The Module of Qwen2 and Qwen2.5."""

from __future__ import annotations

from weightctl.nn.models.llama import Llama

__all__ = ["Qwen2"]


class Qwen2(Llama):
    """A Qwen2: a llama whose queries, keys and values have biases."""
