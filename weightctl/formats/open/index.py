"""The index of a split checkpoint: a JSON file that lists the part of each tensor."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import FormatError
from weightctl.formats.base import tied_names
from weightctl.storage.files import open_reader
from weightctl.text.untyped import is_object, is_text_map
from weightctl.weights.metadata import text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from weightctl.formats.base import Layout
    from weightctl.storage.base import Reader
    from weightctl.weights.info import Header
    from weightctl.weights.metadata import MetadataValue

_MAX_SIZE = 100_000_000
_TOTAL = "total_size"
_LONGEST = 100
_HINT = "check that this is the index of a split checkpoint, and that the download is complete"


class Index(NamedTuple):
    """An index in Hugging Face's format: the part of each tensor, and strings as metadata."""

    path: str
    weight_map: Mapping[str, str]
    metadata: Mapping[str, MetadataValue]

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the parts, each once, in the order of their first tensor."""
        return tuple(dict.fromkeys(self.weight_map.values()))


def read_index(path: str) -> Index:
    """Read an index; raises `FormatError` if it is invalid.

    An index is also invalid if it names a file outside its directory.
    """
    file = open_reader(path)
    if file.size > _MAX_SIZE:
        raise FormatError(
            path, None, f"the index has {file.size} bytes; the limit is {_MAX_SIZE}", hint=_HINT
        )
    try:
        document = json.loads(str(file.read(0, file.size), "utf-8"))
    except (ValueError, RecursionError) as error:
        reason, hint = _no_json(file, error)
        raise FormatError(
            path, None, f"the index is not valid JSON: {reason}", hint=hint
        ) from error
    if not is_object(document):
        raise FormatError(path, None, "the index is not a JSON object", hint=_HINT)
    weight_map, metadata = document.get("weight_map"), document.get("metadata")
    if not is_text_map(weight_map) or not weight_map:
        message = "the index has no `weight_map` from tensor names to file names"
        raise FormatError(path, None, message, hint=_HINT)
    # The total size in the metadata is not kept, because it applies only to these parts.
    entries = metadata.items() if is_object(metadata) else ()
    strings = {
        key: text(value) for key, value in entries if isinstance(value, str) and key != _TOTAL
    }
    index = Index(path, weight_map, strings)
    for name in index.parts:
        if os.path.basename(name) != name or name in {"", ".", ".."}:
            raise FormatError(
                path, None, f"the index refers to `{name}`, which is not a file in the directory "
                    f"of the index",
                hint="do not use this checkpoint unless you trust its source",
            )  # fmt: skip
    return index


def _no_json(file: Reader, error: Exception) -> tuple[str, str]:
    """Return what is wrong with an index that is not JSON, and a hint.

    If the file is not an index at all, the first value says what it is instead.
    """
    if file.read(0, 64).lstrip().startswith((b"{", b"[")):
        return str(error), _HINT
    from weightctl.formats.identify import identify_file

    found = identify_file(file)
    return found.message, found.hint


def without_superseded(index: Index, headers: Mapping[str, Header]) -> dict[str, Header]:
    """Return headers without tensors that the index assigns to another part that has them.

    A note in the header of each such part names the tensors.
    """
    made = dict(headers)
    for part, header in headers.items():
        gone = [
            name
            for name in header.tensors
            if (own := index.weight_map.get(name, part)) != part
            and own in headers
            and name in headers[own].tensors
        ]
        if gone:
            note = (
                f"{few(gone)} of {part} {'is' if len(gone) == 1 else 'are'} not used, because the "
                "index assigns the name to another part; other programs may use the last part"
            )
            made[part] = header._replace(
                tensors={name: info for name, info in header.tensors.items() if name not in gone},
                notes=(*header.notes, note),
            )
    return made


def disagreements(index: Index, headers: Mapping[str, Header]) -> list[str]:
    """Return the contradictions between an index and the headers of the readable parts."""
    holders: dict[str, list[str]] = {}
    for part, header in headers.items():
        for name in header.tensors:
            holders.setdefault(name, []).append(part)
    elsewhere = [
        name
        for name, part in index.weight_map.items()
        if part in headers
        and part not in holders.get(name, ())
        and name not in headers[part].aliases
        and not _is_tied(name, index, headers, holders)
    ]
    found = (
        ("not in the part that the index names", elsewhere),
        ("in a part but not in the index", [n for n in holders if n not in index.weight_map]),
        ("in several parts", [name for name, parts in holders.items() if len(parts) > 1]),
    )
    return [
        f"{len(names)} tensor{'s' * (len(names) > 1)} {what} ({few(names)})"
        for what, names in found
        if names
    ]


def _is_tied(
    name: str, index: Index, headers: Mapping[str, Header], holders: Mapping[str, object]
) -> bool:
    """Whether the index records a name as tied to a tensor, and no part contradicts it."""
    value = index.metadata.get(name)
    if value is None or name in holders or value.content not in holders:
        return False
    values = (header.metadata[name] for header in headers.values() if name in header.metadata)
    return next(values, value) == value


def merge_index(header: Header, index: Index) -> Header:
    """Return the header of all parts with the tied names and metadata of their index."""
    tied = {
        name: tensor
        for name, tensor in tied_names(index.metadata, header.tensors).items()
        if header.metadata.get(name, index.metadata[name]) == index.metadata[name]
    }
    metadata = {**header.metadata}
    metadata |= {key: index.metadata[key] for key in index.metadata if key not in metadata}
    return header._replace(
        metadata=metadata, aliases={**tied, **header.aliases}, listing=index.path
    )


def index_of(parts: Mapping[str, Layout], tied: Mapping[str, str]) -> bytes:
    """Return the index of parts, by file name, in the format of huggingface_hub.

    `tied` are further names of tensors; they are stored in the metadata, beside the total size.
    """
    weight_map = {info.name: name for name, layout in parts.items() for info in layout.tensors}
    total = sum(info.nbytes for layout in parts.values() for info in layout.tensors)
    document = {"metadata": {**tied, _TOTAL: total}, "weight_map": weight_map}
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()


def few(names: Iterable[str]) -> str:
    """Return the first three names, and `...` if there are more."""
    found = list(names)
    some = (name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…" for name in found[:3])
    return ", ".join(f"`{name}`" for name in some) + (", ..." if len(found) > 3 else "")
