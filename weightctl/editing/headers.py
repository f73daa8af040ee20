"""Headers of edited files, whose data begins at a chosen offset."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from weightctl.formats import gguf, safetensors
from weightctl.formats.base import ROOM_KEY, Layout, make_room
from weightctl.formats.gguf_values import pack_string, pack_value
from weightctl.plan.arrangement import leave_room

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weightctl.weights.info import TensorInfo
    from weightctl.weights.metadata import MetadataValue

# The block size of file systems whose files can share blocks.
BLOCK = 4096
# What an empty value of `ROOM_KEY` takes in a GGUF file.
_LEAST_ROOM = len(pack_string(ROOM_KEY)) + len(pack_value(ROOM_KEY, make_room(0)))


def data_start(layout: Layout) -> int:
    """Return the offset at which the data of a file begins."""
    return min(layout.offsets, default=layout.nbytes)


def layout_at(
    format_name: str,
    tensors: Sequence[TensorInfo],
    ordered: Sequence[TensorInfo],
    metadata: Mapping[str, MetadataValue],
    start: int,
) -> Layout | None:
    """Describe a file whose data begins at `start`; None if the header cannot end there.

    `ordered` are the tensors in the order of their data. In GGUF, the header has them in this
    order too; in safetensors, it has the order of `tensors`.
    """
    if format_name == "safetensors":
        packed = safetensors.layout_in_order(tensors, ordered, metadata, 1)
        room = start - len(packed.header)
        if room <= 0:
            return packed if room == 0 else None
        with_room = {**metadata, ROOM_KEY: make_room(room)}
        return safetensors.layout_in_order(tensors, ordered, with_room, 1)
    packed = gguf.layout_in_order(ordered, metadata)
    if data_start(packed) >= start:
        return packed if data_start(packed) == start else None
    room = max(start - len(packed.header) - _LEAST_ROOM, 0)
    made = gguf.layout_in_order(ordered, {**metadata, ROOM_KEY: make_room(room)})
    return made if data_start(made) == start else None


def layout_for_sharing(
    format_name: str,
    tensors: Sequence[TensorInfo],
    ordered: Sequence[TensorInfo],
    metadata: Mapping[str, MetadataValue],
    *,
    offsets: Sequence[int],
    room: int,
) -> Layout:
    """Describe a new file, in which as much data as possible can share blocks with the old file.

    `offsets` are where the tensors, in the order of their data, begin in the old file. `room` is
    the least room for later edits in the header.
    """
    with_room = leave_room(metadata, format_name, room)
    metadata = {key: value for key, value in with_room.items() if key != ROOM_KEY}
    if format_name == "safetensors":
        plain = safetensors.layout_in_order(tensors, ordered, with_room)
    else:
        plain = gguf.layout_in_order(ordered, with_room)
    if not ordered:
        return plain
    start = data_start(plain)
    sizes: Counter[int] = Counter()
    for info, old, new in zip(ordered, offsets, plain.offsets, strict=True):
        sizes[(old - (new - start)) % BLOCK] += info.nbytes
    best = max(sizes, key=lambda each: sizes[each])
    first = start + (best - start) % BLOCK
    for begin in (first, first + BLOCK):
        made = layout_at(format_name, tensors, ordered, metadata, begin)
        if made is not None:
            return made
    return plain


def move_resized(
    metadata: Mapping[str, MetadataValue], values: Mapping[str, MetadataValue]
) -> dict[str, MetadataValue]:
    """Return metadata of a GGUF file with new values.

    A value whose size changes is moved to the end, beside the room. The bytes of the vocabulary
    before it then stay where they are when it changes again.
    """
    moved = {
        key: value
        for key, value in values.items()
        if key not in metadata or _size(key, metadata[key]) != _size(key, value)
    }
    kept = {key: values.get(key, metadata[key]) for key in metadata if key not in moved}
    return {**kept, **moved}


def _size(key: str, value: MetadataValue) -> int:
    return len(pack_value(key, value))
