"""The changes of an edit, applied to a whole checkpoint: metadata, names and dropped tensors."""

from __future__ import annotations

import json
import re
from difflib import get_close_matches
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import ConversionError
from weightctl.plan.metadata import Setting, change_metadata
from weightctl.plan.plan import Plan
from weightctl.plan.rename import Renaming, collect_renamings, rename
from weightctl.schemes.matching import refuse_separated
from weightctl.text.patterns import select_names
from weightctl.text.untyped import is_list
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weightctl.plan.rename import RenamingsLike
    from weightctl.weights.info import Header
    from weightctl.weights.metadata import MetadataValue
    from weightctl.weights.tree import Checkpoint

# New values of these keys are text, even if they look like numbers: `general.version` is "1.0".
_TEXTS = "general."
_MOST_NAMED = 3


class Changes(NamedTuple):
    """What an edit changes: metadata to set and to remove, rules for names, patterns to drop."""

    settings: Sequence[Setting] = ()
    unset: Sequence[str] = ()
    renamings: Sequence[RenamingsLike] = ()
    drop: Sequence[str] = ()

    def __bool__(self) -> bool:
        return any(self)


class ChangedModel(NamedTuple):
    """A checkpoint after an edit: the plan of its tensors, and the metadata that changes.

    `values` are new values by key, and `removed` the keys that are removed. `names` maps the old
    names of tensors and tied names to their new names, None for those that are dropped.
    """

    plan: Plan
    values: Mapping[str, MetadataValue]
    removed: frozenset[str]
    names: Mapping[str, str | None]

    @property
    def new_names(self) -> dict[str, str]:
        """The old and new names of tensors that are renamed."""
        return {old: new for old, new in self.names.items() if new not in {old, None} and new}

    @property
    def dropped_names(self) -> list[str]:
        """The names of tensors that are dropped."""
        return [old for old, new in self.names.items() if new is None]


def apply_changes(weights: Checkpoint, changes: Changes) -> ChangedModel:
    """Return the changed checkpoint, without reading or writing data.

    Raises `ConversionError` if a change does not apply: a pattern that matches nothing, a value
    that does not have its type, two tensors with the same name, or a quantized weight that would be
    dropped without its scales.
    """
    header = header_of(weights)
    dropped = _select_dropped(header, changes.drop)
    renamings = [rule for given in changes.renamings for rule in _list_rules(header, given)]
    new = rename(weights, renamings) if renamings else weights
    every = [*header.tensors, *header.aliases]
    after = header_of(new)
    names = dict(zip(every, [*after.tensors, *after.aliases], strict=True))
    plan = Plan.copy(new, header.format)
    if dropped:
        kept = {new for old, new in names.items() if old not in dropped}
        _refuse_tied(header, dropped)
        refuse_separated(header.tensors, header.tensors.keys() - dropped)
        plan = plan.only({*kept, *after.leaves})
    plan = change_metadata(
        plan, [_with_type(plan, each) for each in changes.settings], changes.unset
    )
    before = header.metadata
    values = {
        key: value
        for key, value in plan.metadata.items()
        if before.get(key) is not value and before.get(key) != value
    }
    removed = frozenset(before.keys() - plan.metadata.keys())
    return ChangedModel(
        plan, values, removed, {name: None if name in dropped else names[name] for name in every}
    )


def _list_rules(header: Header, given: RenamingsLike) -> Sequence[Renaming]:
    """Return the rules of an argument; `OLD=NEW` with a tensor's name renames only this tensor."""
    if isinstance(given, str):
        old, _, new = given.rpartition("=")
        if old in header.tensors or old in header.aliases:
            return [Renaming(re.compile(rf"\A{re.escape(old)}\Z"), new.replace("\\", r"\\"))]
    return collect_renamings(given)


def _select_dropped(header: Header, patterns: Sequence[str]) -> set[str]:
    every = [*header.tensors, *header.aliases]
    dropped: set[str] = set()
    for pattern in patterns:
        found = [pattern] if pattern in every else select_names(every, [pattern])
        if not found:
            near = get_close_matches(pattern, every, _MOST_NAMED)
            raise ConversionError(
                f"there is no tensor `{pattern}` to drop",
                hint=f"did you mean {' or '.join(f'`{each}`' for each in near)}?"
                if near
                else "`weightctl ls --flat` lists the names",
            )
        dropped.update(found)
    return dropped


def _refuse_tied(header: Header, dropped: set[str]) -> None:
    for name, tensor in header.aliases.items():
        if tensor in dropped and name not in dropped:
            raise ConversionError(
                f"`{tensor}` cannot be dropped, since `{name}` is tied to it",
                hint=f"to drop both, use also --drop {name} (drop in Python)",
            )


def _with_type(plan: Plan, setting: Setting) -> Setting:
    """Return a setting whose value, if it is new in GGUF and has no type, is read as JSON."""
    is_new = setting.type is None and setting.key not in plan.metadata
    if not is_new or plan.format != "gguf" or setting.path or setting.otherwise != "string":
        return setting
    try:
        value: object = json.loads(setting.text)
    except (ValueError, RecursionError):
        return setting
    if isinstance(value, dict) or value is None:
        return setting
    if setting.key.startswith(_TEXTS) and not is_list(value):
        return setting
    made = Setting.of(setting.key, value)
    return setting._replace(text=made.text, otherwise=made.otherwise)
