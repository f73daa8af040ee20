"""Fingerprints of inputs: they detect whether an input changed after it was used."""

from __future__ import annotations

import hashlib
import json
import os
from itertools import chain
from typing import TYPE_CHECKING, Any

from weightctl.formats.sharded.record import SourceFingerprint
from weightctl.weights.metadata import as_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weightctl.storage.base import Reader
    from weightctl.weights.info import Header
    from weightctl.weights.source import Source

__all__ = ["fingerprint_source"]


def fingerprint_source(source: Source) -> SourceFingerprint:
    """Return the fingerprint of a source; without files it is that of the header only.

    Sizes and times are those of the files that are open, whatever has their names meanwhile.
    """
    found = hashlib.sha256()
    for line in _lines(source.header):
        found.update(json.dumps(line, default=repr).encode() + b"\n")
    return SourceFingerprint(_files(source.files), found.hexdigest())


def _files(files: Sequence[Reader]) -> tuple[tuple[str, int, int], ...]:
    """Return names, sizes and times; names are from the directory that all files are in."""
    if not files:
        return ()
    paths = [os.path.abspath(file.path) for file in files]
    directory = os.path.commonpath([os.path.dirname(path) for path in paths])
    return tuple(
        (os.path.relpath(path, directory), file.size, file.written)
        for path, file in zip(paths, files, strict=True)
    )


def _lines(header: Header) -> Iterator[Any]:
    """Yield all that the header says of tensors, where they lie, and metadata."""
    for name, info in header.tensors.items():
        origin = header.origins.get(name)
        yield (
            name,
            info.shape,
            info.encoding.name,
            header.extents[name][:3],
            origin and origin.steps,
        )
    yield from chain(
        header.aliases.items(),
        ((key, value.type, as_json(value.content)) for key, value in header.metadata.items()),
    )
