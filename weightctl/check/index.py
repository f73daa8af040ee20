"""Rules for the index of a split checkpoint."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from weightctl.check.rules import JsonChange, RuleFinding
from weightctl.errors import FormatError
from weightctl.formats.open.index import Index, few
from weightctl.storage.files import is_file
from weightctl.text.wording import pluralize
from weightctl.verify.checks.structure import check_total

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from weightctl.check.model import CheckedModel
    from weightctl.weights.info import Extent, Header, TensorInfo


def is_index_at_fault(model: CheckedModel) -> bool:
    """Whether a rule of this module explains why the checkpoint cannot be opened."""
    rules = (
        find_unreadable_index,
        find_absent_parts,
        find_missing_entries,
        find_extra_entries,
        find_wrong_parts,
        find_repeated_tensors,
    )
    return any(True for find in rules for _ in find(model))


def has_unreadable_part(model: CheckedModel) -> bool:
    """Whether a part that the index lists exists and cannot be read."""
    index = model.index
    return isinstance(index, Index) and any(
        is_file(os.path.join(os.path.dirname(index.path), name)) and name not in model.parts
        for name in index.parts
    )


def find_unreadable_index(model: CheckedModel) -> Iterator[RuleFinding]:
    if isinstance(model.index, FormatError):
        error = model.index
        yield RuleFinding(path=error.path, text=error.reason, hint=error.hint)


def find_absent_parts(model: CheckedModel) -> Iterator[RuleFinding]:
    index = model.index
    if not isinstance(index, Index):
        return
    directory = os.path.dirname(index.path)
    absent = [name for name in index.parts if not is_file(os.path.join(directory, name))]
    if absent:
        are = "is" if len(absent) == 1 else "are"
        yield RuleFinding(
            path=index.path,
            text=f"{pluralize(len(absent), 'part')} {are} missing: {few(absent)}",
            hint="download the missing parts",
        )


def find_missing_entries(model: CheckedModel) -> Iterator[RuleFinding]:
    """Find tensors of the parts that the index does not list."""
    index = model.index
    if not isinstance(index, Index):
        return
    holders = _list_holders(model)
    new = {name: parts for name, parts in holders.items() if name not in index.weight_map}
    if new:
        are = "is" if len(new) == 1 else "are"
        yield RuleFinding(
            path=index.path,
            where="weight_map",
            text=f"{pluralize(len(new), 'tensor')} of the parts {are} not listed: {few(new)}",
            changes=tuple(
                JsonChange(index.path, ("weight_map", name), parts[0])
                for name, parts in new.items()
                if len(parts) == 1
            ),
        )


def find_extra_entries(model: CheckedModel) -> Iterator[RuleFinding]:
    """Find entries of the index whose tensor is in no part; all parts must be readable."""
    index = model.index
    if not isinstance(index, Index) or not set(index.parts) <= model.parts.keys():
        return
    holders = _list_holders(model)
    extra = [
        name
        for name, part in index.weight_map.items()
        if name not in holders
        and name not in index.metadata  # a tied name
        and name not in model.parts[part].aliases
    ]
    if extra:
        are = "is" if len(extra) == 1 else "are"
        yield RuleFinding(
            path=index.path,
            where="weight_map",
            text=f"{pluralize(len(extra), 'listed tensor')} {are} in no part: {few(extra)}",
            changes=tuple(
                JsonChange(index.path, ("weight_map", name), removed=True) for name in extra
            ),
        )


def find_wrong_parts(model: CheckedModel) -> Iterator[RuleFinding]:
    """Find entries of the index that name another part than the one that has the tensor."""
    index = model.index
    if not isinstance(index, Index):
        return
    wrong = {
        name: parts
        for name, parts in _list_holders(model).items()
        if index.weight_map.get(name, parts[0]) not in parts
        and name not in _aliases(model, index.weight_map[name])
    }
    if wrong:
        are = "is" if len(wrong) == 1 else "are"
        yield RuleFinding(
            path=index.path,
            where="weight_map",
            text=f"{pluralize(len(wrong), 'tensor')} {are} not in the part that is listed: "
            f"{few(wrong)}",
            changes=tuple(
                JsonChange(index.path, ("weight_map", name), parts[0])
                for name, parts in wrong.items()
                if len(parts) == 1
            ),
        )


def find_repeated_tensors(model: CheckedModel) -> Iterator[RuleFinding]:
    repeated = [name for name, parts in _list_holders(model).items() if len(parts) > 1]
    if repeated and isinstance(model.index, Index):
        are = "is" if len(repeated) == 1 else "are"
        yield RuleFinding(
            path=model.index.path,
            text=f"{pluralize(len(repeated), 'tensor')} {are} in several parts: {few(repeated)}",
            hint="remove the parts of another version from the directory",
        )


def find_stale_total(model: CheckedModel) -> Iterator[RuleFinding]:
    """Find a `total_size` that is not that of the tensors; all parts must be readable."""
    index = model.index
    if not isinstance(index, Index) or not set(index.parts) <= model.parts.keys():
        return
    header = _join(index, model.parts)
    total = sum(extent.nbytes for extent in header.extents.values())
    for problem in check_total(header):
        yield RuleFinding(
            path=index.path,
            where="metadata.total_size",
            text=problem.text,
            changes=(JsonChange(index.path, ("metadata", "total_size"), total),),
        )


def _list_holders(model: CheckedModel) -> dict[str, list[str]]:
    """Return the parts that have each tensor."""
    holders: dict[str, list[str]] = {}
    for part, header in model.parts.items():
        for name in header.tensors:
            holders.setdefault(name, []).append(part)
    return holders


def _aliases(model: CheckedModel, part: str) -> Mapping[str, str]:
    return model.parts[part].aliases if part in model.parts else {}


def _join(index: Index, parts: Mapping[str, Header]) -> Header:
    """Return one header for all parts, which may contradict each other."""
    tensors: dict[str, TensorInfo] = {}
    extents: dict[str, Extent] = {}
    aliases: dict[str, str] = {}
    for header in parts.values():
        tensors |= header.tensors
        extents |= header.extents
        aliases |= header.aliases
    aliases = {name: other for name, other in aliases.items() if other in extents}
    first = next(iter(parts.values()))
    return first._replace(tensors=tensors, extents=extents, aliases=aliases, listing=index.path)
