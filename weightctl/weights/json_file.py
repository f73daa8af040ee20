"""Reading of JSON files, which may be untrusted."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from weightctl.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightctl.storage.base import Reader


def read_json(
    file: Reader,
    most: int,
    pairs: Callable[[list[tuple[str, Any]]], dict[str, Any]] | None = None,
) -> Any:
    """Return the content of a JSON file of at most `most` bytes.

    `pairs` creates each JSON object from its list of keys and values. Raises `FormatError` for a
    larger file, for invalid JSON, and if `pairs` raises `ValueError`.
    """
    if file.size > most:
        raise FormatError(
            file.path, None, f"the file has {file.size} bytes; the limit is {most} bytes"
        )
    try:
        return json.loads(str(file.read(0, file.size), "utf-8"), object_pairs_hook=pairs)
    except (ValueError, RecursionError) as error:
        raise FormatError(file.path, None, f"the file is not valid JSON: {error}") from error
