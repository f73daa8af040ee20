"""Comparison of `general.file_type` with the encodings of the tensors of a GGUF file."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from weightctl.dtype import ENCODINGS
from weightctl.plan.file_types import find_file_type, read_file_type
from weightctl.text.wording import percent
from weightctl.verify.checks.metadata.comparison import Compared

if TYPE_CHECKING:
    from weightctl.plan.file_types import FileType
    from weightctl.weights.info import Header

__all__ = ["check_file_type"]

_KEY = "general.file_type"
# Tools may keep some matrices in another type, but they convert most.
_MOST = 0.5


def check_file_type(header: Header, reference: Header | None) -> Compared:
    """Compare `general.file_type` with the tensors, and with a reference of the same encodings.

    It is a problem if no tensor has the encoding that it names. If only a few have, a tool may have
    chosen other types: a problem if a reference differs, else a note.
    """
    found = Compared()
    number = read_file_type(header.metadata)
    if number is None:
        return found
    text = ""
    wanted = None if reference is None else read_file_type(reference.metadata)
    if wanted not in {None, number} and reference is not None and _has_same(header, reference):
        text = f"is {_show(number)} here and {_show(wanted or 0)} in the reference, which has "
        text += "the same encodings"
    kind = find_file_type(number)
    sizes = Counter[str]() if kind is None else _count_values(header, kind)
    if kind is not None and sizes:
        total = sum(sizes.values())
        has_usual = any(sizes[name] for name in kind.usual)
        is_mostly = sum(sizes[name] for name in kind.allowed) > _MOST * total
        (most, size), *_ = sizes.most_common(1)
        share = percent(size / total)
        mixed = f"is {_show(number)}, but {share} of the matrices' values are {most}"
        if not has_usual or (not is_mostly and reference is not None):
            text = mixed
        elif not is_mostly:
            found.notes.append(f"`{_KEY}` {mixed}")
    if text:
        found.add(_KEY, text)
    return found


def _count_values(header: Header, kind: FileType) -> Counter[str]:
    """Return the number of values in each encoding, for matrices that can have the usual one.

    Matrices whose rows do not divide into its blocks get a fallback encoding, and are not counted.
    """
    block = max(ENCODINGS[name].block for name in kind.usual)
    sizes: Counter[str] = Counter()
    for info in header.tensors.values():
        if len(info.shape) > 1 and not info.shape[-1] % block:
            sizes[info.encoding.name] += info.size
    return sizes


def _has_same(header: Header, reference: Header) -> bool:
    """Whether all tensors have the encodings of the reference's tensors of the same names."""
    own, other = (
        {name: info.encoding.name for name, info in each.tensors.items()}
        for each in (header, reference)
    )
    return own == other


def _show(number: int) -> str:
    kind = find_file_type(number)
    return f"{number}" if kind is None else f"{number}, {kind.name}"
