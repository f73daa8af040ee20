"""Outputs of patches: files whose bytes are not described by a plan."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from weightctl.errors import OutputError
from weightctl.formats.base import Layout
from weightctl.storage.base import cannot_write
from weightctl.storage.location import is_remote
from weightctl.system.files import SEPARATORS
from weightctl.write.outcome import Outcome
from weightctl.write.partial import hold_output
from weightctl.write.targets import Target, is_stream

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from weightctl.storage.local import FileWriter
    from weightctl.write.partial import Partial

# The format only selects which files of an older checkpoint are replaced.
_FORMAT, _FILE = "safetensors", "model.safetensors"


@contextmanager
def hold_files(
    path: str,
    sizes: Mapping[str, int],
    inputs: Sequence[str],
    *,
    is_directory: bool,
    force: bool,
) -> Generator[tuple[Partial, dict[str, FileWriter]], None, None]:
    """Open temporary files of these sizes, which get their names when `publish` is called.

    `sizes` are by name, relative to a directory; if `is_directory` is false, there is one file,
    whose path is `path`. Files that have the size 0 may grow. At an error, nothing is left. Raises
    `OutputError` if the output cannot be written, exists, or is one of the paths `inputs`.
    """
    if is_remote(path) or is_stream(path):
        raise OutputError(
            f"{path} is not a local file or directory, and the output can only be written there",
            hint="write to a local path first",
        )
    if not is_directory and (os.path.isdir(path) or path.endswith(tuple(SEPARATORS))):
        raise OutputError(f"{path} is a directory", hint="use the path of a file for the output")
    stem = path.rstrip(SEPARATORS) or path
    where = Target(stem, _FORMAT, _FILE) if is_directory else Target(stem, _FORMAT)
    names = list(sizes) if is_directory else [os.path.basename(stem)]
    parts = {
        name: Layout(b"", (), (), nbytes)
        for name, nbytes in zip(names, sizes.values(), strict=True)
    }
    known = {name.partition("/")[0]: b"" for name in names} if is_directory else {}
    outcome = Outcome(where, parts, None, {}, known, tuple(inputs), {})
    with hold_output(outcome, None, force=force) as partial:
        if is_directory:
            for directory in sorted({os.path.dirname(partial.path_of(name)) for name in names}):
                _make_directories(directory)
        files = partial.open_files()
        yield partial, dict(zip(sizes, files, strict=True))


def _make_directories(path: str) -> None:
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from error
