"""The memory that llama.cpp needs to run a model: weights, KV cache and compute buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.system.registry import load_on_use

if TYPE_CHECKING:
    from weightctl.families.memory.caches import MemoryOptions
    from weightctl.families.memory.estimate import MemoryEstimate, estimate_memory

__all__ = ["MemoryEstimate", "MemoryOptions", "estimate_memory"]

_NAMES = {
    "MemoryEstimate": "weightctl.families.memory.estimate:MemoryEstimate",
    "MemoryOptions": "weightctl.families.memory.caches:MemoryOptions",
    "estimate_memory": "weightctl.families.memory.estimate:estimate_memory",
}

__getattr__ = load_on_use(__name__, _NAMES)


def __dir__() -> list[str]:
    return sorted(__all__)
