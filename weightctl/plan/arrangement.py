"""Selection, division among files, and alignment of the tensors of an output."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING

from weightctl.errors import ConversionError
from weightctl.formats import format_module
from weightctl.formats.base import (
    ALIGNMENT_KEY,
    LEAST_ALIGNMENT,
    ROOM_KEY,
    Part,
    is_alignment,
    make_room,
)
from weightctl.schemes.matching import refuse_separated
from weightctl.text.patterns import select_names
from weightctl.text.untyped import is_sequence
from weightctl.weights.metadata import MetadataValue

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weightctl.plan.plan import Plan

_MOST_PARTS = 65_535  # GGUF stores the number in 16 bits
_FORMATS_WITH_ROOM = ("gguf", "safetensors")
_MOST_ROOM = 64_000_000
_MANY = 256


def select(plan: Plan, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> Plan:
    """Keep the tensors that match `include` and do not match `exclude`.

    An empty `include` selects every tensor. Patterns are those of `weightctl.text.patterns`; they
    also apply to values in the tree. Tied names are selected like any other name. If a tied name is
    kept and its tensor is not, the tensor gets that name. Raises `ConversionError` if no tensor is
    left, if a pattern matches nothing, or if patterns separate a quantized weight from its scales.
    """
    if not include and not exclude:
        return plan
    tensors = {*(item.info.name for item in plan.items), *plan.tied}
    names = [*tensors, *plan.source.header.leaves]
    for pattern in (*include, *exclude):
        if not select_names(names, [pattern]):
            raise ConversionError(
                f"no tensor matches `{pattern}`",
                hint=f"a pattern must match the whole name: use `*{pattern}`"
                if select_names(names, [f"*{pattern}"])
                else f"{plan.names_hint}; `*` matches anything",
            )
    kept = set(select_names(names, include, exclude))
    if not kept & tensors:
        raise ConversionError(
            "no tensor is left",
            hint="the patterns of --exclude match every tensor that --include selects",
        )
    refuse_separated({item.info.name: item.info for item in plan.items}, kept)
    return plan.only(kept)


def split(plan: Plan, most: int) -> Plan:
    """Divide the tensors, in their order, among files of at most `most` bytes, headers included.

    A larger tensor has a file of its own. If everything fits into one file, there is one file.
    Raises `ConversionError` if there are more files than file names can count, and in the same
    cases as `Plan.layouts`.
    """
    whole = plan.with_items(tuple(replace(item, part=0) for item in plan.items))
    if whole.layouts()[0].nbytes <= most:
        return whole
    tensors = [item.info for item in plan.items]
    layout = format_module(plan.format).layout
    sizes = [0, *accumulate(info.nbytes for info in tensors)]
    parts: list[int] = []
    number = start = 0
    while start < len(tensors):
        part = Part(number, _MOST_PARTS, len(tensors))
        room = most
        stop = len(tensors) + 1
        while True:
            # The size of the header is only known when it is made, and fewer tensors need a smaller
            # one.
            stop = max(min(bisect_right(sizes, sizes[start] + room) - 1, stop - 1), start + 1)
            nbytes = layout(tensors[start:stop], plan.metadata, part).nbytes
            if nbytes <= most or stop == start + 1:
                break
            room = most - (nbytes - (sizes[stop] - sizes[start]))
        parts += [number] * (stop - start)
        number, start = number + 1, stop
    if number > _MOST_PARTS:
        raise ConversionError(
            f"there would be {number:,} files of at most {most} bytes, but file names can number "
            f"only {_MOST_PARTS:,}",
            hint="allow larger files, such as 5GB",
        )
    items = (replace(item, part=part) for item, part in zip(plan.items, parts, strict=True))
    return plan.with_items(tuple(items))


def align(plan: Plan, boundary: int) -> Plan:
    """Start every tensor at a multiple of `boundary` bytes, as far as the format allows.

    In GGUF this applies to each tensor. Safetensors does not allow gaps: only the first tensor is
    aligned, and the others start at a multiple of their element size. The metadata records the
    boundary, so that a copy is aligned in the same way. Raises `ConversionError` if `boundary` is
    not a power of two of at least 8.
    """
    value = MetadataValue("u32", boundary)
    if boundary < LEAST_ALIGNMENT or not is_alignment(value):
        raise ConversionError(
            f"an alignment of {boundary} bytes is not supported",
            hint="use a power of two of at least 8, such as 4096",
        )
    return replace(plan, metadata={**plan.metadata, ALIGNMENT_KEY: value})


def leave_room(
    metadata: Mapping[str, MetadataValue], format_name: str, nbytes: int
) -> Mapping[str, MetadataValue]:
    """Return the metadata of files whose headers have room for later edits of `nbytes`.

    Long arrays, such as vocabularies, come first, so that later edits do not move their bytes.
    Raises `ConversionError` if the format cannot leave room, or if the number is not valid.
    """
    if format_name not in _FORMATS_WITH_ROOM:
        raise ConversionError(
            f"--header-room (header_room in Python) does not apply to {format_name}",
            hint=f"leave it out, or write {' or '.join(_FORMATS_WITH_ROOM)}",
        )
    if not 0 <= nbytes <= _MOST_ROOM:
        raise ConversionError(
            f"--header-room (header_room in Python) cannot be {nbytes} bytes",
            hint="use at most 64MB, such as 64KB",
        )
    if not nbytes:
        return metadata
    first = {key: value for key, value in metadata.items() if _is_long(value)}
    return {**first, **metadata, ROOM_KEY: make_room(nbytes)}


def _is_long(value: MetadataValue) -> bool:
    return is_sequence(value.content) and len(value.content) > _MANY
