"""safetensors: a JSON header, then the tensors' bytes without gaps.

The checks are those of the reference parser (crate `safetensors`, `Metadata::validate`), and two
that the reference parser does not have: duplicate names, and names that are not UTF-8.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

from weightctl.dtype import Encoding, encoding_by_id, unknown_encoding
from weightctl.errors import ConversionError, FormatError, WeightctlError
from weightctl.formats.base import (
    ALIGNMENT_KEY,
    LEAST_ALIGNMENT,
    NO_METADATA,
    ROOM_KEY,
    Layout,
    is_alignment,
    is_possible,
    is_text,
    pad,
    tied_names,
)
from weightctl.text.untyped import is_list, is_object, is_text_map
from weightctl.weights.info import Extent, Header, TensorInfo
from weightctl.weights.metadata import TEXT, MetadataValue, from_json, text, to_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weightctl.formats.base import Part
    from weightctl.storage.base import Reader

_METADATA = "__metadata__"
# The key of the framework that a file is written for; readers expect it in each file.
_FRAMEWORK = "format"
# Typed metadata (GGUF's) is stored as one JSON string under this key.
_TYPED = "gguf"
_MAX_HEADER = 100_000_000
# White space that can precede JSON, and how many characters of it are checked.
_BLANK = b" \t\r\n"
_MAX_BLANK = 4096
_MAX_DIMENSIONS = 64  # NumPy's and torch's own limit
_STARTS_BLANK = (
    "the header begins with white space, which some readers refuse; `weightctl convert` "
    "writes a header without it"
)
_DAMAGED = "the file is damaged or a faulty tool wrote it"


def sniff(file: Reader) -> bool:
    """Whether a file begins like safetensors: with a length, then a JSON object."""
    head = file.read(0, 8 + _MAX_BLANK)
    return head[8:].lstrip(_BLANK).startswith(b"{") and head[7:8] == b"\0"


def read(file: Reader) -> Header:
    """Parse the header of a safetensors file; raises `FormatError` if it is invalid."""
    document, start = _document(file)
    metadata = _metadata(file, document.pop(_METADATA, {}))
    entries = [_entry(file, name, entry) for name, entry in document.items()]
    tensors: dict[str, TensorInfo] = {}
    extents: dict[str, Extent] = {}
    for info, begin, end in entries:
        tensors[info.name] = info
        extents[info.name] = Extent(0, start + begin, end - begin)
    _check_cover(file, entries, start)
    return Header(
        format="safetensors",
        files=(file.path,),
        tensors=tensors,
        extents=extents,
        metadata=metadata,
        aliases=tied_names(metadata, tensors),
        alignment=_alignment(start),
        notes=(_STARTS_BLANK,) if file.read(8, 1) in _BLANK else (),
    )


def _alignment(start: int) -> int:
    return start & -start


def _document(file: Reader) -> tuple[dict[str, Any], int]:
    if file.size < 8:
        raise FormatError(
            file.path,
            0,
            f"the file has {file.size} bytes, too few for a safetensors header",
            hint="check that the download is complete",
        )
    length = int.from_bytes(file.read(0, 8), "little")
    if length > min(file.size - 8, _MAX_HEADER):
        missing = 8 + length - file.size
        limit = (
            "the format allows at most 100 MB"
            if length > _MAX_HEADER
            else f"at least {missing} bytes of the file are missing"
        )
        from weightctl.formats.truncation import rest_of

        raise FormatError(
            file.path,
            0,
            f"the stated length of the header is {length} bytes; {limit}",
            hint=_DAMAGED if length > _MAX_HEADER else rest_of(file.path),
        )
    try:
        raw = str(file.read(8, length), "utf-8")
        document = json.loads(raw)
        if not _has_no_more_than(document, raw):
            document = json.loads(raw, object_pairs_hook=_unique)
    except UnicodeDecodeError as error:
        at, message = 8 + error.start, "the header is not UTF-8"
        raise FormatError(file.path, at, message, hint=_DAMAGED) from error
    except json.JSONDecodeError as error:
        at, message = (
            8 + len(error.doc[: error.pos].encode()),
            f"the header is not valid JSON: {error.msg}",
        )
        raise FormatError(file.path, at, message, hint=_DAMAGED) from error
    except (ValueError, RecursionError) as error:
        message = f"the header is invalid: {error}"
        raise FormatError(file.path, 8, message, hint=_DAMAGED) from error
    if not is_object(document):
        raise FormatError(file.path, 8, "the header is not a JSON object", hint=_DAMAGED)
    return document, 8 + length


def _has_no_more_than(document: Any, raw: str) -> bool:
    """Whether the JSON has only the quotes of the parsed content, so that no key appears twice.

    This is quicker than checking every key, and sufficient for usual headers.
    """
    if not is_object(document) or "\\" in raw:
        return False
    metadata = document.get(_METADATA)
    strings = 1 + 2 * len(metadata) if is_object(metadata) else 0
    # A name, three keys and a dtype for each tensor.
    strings += 5 * (len(document) - (metadata is not None))
    return raw.count('"') == 2 * strings


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        raise ValueError(f"`{counts.most_common(1)[0][0]}` appears twice")
    return made


def _metadata(file: Reader, entries: Any) -> dict[str, MetadataValue]:
    if not is_text_map(entries) or not all(is_text(key + entries[key]) for key in entries):
        message = f"`{_METADATA}` is not a mapping from strings to strings"
        raise FormatError(file.path, 8, message, hint=_DAMAGED)
    metadata = {key: text(value) for key, value in entries.items()}
    if _TYPED in entries:
        try:
            typed = from_json(entries[_TYPED])
        except WeightctlError:
            return metadata  # another program's value
        if typed:
            del metadata[_TYPED]
        # If a key is in both, the typed value is used: the string is only there because every
        # safetensors file must have it.
        metadata = {**typed, **metadata, **typed}
    return metadata


def _entry(file: Reader, name: str, entry: Any) -> tuple[TensorInfo, int, int]:
    sound = _sound(entry) if is_text(name) else None
    if sound is None:
        raise FormatError(
            file.path,
            8,
            f"the entry of tensor {name!r} is invalid",
            hint="it needs a dtype, a shape and two data_offsets",
        )
    dtype, shape, begin, end = sound
    encoding, nbytes = _find_encoding(dtype, shape)
    if encoding is None:
        encoding = unknown_encoding("safetensors", dtype, prod(shape), end - begin)
    elif nbytes != end - begin:
        raise FormatError(
            file.path,
            8,
            f"`{name}` of shape {list(shape)} and dtype {dtype} does not match its "
            f"{end - begin} bytes of data",
            hint="the file is damaged",
        )
    return TensorInfo(name, shape, encoding), begin, end


def _sound(entry: Any) -> tuple[str, tuple[int, ...], int, int] | None:
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (TypeError, KeyError, ValueError):
        return None
    if type(dtype) is not str or not dtype.isprintable():
        return None
    if not is_list(shape) or len(shape) > _MAX_DIMENSIONS or {type(n) for n in shape} - {int}:
        return None
    shape = tuple(shape)
    if not _is_possible(shape):
        return None
    if type(begin) is not int or type(end) is not int or not 0 <= begin <= end < 1 << 63:
        return None
    return dtype, shape, begin, end


# Tens of thousands of tensors have only a few different shapes.
_is_possible = lru_cache(maxsize=1024)(is_possible)


@lru_cache(maxsize=1024)
def _find_encoding(dtype: str, shape: tuple[int, ...]) -> tuple[Encoding | None, int | None]:
    """Return the encoding of a dtype, and the bytes of a shape; None for each that is invalid."""
    encoding = encoding_by_id("safetensors", dtype)
    if encoding is None or not encoding.fits(shape):
        return encoding, None
    return encoding, encoding.nbytes(shape)


def _check_cover(file: Reader, entries: list[tuple[TensorInfo, int, int]], start: int) -> None:
    """Raise `FormatError` if tensors overlap or leave gaps, or if bytes are missing or surplus."""
    position = 0
    for info, begin, end in sorted(entries, key=lambda entry: entry[1:]):
        if begin != position:
            relation = "overlaps the tensor before it" if begin < position else "leaves a gap"
            raise FormatError(
                file.path,
                start + begin,
                f"`{info.name}` starts at byte {begin} of the tensor data instead of byte "
                f"{position}: it {relation}",
                hint=_DAMAGED,
            )
        position = end
    if start + position > file.size:
        # Several tensors can end there; all but one of them are empty.
        info, begin, end = max(entries, key=lambda entry: (entry[2], -entry[1]))
        from weightctl.formats.truncation import past_end

        raise past_end(file.path, start + begin, info.name, start + end, file.size)
    if start + position != file.size:
        raise FormatError(
            file.path,
            start + position,
            f"{file.size - start - position} bytes after the last tensor belong to no tensor",
            hint=_DAMAGED,
        )


def unfit(tensors: Sequence[TensorInfo], _: Mapping[str, MetadataValue] = NO_METADATA) -> list[str]:
    """Return a sentence for each tensor that safetensors cannot store."""
    problems = [
        f"`{info.name}` is stored as {info.encoding.name}, which "
        + ("safetensors does not support" if info.encoding.is_known else "weightctl cannot write")
        for info in tensors
        if "safetensors" not in info.encoding.ids
    ]
    problems += [
        f"the tensor name {info.name!r} is not UTF-8" for info in tensors if not is_text(info.name)
    ]
    if any(info.name == _METADATA for info in tensors):
        problems.append(f"safetensors does not allow a tensor named `{_METADATA}`")
    return problems


def layout(
    tensors: Sequence[TensorInfo], metadata: Mapping[str, MetadataValue], part: Part | None = None
) -> Layout:
    """Describe a safetensors file; its data starts on the alignment, widest elements first.

    The format allows no gaps. With the widest elements first, every tensor starts on a multiple of
    its own element size. The alignment is that of the metadata, by default 8 bytes.
    """
    boundary = _boundary(metadata)
    if part is not None and part.number > 0:
        metadata = {key: metadata[key] for key in metadata if key in {_FRAMEWORK, ROOM_KEY}}
    ordered = sorted(tensors, key=_element_size, reverse=True)
    # transformers refuses a file that does not state its framework.
    strings = _strings(metadata, {_FRAMEWORK: "pt"})
    return _layout(tensors, ordered, strings, boundary, _room(metadata))


def layout_in_order(
    tensors: Sequence[TensorInfo],
    ordered: Sequence[TensorInfo],
    metadata: Mapping[str, MetadataValue],
    boundary: int = 0,
) -> Layout:
    """Describe a file with exactly these values, whose data has the tensors in the order `ordered`.

    The header lists them in the order `tensors`. The data starts on `boundary`, by default the
    alignment of the metadata.
    """
    strings = _strings(metadata, {})
    return _layout(tensors, ordered, strings, boundary or _boundary(metadata), _room(metadata))


def _layout(
    tensors: Sequence[TensorInfo],
    ordered: Sequence[TensorInfo],
    strings: Mapping[str, str],
    boundary: int,
    room: str,
) -> Layout:
    places: dict[str, tuple[int, int]] = {}
    position = 0
    for info in ordered:
        begin, position = position, position + info.nbytes
        places[info.name] = begin, position
    document: dict[str, Any] = {
        info.name: {
            "dtype": info.encoding.ids["safetensors"],
            "shape": info.shape,
            "data_offsets": places[info.name],
        }
        for info in tensors
    }
    document = ({_METADATA: strings} if strings else {}) | document
    header = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    raw = (header + room).encode()
    length = len(raw) + pad(8 + len(raw), boundary)
    if length > _MAX_HEADER:
        raise ConversionError(
            f"the header would have {length} bytes, but safetensors allows at most 100 MB"
        )
    start = 8 + length
    return Layout(
        length.to_bytes(8, "little") + raw.ljust(length),
        tuple(ordered),
        tuple(start + places[info.name][0] for info in ordered),
        start + position,
    )


def _boundary(metadata: Mapping[str, MetadataValue]) -> int:
    stated = metadata.get(ALIGNMENT_KEY)
    # An invalid alignment of GGUF has no effect in safetensors.
    if stated is None or not is_alignment(stated):
        return LEAST_ALIGNMENT
    return max(LEAST_ALIGNMENT, int(stated.content))


def _room(metadata: Mapping[str, MetadataValue]) -> str:
    return str(metadata[ROOM_KEY].content) if ROOM_KEY in metadata else ""


def _element_size(info: TensorInfo) -> float:
    encoding: Encoding = info.encoding
    return encoding.size / encoding.block


def _strings(metadata: Mapping[str, MetadataValue], defaults: Mapping[str, str]) -> dict[str, str]:
    kept = {key: value for key, value in metadata.items() if key != ROOM_KEY}
    typed = {key: value for key, value in kept.items() if value.type != TEXT}
    strings = {key: value.content for key, value in kept.items() if value.type == TEXT}
    strings |= {key: value for key, value in defaults.items() if key not in strings}
    if typed and _TYPED in strings:
        typed[_TYPED] = MetadataValue(TEXT, strings.pop(_TYPED))
    return strings | ({_TYPED: to_json(typed)} if typed else {})
