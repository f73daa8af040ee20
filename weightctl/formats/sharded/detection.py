"""Detection of the manifest of a sharded checkpoint, without importing its records."""

from __future__ import annotations

import re

from weightctl.errors import FormatError
from weightctl.storage.files import open_reader

# The name of the manifest, beside the files or directories of the ranks.
MANIFEST = "manifest.json"
# The first key, which distinguishes our manifests from other files named manifest.json.
MARK = "weightctl_shards"
_BEGINNING = rb'\s*\{\s*"weightctl_shards"\s*:'


def is_manifest(path: str) -> bool:
    """Whether a file begins like the manifest of a sharded checkpoint."""
    try:
        return re.match(_BEGINNING, open_reader(path).read(0, 256)) is not None
    except FormatError:
        return False
