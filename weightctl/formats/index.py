"""The JSON file that says which part of a split checkpoint holds which tensor."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import FormatError
from weightctl.formats.base import tied_names
from weightctl.untyped import is_object, is_text_map
from weightctl.weights.mapping import MappedFile
from weightctl.weights.metadata import text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from weightctl.formats.base import Layout
    from weightctl.weights.info import Header
    from weightctl.weights.metadata import Value

__all__ = ["Index", "compared", "few", "index_of", "read_index"]

_MAX_SIZE = 100_000_000
_TOTAL = "total_size"
_HINT = "is this the index of a split checkpoint?"


class Index(NamedTuple):
    """An index as Hugging Face writes it: the part of each tensor, and strings as metadata."""

    path: str
    weight_map: Mapping[str, str]
    metadata: Mapping[str, Value]

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the parts, each once, in the order in which they are first named."""
        return tuple(dict.fromkeys(self.weight_map.values()))


def read_index(path: str) -> Index:
    """Read an index; `FormatError` where it is none, or names a file outside its directory."""
    file = MappedFile(path)
    if file.size > _MAX_SIZE:
        raise FormatError(path, None, f"an index of {file.size} bytes is none", hint=_HINT)
    try:
        document = json.loads(str(file.whole, "utf-8"))
    except (ValueError, RecursionError) as error:
        raise FormatError(path, None, f"the index is no JSON: {error}", hint=_HINT) from error
    if not is_object(document):
        raise FormatError(path, None, "the index is no JSON object", hint=_HINT)
    weight_map, metadata = document.get("weight_map"), document.get("metadata")
    if not is_text_map(weight_map) or not weight_map:
        message = "the index has no `weight_map` from tensor names to file names"
        raise FormatError(path, None, message, hint=_HINT)
    # The sizes in its metadata are not carried on: they are of these parts.
    entries = metadata.items() if is_object(metadata) else ()
    strings = {
        key: text(value) for key, value in entries if isinstance(value, str) and key != _TOTAL
    }
    index = Index(path, weight_map, strings)
    for name in index.parts:
        if os.path.basename(name) != name or name in {"", ".", ".."}:
            raise FormatError(
                path, None, f"the index names `{name}`, which is outside its directory",
                hint="do not trust this checkpoint",
            )  # fmt: skip
    return index


def compared(header: Header, index: Index) -> Header:
    """Take the tied names of an index; `FormatError` where it and the parts' headers disagree."""
    tied = {
        name: tensor
        for name, tensor in tied_names(index.metadata, header.tensors).items()
        if header.metadata.get(name, index.metadata[name]) == index.metadata[name]
    }
    elsewhere = [
        name
        for name, part in index.weight_map.items()
        if name not in tied and not _is_in(header, name, part)
    ]
    unlisted = [name for name in header.tensors if name not in index.weight_map]
    problems = [
        f"{len(names)} tensors {what} ({few(names)})"
        for what, names in (
            ("not in the part that the index names", elsewhere),
            ("in a part but not in the index", unlisted),
        )
        if names
    ]
    if problems:
        raise FormatError(
            index.path, None, "the index and its parts disagree: " + "; ".join(problems),
            hint="is the download complete, and all of one version?",
        )  # fmt: skip
    metadata = {**header.metadata}
    metadata |= {key: index.metadata[key] for key in index.metadata if key not in metadata}
    return replace(header, metadata=metadata, aliases={**tied, **header.aliases}, index=index.path)


def index_of(parts: Mapping[str, Layout], tied: Mapping[str, str]) -> bytes:
    """Return the index of parts by file name, as huggingface_hub writes it.

    `tied` are further names of tensors; they stand in the metadata beside the size of all tensors.
    """
    weight_map = {info.name: name for name, layout in parts.items() for info in layout.tensors}
    total = sum(info.nbytes for layout in parts.values() for info in layout.tensors)
    document = {"metadata": {**tied, _TOTAL: total}, "weight_map": weight_map}
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()


def _is_in(header: Header, name: str, part: str) -> bool:
    extent = header.extents.get(name)
    return extent is not None and os.path.basename(header.files[extent.file]) == part


def few(names: Iterable[str]) -> str:
    """Name the first three, and say whether there are more."""
    found = list(names)
    return ", ".join(f"`{name}`" for name in found[:3]) + (", ..." if len(found) > 3 else "")
