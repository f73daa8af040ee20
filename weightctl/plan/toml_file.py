"""Reading of the user's TOML files."""

from __future__ import annotations

from typing import Any

from weightctl.errors import ConversionError
from weightctl.storage.files import read_start

SINGLE_QUOTES = "write regular expressions in 'single quotes', where TOML keeps backslashes"

_MOST_BYTES = 1 << 20


def read_toml(path: str, what: str, *, form: str, otherwise: str = "") -> dict[str, Any]:
    """Return the content of a TOML file.

    `what` names the kind of file, and `form` is the hint that describes its form. Raises
    `ConversionError` if the file is invalid, or cannot be read; the hint for the latter is
    `otherwise`, if it is given. Raises `FormatError` for a URL that cannot be read.
    """
    import tomllib  # few runs have such a file

    try:
        raw = read_start(path, _MOST_BYTES + 1)
    except OSError as error:
        message = f"cannot read the {what} {path}: {error.strerror}"
        raise ConversionError(message, hint=otherwise or form) from error
    if len(raw) > _MOST_BYTES:
        raise ConversionError(f"{path} is too large for a {what}", hint=form)
    try:
        return tomllib.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        # The usual cause is a regular expression in double quotes, where `\.` is an error.
        hint = f"{SINGLE_QUOTES}: {form}" if b"\\" in raw else form
        raise ConversionError(f"{path} is not valid TOML: {error}", hint=hint) from error
