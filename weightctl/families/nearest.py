"""The known families that an unknown one is most like, and the differences."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from weightctl.families import FAMILIES
from weightctl.schemes.buffers import is_buffer
from weightctl.system.registry import load
from weightctl.text.folding import mask_numbers
from weightctl.text.wording import join_names

if TYPE_CHECKING:
    from collections.abc import Iterable

    from weightctl.families.family import Family
    from weightctl.families.keys import NamingConvention
    from weightctl.weights.info import TensorInfo

__all__ = ["describe_nearest"]

_MOST = 4


class _Likeness(NamedTuple):
    family: Family
    common: set[str]
    beyond: list[str]


def describe_nearest(tensors: Iterable[TensorInfo], convention: NamingConvention) -> str:
    """Say which known family has most kinds of tensors in common with these, and what it lacks.

    Empty if no family has a third of them.
    """
    kinds = dict.fromkeys(mask_numbers(each.name) for each in tensors if not is_buffer(each))
    likenesses = [_likeness(load(reference), kinds, convention) for reference in FAMILIES.values()]
    closest = max(likenesses, key=lambda each: len(each.common))
    if 3 * len(closest.common) < len(kinds) or not kinds:
        return ""
    share = (
        f"the closest is {closest.family.name}: {len(closest.common)} of "
        f"the {len(kinds)} kinds of tensors in this model match it"
    )
    if not closest.beyond:
        return f"{share}, so perhaps only the config differs"
    shown = join_names([f"`{kind}`" for kind in closest.beyond], _MOST)
    return f"{share}, but not {shown}"


def _likeness(family: Family, kinds: Iterable[str], convention: NamingConvention) -> _Likeness:
    templates = (line.gguf if convention == "gguf" else line.hugging_face for line in family.names)
    known = {
        family.plain(f"{template.format('N', expert='N')}.{kind}")
        for template in templates
        if template is not None
        for kind in ("weight", "bias")
    }
    by_kind = {kind: family.plain(kind) in known for kind in kinds}
    common = {kind for kind, is_known in by_kind.items() if is_known}
    beyond = [kind for kind, is_known in by_kind.items() if not is_known]
    return _Likeness(family, common, beyond)
