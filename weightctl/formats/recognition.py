"""Detection of the format of a file by its content."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.errors import FormatError
from weightctl.formats import FORMATS, added_formats, format_module

if TYPE_CHECKING:
    from weightctl.storage.base import Reader


def sniff(file: Reader) -> str | None:
    """Return the name of a file's format; None if it is not a checkpoint."""
    return sniff_own(file) or sniff_added(file)


def sniff_own(file: Reader) -> str | None:
    """Return the name of a file's format, if that is one of weightctl's own."""
    return next((name for name in FORMATS if format_module(name).sniff(file)), None)


def sniff_added(file: Reader) -> str | None:
    """Return the name of a file's format, if that is one of an installed package."""
    return next((name for name in added_formats() if format_module(name).sniff(file)), None)


def recognize_format(file: Reader, format_name: str | None = None) -> str:
    """Return the name of a file's format.

    Raises `FormatError`, which says what the file is, if it is not a checkpoint of `format_name`,
    or of any format if `format_name` is None.
    """
    found = sniff(file)
    if found is not None and format_name in {None, found}:
        return found
    expected = (
        f"not a {format_name} file" if format_name else ("not a checkpoint that weightctl can read")
    )
    if found is not None:
        message, hint = (
            f"it is {found}",
            (f"leave out --from (source_format or format_name in Python), or use --from {found}"),
        )
    else:
        from weightctl.formats.identify import identify_file  # only on an error

        other = identify_file(file)
        message, hint = other.message, other.hint
    raise FormatError(file.path, None, f"{expected}: {message}", hint=hint)
