"""Reading of files of HDF5, and of Keras' archives with such a file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from weightctl.errors import FormatError
from weightctl.extras.keras.names import names_of_config
from weightctl.extras.keras.reader_process import read_apart
from weightctl.formats.pytorch.archive import Archive
from weightctl.formats.read_only import require_package
from weightctl.formats.training.nested_files import FileSlice
from weightctl.text.untyped import is_object
from weightctl.weights.metadata import text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.extras.keras.walking import Path
    from weightctl.storage.base import Reader
    from weightctl.weights.info import Header

_CONFIG, _ABOUT = "config.json", "metadata.json"
_LONGEST = 1 << 26


def read_archive(file: Reader, member: str) -> Header:
    """Parse an archive of Keras, whose weights are the member; raises `FormatError`."""
    archive = Archive(file)
    entry = archive.members[member]
    if entry.method:
        raise FormatError(
            file.path,
            entry.header,
            f"`{member}` in it is compressed, but Keras stores it uncompressed",
            hint="unzip the file, and use the path of the directory",
        )
    span = archive.content(member)
    config = _read_json(archive, _CONFIG)
    metadata = {
        key: text(value)
        for key, value in _read_json(archive, _ABOUT).items()
        if isinstance(value, str)
    }
    if config:
        metadata["model_config"] = text(json.dumps(config))
    whole = FileSlice(file, span.offset, len(span))
    header = read_hdf5(whole, names_of_config(config))
    extents = {
        name: extent._replace(offset=span.offset + extent.offset)
        for name, extent in header.extents.items()
    }
    return header._replace(extents=extents, metadata={**header.metadata, **metadata})


def _read_json(archive: Archive, member: str) -> dict[str, Any]:
    """Return a JSON object in an archive; empty if there is none that can be read in place."""
    entry = archive.members.get(member)
    if entry is None or entry.method or entry.nbytes > _LONGEST:
        return {}
    span = archive.content(member)
    try:
        document: Any = json.loads(span.read(0, len(span)))
    except (ValueError, RecursionError):
        return {}
    return document if is_object(document) else {}


def read_hdf5(file: Reader, labels: Mapping[Path, str] | None = None) -> Header:
    """Parse an HDF5 file; raises `FormatError` if it is invalid.

    `labels` are the names of layers by the path of their group, for files that do not state them.
    """
    what = "an HDF5 file, as Keras writes weights (.h5)"
    require_package("h5py", file.path, what, "keras")
    return read_apart(file, labels or {})
