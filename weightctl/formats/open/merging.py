"""Merging of the headers of the parts of a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.errors import FormatError
from weightctl.formats.base import SPLIT_KEYS, tied_names
from weightctl.weights.metadata import TEXT, MetadataValue

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from weightctl.weights.info import Extent, Header, Leaf, TensorInfo

_UNRELATED = "the parts belong to different checkpoints"


def merge_headers(headers: Sequence[Header], missing: Collection[int] = ()) -> Header:
    """Merge the headers of all parts, in order; raises `FormatError` if they contradict each other.

    `missing` are the indices of missing parts, which have no header here.
    """
    header = headers[0] if len(headers) == 1 else _merge_several(headers)
    if header.format == "gguf" and any(map(_is_place, header.metadata.items())):
        return _check_split(headers, header, missing)
    return header


def _merge_several(headers: Sequence[Header]) -> Header:
    tensors: dict[str, TensorInfo] = {}
    extents: dict[str, Extent] = {}
    metadata: dict[str, MetadataValue] = {}
    aliases: dict[str, str] = {}
    leaves: dict[str, Leaf] = {}
    for number, header in enumerate(headers):
        for name, info in header.tensors.items():
            if name in tensors:
                raise FormatError(
                    header.files[0], None,
                    f"`{name}` is also in {headers[extents[name].file].files[0]}",
                    hint=_UNRELATED,
                )  # fmt: skip
            tensors[name] = info
            extents[name] = header.extents[name]._replace(file=number)
        if header.big_endian != headers[0].big_endian:
            raise FormatError(
                header.files[0], None, "the parts have different byte orders", hint=_UNRELATED
            )
        # The metadata of the first part determines the order; later parts only add keys.
        for key, value in header.metadata.items():
            metadata.setdefault(key, value)
        for name, other in header.aliases.items():
            aliases.setdefault(name, other)
        for name, leaf in header.leaves.items():
            leaves.setdefault(name, leaf)
    aliases = {**tied_names(metadata, tensors), **aliases}
    return headers[0]._replace(
        files=tuple(header.files[0] for header in headers),
        tensors=tensors,
        extents=extents,
        metadata=metadata,
        # A name that is a tensor in one part is a tensor in the whole checkpoint.
        aliases={name: other for name, other in aliases.items() if name not in tensors},
        leaves={
            name: leaf
            for name, leaf in leaves.items()
            if name not in tensors and name not in aliases
        },
        notes=tuple(note for header in headers for note in header.notes),
        warnings=tuple(text for header in headers for text in header.warnings),
    )


def _is_place(entry: tuple[str, MetadataValue]) -> bool:
    # A text with such a key is from a safetensors header, and does not describe this file.
    return entry[0] in SPLIT_KEYS and entry[1].type != TEXT


def _check_split(headers: Sequence[Header], whole: Header, missing: Collection[int]) -> Header:
    """Check the positions that parts of a split GGUF state; return `whole` without these keys."""
    count = len(headers) + len(missing)
    numbers = (number for number in range(count) if number not in missing)
    for number, header in zip(numbers, headers, strict=True):
        says = [header.metadata.get(key) for key in SPLIT_KEYS]
        expected = [number, count, None if missing else len(whole.tensors)]
        for key, value, right in zip(SPLIT_KEYS, says, expected, strict=True):
            if right is not None and (value is None or value.content != right):
                raise FormatError(
                    header.files[0],
                    None,
                    f"`{key}` is {value.content if value else 'missing'}, but {right} is expected",
                    hint=f"{_UNRELATED}, or this is a renamed part of a set; parts are named "
                    "NAME-00001-of-00003.gguf",
                )
    metadata = {key: value for key, value in whole.metadata.items() if key not in SPLIT_KEYS}
    return whole._replace(metadata=metadata)
