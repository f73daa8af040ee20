"""A part of a checkpoint: the tensors that patterns name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.errors import ConversionError
from weightctl.text.patterns import select_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.plan.plan import Plan

__all__ = ["select"]


def select(plan: Plan, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> Plan:
    """Keep the tensors that match a pattern of `include`, or all, and none of `exclude`.

    The patterns are those of `weightctl.text.patterns`, for values in the tree too; a tied name is
    chosen like any other, and becomes the name of the tensor where that one's own is left out.
    Raises `ConversionError` where nothing is left, or a pattern matches nothing.
    """
    if not include and not exclude:
        return plan
    tensors = {*(item.info.name for item in plan.items), *plan.tied}
    names = [*tensors, *plan.source.header.leaves]
    for pattern in (*include, *exclude):
        if not select_names(names, [pattern]):
            raise ConversionError(
                f"no tensor matches `{pattern}`",
                hint=f"`*{pattern}` does; a pattern is for the whole name"
                if select_names(names, [f"*{pattern}"])
                else f"{plan.names_hint}; `*` stands for anything",
            )
    kept = set(select_names(names, include, exclude))
    if not kept & tensors:
        raise ConversionError("no tensor is left", hint="--exclude takes what --include gives")
    return plan.only(kept)
