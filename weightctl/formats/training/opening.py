"""Finding of training checkpoints, whose tensors are spread over the files of several ranks."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from weightctl.storage.files import is_directory, is_file

if TYPE_CHECKING:
    from weightctl.formats.training.chunks import ChunkedSource

__all__ = ["open_training"]

_METADATA = ".metadata"


def open_training(path: str, format_name: str | None = None) -> ChunkedSource | None:
    """Open the training checkpoint at a path; None if there is none.

    `path` is a directory, the `.metadata` in it, or one of the files that `.metadata` describes.
    Raises `FormatError` if the checkpoint is invalid.
    """
    listing = _find_metadata(path)
    if listing is not None and format_name in {None, "dcp"}:
        from weightctl.formats.training.distributed import open_distributed

        return open_distributed(listing)
    return None


def _find_metadata(path: str) -> str | None:
    """Return the path of the metadata of a distributed checkpoint; None if there is none."""
    if is_directory(path):
        found = os.path.join(path, _METADATA)
    elif os.path.basename(path) == _METADATA:
        found = path
    elif path.endswith(".distcp"):
        found = os.path.join(os.path.dirname(path), _METADATA)
    else:
        return None
    return found if is_file(found) else None
