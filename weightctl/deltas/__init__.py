"""Patches: what changed between two checkpoints, and how the second is restored from the first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.system.registry import load_on_use

if TYPE_CHECKING:
    from weightctl.deltas.applying import AppliedPatch, apply_patch
    from weightctl.deltas.creating import WrittenPatch, write_patch

__all__ = ["AppliedPatch", "WrittenPatch", "apply_patch", "write_patch"]

__getattr__ = load_on_use(
    __name__,
    {
        "AppliedPatch": "weightctl.deltas.applying:AppliedPatch",
        "WrittenPatch": "weightctl.deltas.creating:WrittenPatch",
        "apply_patch": "weightctl.deltas.applying:apply_patch",
        "write_patch": "weightctl.deltas.creating:write_patch",
    },
)
