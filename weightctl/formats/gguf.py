"""GGUF versions 1 to 3, in both byte orders, according to ggml's specification."""

from __future__ import annotations

import struct
from itertools import zip_longest
from math import prod
from typing import TYPE_CHECKING

from weightctl.dtype import Encoding, encoding_by_id, unknown_encoding
from weightctl.errors import ConversionError, FormatError
from weightctl.formats.base import (
    ALIGNMENT_KEY,
    NO_METADATA,
    ROOM_KEY,
    SPLIT_KEYS,
    Layout,
    is_alignment,
    is_possible,
    is_text,
    pad,
    tied_names,
)
from weightctl.formats.gguf_values import Cursor, pack_string, pack_value
from weightctl.text.untyped import is_sequence
from weightctl.weights.info import Extent, Header, TensorInfo
from weightctl.weights.metadata import INTEGERS, TEXT, MetadataValue

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weightctl.formats.base import Part
    from weightctl.storage.base import Reader

MAGIC = b"GGUF"
_DEFAULT_ALIGNMENT = MetadataValue("u32", 32)
# Strings of a safetensors header are stored in GGUF under this prefix.
_TEXT_PREFIX = "safetensors."
# Every safetensors file has this entry; it is not stored in GGUF.
_FRAMEWORK = ("format", "pt")
_VOCABULARY = "tokenizer.ggml."
_TOKENS = "tokenizer.ggml.tokens"
_MAX_DIMENSIONS = 4
# Files of video models have a convolution over three axes. ggml does not read them; ComfyUI-GGUF,
# stable-diffusion.cpp and diffusers do.
_MAX_DIMENSIONS_OF = {"wan": 5}
_ARCHITECTURE = "general.architecture"
_MAX_NAME = 63


class _Entry:
    """An entry of the tensor table; `at` is its byte offset in the file."""

    __slots__ = ("at", "name", "offset", "shape", "type")

    def __init__(self, at: int, name: str, shape: tuple[int, ...], kind: int, offset: int) -> None:
        self.at = at
        self.name = name
        self.shape = shape
        self.type = kind
        self.offset = offset


def sniff(file: Reader) -> bool:
    """Whether a file begins with the magic bytes of GGUF."""
    return file.read(0, len(MAGIC)) == MAGIC


def read(file: Reader) -> Header:
    """Parse the header of a GGUF file; raises `FormatError` with the offset if it is invalid."""
    cursor = _start(file)
    tensor_count, value_count = cursor.count(), cursor.count()
    left = file.size - cursor.offset
    # The smallest metadata value has the length of its key, a type and one byte. The smallest
    # tensor has the length of its name, the number of dimensions, a type and an offset.
    if value_count * 9 + tensor_count * 20 > left:
        raise cursor.fail(
            f"the header states {tensor_count} tensors and {value_count} metadata values, but "
            f"only {left} bytes follow it"
        )
    metadata = _metadata(cursor, value_count)
    alignment = _alignment(cursor, metadata)
    entries = _entries(cursor, tensor_count, _most_dimensions(metadata))
    metadata.pop(ROOM_KEY, None)
    metadata = _strip_text_prefix(metadata)
    start = cursor.offset + pad(cursor.offset, alignment)
    tensors, extents, notes = _place(file, entries, start, alignment)
    return Header(
        format="gguf",
        files=(file.path,),
        tensors=tensors,
        extents=extents,
        metadata=metadata,
        aliases=tied_names(metadata, tensors),
        alignment=alignment,
        big_endian=cursor.order == ">",
        notes=(*notes, *_list_absent_tokens(metadata)),
    )


def _start(file: Reader) -> Cursor:
    if file.size < 24:
        from weightctl.formats.truncation import rest_of

        raise FormatError(
            file.path, file.size, "the file ends inside the GGUF header",
            hint=rest_of(file.path),
        )  # fmt: skip
    raw = file.read(4, 4)
    version = int.from_bytes(raw, "little")
    order = "<"
    if version & 0xFFFF == 0:
        version, order = int.from_bytes(raw, "big"), ">"
    if version not in {1, 2, 3}:
        raise FormatError(
            file.path,
            4,
            f"GGUF version {version} is not supported",
            hint="versions 1 to 3 are supported",
        )
    return Cursor(file, version, order, 8)


def _metadata(cursor: Cursor, count: int) -> dict[str, MetadataValue]:
    metadata: dict[str, MetadataValue] = {}
    for _ in range(count):
        at = cursor.offset
        key = cursor.string("a metadata key")
        problem = (
            "a metadata key is empty"
            if not key
            else f"the metadata key {key!r} is not UTF-8"
            if not is_text(key)
            else f"the metadata key `{key}` appears twice"
            if key in metadata
            else ""
        )
        if problem:
            raise FormatError(cursor.file.path, at, problem, hint="the file is damaged")
        metadata[key] = cursor.value(key)
    return metadata


def _alignment(cursor: Cursor, metadata: Mapping[str, MetadataValue]) -> int:
    value = metadata.get(ALIGNMENT_KEY, _DEFAULT_ALIGNMENT)
    if not is_alignment(value):
        raise cursor.fail(
            f"`{ALIGNMENT_KEY}` is {value.content!r} ({value.type}); it must be a u32 "
            "that is a power of two",
            hint="a faulty tool wrote the file",
        )
    return int(value.content)


def _most_dimensions(metadata: Mapping[str, MetadataValue]) -> int:
    stated = metadata.get(_ARCHITECTURE)
    architecture = "" if stated is None else str(stated.content)
    return _MAX_DIMENSIONS_OF.get(architecture, _MAX_DIMENSIONS)


def _entries(cursor: Cursor, count: int, most: int) -> list[_Entry]:
    entries: list[_Entry] = []
    names: set[str] = set()
    dimension = cursor.count if cursor.version == 1 else lambda: cursor.number("u64")
    for _ in range(count):
        at = cursor.offset
        name = cursor.string("a tensor name")
        rank = cursor.number("u32")
        if rank > most:
            raise FormatError(
                cursor.file.path,
                at,
                f"`{name}` has {rank} dimensions; GGUF allows at most {most}",
                hint="the file is damaged",
            )
        shape = tuple(dimension() for _ in range(rank))[::-1]
        kind, offset = cursor.number("u32"), cursor.number("u64")
        problem = (
            f"the tensor name {name!r} is not UTF-8"
            if not is_text(name)
            else f"two tensors are named `{name}`"
            if name in names
            else f"`{name}` has more elements than a file can store: {shape}"
            if not is_possible(shape)
            else ""
        )
        if problem:
            raise FormatError(cursor.file.path, at, problem, hint="the file is damaged")
        names.add(name)
        entries.append(_Entry(at, name, shape, kind, offset))
    return entries


def _place(
    file: Reader, entries: list[_Entry], start: int, alignment: int
) -> tuple[dict[str, TensorInfo], dict[str, Extent], tuple[str, ...]]:
    """Return the description and extent of each tensor, and notes.

    Raises `FormatError` if tensors overlap, leave gaps, or end after the end of the file.
    """
    found: dict[str, tuple[TensorInfo, Extent]] = {}
    expected = 0
    furthest: tuple[int, _Entry | None] = (file.size, None)
    ordered = sorted(entries, key=lambda entry: entry.offset)
    for entry, after in zip_longest(ordered, ordered[1:]):
        if entry.offset != expected:
            relation = (
                "overlaps the tensor before it" if entry.offset < expected else "leaves a gap"
            )
            raise FormatError(
                file.path,
                entry.at,
                f"`{entry.name}` starts at byte {entry.offset} of the tensor data instead "
                f"of byte {expected}: it {relation}",
                hint="the file is damaged or a faulty tool wrote it; llama.cpp does not load "
                "it either",
            )
        encoding = encoding_by_id("gguf", entry.type)
        if encoding is None:
            # The size of an unknown type is not known, but the next tensor starts after its data.
            following = file.size - start if after is None else after.offset
            nbytes = max(following - entry.offset, 0)
            encoding = unknown_encoding("gguf", entry.type, prod(entry.shape), nbytes)
        else:
            nbytes = _nbytes(file, entry, encoding)
        end = start + entry.offset + nbytes
        if end > furthest[0]:
            furthest = (end, entry)
        info = TensorInfo(entry.name, entry.shape, encoding)
        found[entry.name] = (info, Extent(0, start + entry.offset, nbytes))
        expected = entry.offset + nbytes + pad(nbytes, alignment)
    end, last = furthest
    if last is not None:
        from weightctl.formats.truncation import past_end

        raise past_end(file.path, last.at, last.name, end, file.size)
    surplus = file.size - start - expected
    notes = (f"{surplus} bytes after the last tensor are not used",) if surplus > 0 else ()
    tensors = {entry.name: found[entry.name][0] for entry in entries}
    extents = {entry.name: found[entry.name][1] for entry in entries}
    return tensors, extents, notes if entries else ()


def _nbytes(file: Reader, entry: _Entry, encoding: Encoding) -> int:
    if not encoding.fits(entry.shape):
        raise FormatError(
            file.path,
            entry.at,
            f"`{entry.name}` has shape {entry.shape}: a row is not a whole number of "
            f"{encoding.name} blocks",
            hint="the file is damaged",
        )
    return encoding.nbytes(entry.shape)


def _strip_text_prefix(metadata: dict[str, MetadataValue]) -> dict[str, MetadataValue]:
    """Restore the keys and type of strings that came from a safetensors header."""
    made: dict[str, MetadataValue] = {}
    for key, value in metadata.items():
        plain = key.removeprefix(_TEXT_PREFIX)
        # A value must not replace another one that already has the key.
        is_ours = value.type == "string" and (plain, value.content) != _FRAMEWORK
        if is_ours and plain not in metadata and is_text(value.content):
            made[plain] = MetadataValue(TEXT, value.content)
        else:
            made[key] = value
    return made


def _add_text_prefix(metadata: Mapping[str, MetadataValue]) -> dict[str, MetadataValue]:
    """Rename the strings of a safetensors header to keys that GGUF does not use.

    Omits keys that do not apply to the output.
    """
    made: dict[str, MetadataValue] = {}
    for key, value in metadata.items():
        is_plain = value.type == TEXT
        if is_plain and (key, value.content) == _FRAMEWORK:
            continue
        if not is_plain and key in SPLIT_KEYS:
            continue  # the output is a single file
        name = _TEXT_PREFIX + key if is_plain else key
        if name in made:
            raise ConversionError(f"two metadata values would have the key `{name}` in GGUF")
        made[name] = value
    return made


def unfit(
    tensors: Sequence[TensorInfo], metadata: Mapping[str, MetadataValue] = NO_METADATA
) -> list[str]:
    """Return a sentence for each tensor that GGUF cannot store."""
    problems: list[str] = []
    most = _most_dimensions(metadata)
    for info in tensors:
        if not is_text(info.name):
            problems.append(f"the tensor name {info.name!r} is not UTF-8")
        if "gguf" not in info.encoding.ids:
            who = "GGUF does not support" if info.encoding.is_known else "weightctl cannot write"
            problems.append(f"`{info.name}` is stored as {info.encoding.name}, which {who}")
        if len(info.shape) > most:
            problems.append(
                f"`{info.name}` has {len(info.shape)} dimensions; GGUF allows at most {most}"
            )
        length = len(info.name.encode("utf-8", "replace"))
        if length > _MAX_NAME:
            problems.append(f"the name `{info.name}` has {length} bytes; GGUF allows at most 63")
    return problems


def layout(
    tensors: Sequence[TensorInfo], metadata: Mapping[str, MetadataValue], part: Part | None = None
) -> Layout:
    """Describe a little-endian GGUF v3 file; each tensor starts on the alignment (default 32)."""
    values = _add_text_prefix(metadata)
    if part is not None:
        values = _of_part(values, part)
    return _layout(tensors, values)


def layout_in_order(tensors: Sequence[TensorInfo], metadata: Mapping[str, MetadataValue]) -> Layout:
    """Describe a file with exactly these values; the keys that number parts are kept."""
    places = {key: metadata[key] for key in SPLIT_KEYS if key in metadata}
    return _layout(tensors, _add_text_prefix(metadata) | places)


def _layout(tensors: Sequence[TensorInfo], values: dict[str, MetadataValue]) -> Layout:
    if stated := values.get(ALIGNMENT_KEY):
        # An integer of another type has the same meaning; dicts of users have such integers.
        meant = MetadataValue("u32", stated.content) if stated.type in INTEGERS else stated
        if not is_alignment(meant):
            raise ConversionError(
                f"`{ALIGNMENT_KEY}` is {stated.content!r:.40} ({stated.type}); a GGUF "
                "alignment must be a power of two below 4 GiB",
                hint=f"use --align 32 (align=32 in Python), or --unset {ALIGNMENT_KEY} (unset "
                "in Python)",
            )
        values[ALIGNMENT_KEY] = meant
    boundary = int(values.get(ALIGNMENT_KEY, _DEFAULT_ALIGNMENT).content)
    offsets: list[int] = []
    position = 0
    entries = bytearray()
    for info in tensors:
        offsets.append(position)
        entries += pack_string(info.name) + struct.pack(
            f"<I{len(info.shape)}QIQ",
            len(info.shape), *info.shape[::-1], info.encoding.ids["gguf"], position,
        )  # fmt: skip
        position += info.nbytes + pad(info.nbytes, boundary)
    header = bytearray(MAGIC + struct.pack("<IQQ", 3, len(tensors), len(values)))
    for key, value in values.items():
        header += pack_string(key) + pack_value(key, value)
    header += entries
    start = len(header) + pad(len(header), boundary)
    return Layout(
        bytes(header),
        tuple(tensors),
        tuple(start + offset for offset in offsets),
        start + position,
    )


def _of_part(values: dict[str, MetadataValue], part: Part) -> dict[str, MetadataValue]:
    """Return the metadata of one part of a set, with its position (llama.cpp, tools/gguf-split).

    Every part states the alignment. llama.cpp's own tool omits it, and its parts do not load.
    """
    if part.number > 0:
        values = {key: values[key] for key in (ALIGNMENT_KEY, ROOM_KEY) if key in values}
    place = (
        MetadataValue("u16", part.number), MetadataValue("u16", part.parts),
        MetadataValue("i32", part.tensors),
    )  # fmt: skip
    return values | dict(zip(SPLIT_KEYS, place, strict=True))


def _list_absent_tokens(metadata: Mapping[str, MetadataValue]) -> tuple[str, ...]:
    """Return a sentence for each special token whose id is not in the vocabulary.

    A tool that writes -1 into an unsigned value, for a token that a model does not have, stores
    4294967295. llama.cpp reads this as a missing token; other readers fail.
    """
    tokens = metadata.get(_TOKENS)
    if tokens is None or not is_sequence(tokens.content):
        return ()
    count = len(tokens.content)
    return tuple(
        f"`{key}` is {value.content}, but the vocabulary has only {count} tokens; to "
        f"remove it, use --unset {key} (unset in Python)"
        for key, value in metadata.items()
        if key.startswith(_VOCABULARY)
        and key.endswith("_token_id")
        and isinstance(value.content, int)
        and not 0 <= value.content < count
    )
