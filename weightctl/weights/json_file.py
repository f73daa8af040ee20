"""The content of a JSON file, which may be anybody's."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from weightctl.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightctl.storage.base import Reader

__all__ = ["read_json"]


def read_json(
    file: Reader,
    most: int,
    pairs: Callable[[list[tuple[str, Any]]], dict[str, Any]] | None = None,
) -> Any:
    """Return what a JSON file of at most so many bytes holds; `pairs` makes its objects.

    Raises `FormatError` for a larger one, and for what is not JSON or makes `pairs` raise
    `ValueError`.
    """
    if file.size > most:
        raise FormatError(file.path, None, f"it has {file.size} bytes, and may have {most}")
    try:
        return json.loads(str(file.read(0, file.size), "utf-8"), object_pairs_hook=pairs)
    except (ValueError, RecursionError) as error:
        raise FormatError(file.path, None, f"it is not JSON: {error}") from error
