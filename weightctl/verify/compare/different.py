"""Whether two checkpoints are of one model at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.verify.config_keys import spelled

if TYPE_CHECKING:
    from weightctl.archs import RecognizedModel

__all__ = ["different_models"]


def different_models(own: RecognizedModel | None, other: RecognizedModel | None) -> str:
    """Say that two models are not one, and by what that is seen; empty where they may be.

    They are of two families, or of another width and besides of another depth or vocabulary: one
    of these alone may be a mistake in a config. Of what is not known nothing is said.
    """
    if own is None or other is None:
        return ""
    seen: list[str] = []
    if own.arch.name != other.arch.name:
        seen.append(f"the families {own.arch.name} and {other.arch.name}")
    unequal = [
        f"{spelled(own, field).key} {getattr(own.config, field)} and {getattr(other.config, field)}"
        for field in ("hidden", "layers", "vocabulary")
        if getattr(own.config, field) != getattr(other.config, field)
    ]
    is_wider = own.config.hidden != other.config.hidden
    if not seen and not (is_wider and len(unequal) > 1):
        return ""
    return f"these are different models: {', '.join([*seen, *unequal])}"
