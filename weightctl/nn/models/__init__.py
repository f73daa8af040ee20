"""The modules of the model families."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.system.registry import load_on_use

if TYPE_CHECKING:
    from weightctl.nn.models.network import Network, build_network

__all__ = ["Network", "build_network"]

_NAMES = {
    "Network": "weightctl.nn.models.network:Network",
    "build_network": "weightctl.nn.models.network:build_network",
}

__getattr__ = load_on_use(__name__, _NAMES)


def __dir__() -> list[str]:
    return sorted(__all__)
