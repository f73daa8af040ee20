"""Execution of graphs with torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.system.registry import load_on_use

if TYPE_CHECKING:
    from weightctl.engine.arrays import DeviceBuffer
    from weightctl.engine.generation import Generation, generate
    from weightctl.engine.process_group import Process, processes
    from weightctl.engine.session import InferenceSession, LoadedGraph

__all__ = [
    "DeviceBuffer",
    "Generation",
    "InferenceSession",
    "LoadedGraph",
    "Process",
    "generate",
    "processes",
]

_NAMES = {
    "Generation": "weightctl.engine.generation:Generation",
    "generate": "weightctl.engine.generation:generate",
    "DeviceBuffer": "weightctl.engine.arrays:DeviceBuffer",
    "InferenceSession": "weightctl.engine.session:InferenceSession",
    "LoadedGraph": "weightctl.engine.session:LoadedGraph",
    "Process": "weightctl.engine.process_group:Process",
    "processes": "weightctl.engine.process_group:processes",
}

__getattr__ = load_on_use(__name__, _NAMES)


def __dir__() -> list[str]:
    return sorted(__all__)
