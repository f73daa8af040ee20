"""Models with the tensor names of other programs, which packages translate.

An entry point of the group `weightctl.layouts` is a function that plans to store such a model, or
returns None. What shows a layout is known here, so that packages are only looked for when needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.formats import DIRECTORY_FORMATS, FORMATS
from weightctl.system.registry import load_entry_points
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from weightctl.plan.choices import Names
    from weightctl.plan.plan import Plan
    from weightctl.weights.info import Header
    from weightctl.weights.tree import Checkpoint

_ENTRY_POINTS = "weightctl.layouts"
# Names of tensors, or keys of the metadata, that only models of OpenAI's programs have.
_MARKS = {
    "clip": (
        "visual.conv1.weight", "token_embedding.weight",
        "transformer.resblocks.0.attn.in_proj_weight",
    ),
    "whisper": ("dims.n_vocab",),
}  # fmt: skip


def find_layout(header: Header) -> str | None:
    """Return the name of the layout that a checkpoint has, None if it has none of OpenAI's."""
    return next((name for name, marks in _MARKS.items() if _has_all(header, marks)), None)


def _has_all(header: Header, marks: tuple[str, ...]) -> bool:
    return all(mark in header.tensors or mark in header.metadata for mark in marks)


def plan_layout(
    weights: Checkpoint, format_name: str, names: Names, *, is_model: bool
) -> Plan | None:
    """Return the plan for a model whose names a package translates; None for any other plan."""
    is_asked = names.value == "openai" or format_name not in FORMATS | DIRECTORY_FORMATS
    if not is_asked and find_layout(header_of(weights)) is None:
        return None
    for each in load_entry_points(_ENTRY_POINTS):
        plan: Plan | None = each.value(weights, format_name, names, is_model=is_model)
        if plan is not None:
            return plan
    return None
