"""Interprets output paths, and checks targets before anything is written."""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import ConversionError, OutputError
from weightctl.formats import (
    DIRECTORY_FORMATS,
    FORMATS,
    INDEX_SUFFIX,
    find_format,
    format_by_index,
    format_by_suffix,
    has_suffix_of,
    list_written_formats,
)
from weightctl.formats.open.parts import is_part, part_name
from weightctl.formats.open.sets import split_suffix
from weightctl.storage.base import CommitOptions, cannot_write
from weightctl.storage.files import exists, is_directory, is_file, list_names, refresh
from weightctl.storage.local import PipeWriter
from weightctl.storage.location import (
    has_commits,
    is_remote,
    parse_location,
    store_of,
    without_file_scheme,
)
from weightctl.system.files import NO_TERMINAL, SEPARATORS, STDOUT_FILES, is_device_name, open_file
from weightctl.text.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping, Sequence

STDOUT = "-"
REPLACE_HINT = "to replace it, use --force (force=True in Python)"
_OTHER_HINT = "choose another name for the output"
_NO_OPTIONS = CommitOptions()
STDOUTS = {STDOUT, *STDOUT_FILES}


class Target(NamedTuple):
    """The target of an output: a file, a model directory, or a pipe, and its format.

    `file_name` is the name of the file in a model directory; it is None if `path` is the file. A
    stream is a pipe or device, which is written in order; the path `-` is stdout. `commit` has
    options for URLs of repositories.
    """

    path: str
    format: str
    file_name: str | None = None
    is_stream: bool = False
    commit: CommitOptions = _NO_OPTIONS

    @property
    def file(self) -> str:
        """The path of the file, if the whole checkpoint is one file."""
        return self.path if self.file_name is None else os.path.join(self.path, self.file_name)

    def names(self, count: int) -> tuple[str, ...]:
        """Return the names of the files, without directory, of a checkpoint with `count` parts."""
        base = self.file_name or os.path.basename(self.path)
        if count == 1:
            return (base,)
        return tuple(part_name(base, number, count) for number in range(count))

    def pattern(self) -> re.Pattern[str]:
        """Return a pattern of the files' names for any number of parts, including the index."""
        stem, suffix = map(re.escape, split_suffix(os.path.basename(self.file)))
        index = re.escape(self.index_name or "")
        return re.compile(rf"{stem}(-\d{{5}}-of-\d{{5}})?{suffix}|{index}")

    @property
    def index_name(self) -> str | None:
        """The name of the index that lists the parts; None if the format does not have one."""
        line = find_format(self.format)
        if not line.has_index:
            return None
        return line.listing or os.path.basename(self.file) + INDEX_SUFFIX


def _is_repository(path: str) -> bool:
    from weightctl.storage.remote.hub_url import parse_hub_url

    return not parse_hub_url(path).path


def target(
    path: str, format_name: str | None = None, commit: CommitOptions = _NO_OPTIONS
) -> Target:
    """Return the target that an output path selects; `commit` has options for repositories.

    A path with the suffix of a format is a file of that format; if `format_name` is given, a path
    with any suffix is a file of that format. A path without a suffix, with a slash at its end, or
    of an existing directory is a model directory, and so is the URL of a repository. `-` is stdout.
    Raises `ConversionError` if the path does not select a format, or if `commit` does not apply to
    it.
    """
    if commit != _NO_OPTIONS and not has_commits(path):
        name = "--private (private" if commit.private else "--pr (pr"
        raise ConversionError(
            f"{name} in Python) does not apply to {path}",
            hint="use it with the URL of a repository, hf://OWNER/NAME",
        )
    if format_name is not None:
        find_format(format_name)
    path = without_file_scheme(path)
    if is_remote(path):
        is_slashed = path.endswith("/")
        path = refuse_place(parse_location(path).name) + "/" * is_slashed
        refresh(path)
    stem = path.rstrip(SEPARATORS)
    if not stem:
        raise ConversionError(
            f"`{path}` is not a valid name of an output", hint="use the path of a file or directory"
        )
    _refuse_device(path)
    if path in STDOUTS:
        # If the shell has redirected stdout to a file, the open file is written, not its path.
        return Target(STDOUT, _format_of_file(STDOUT, format_name), is_stream=True)
    if is_stream(path):
        return Target(path, _format_of_file(path, format_name), is_stream=True)
    is_inside = not has_commits(path)
    is_root = not is_inside and _is_repository(path)
    if is_inside and path == stem and format_by_suffix(path) and is_directory(path):
        raise ConversionError(
            f"{path} is a directory with the suffix of a file",
            hint="to write into the directory, end the path with a slash",
        )
    is_file_name = path == stem and not is_root and os.path.splitext(stem)[1]
    if is_file_name and not (is_inside and is_directory(path)):
        return Target(path, _format_of_file(path, format_name), commit=commit)
    chosen = format_name or next(name for name, line in FORMATS.items() if line.in_directory)
    line = find_format(chosen)
    if line.in_directory is None:
        raise ConversionError(
            f"{path}: {chosen} output is a file, not a directory",
            hint=f"write to {_name_file(stem, line.suffix, is_inside=is_inside)}",
        )
    return Target(stem, chosen, line.in_directory, commit=commit)


def _name_file(stem: str, suffix: str, *, is_inside: bool) -> str:
    """Return the path of a file in a repository or an existing directory, or else beside it."""
    is_there = not is_inside or is_directory(stem)
    return os.path.join(stem, "model" + suffix) if is_there else stem + suffix


def refuse_place(url: str) -> str:
    """Return the URL; raises `OutputError` if it cannot be written."""
    if has_commits(url):
        return url
    store = store_of(url)
    if store is not None:
        store.uploads(url)
    if "/" not in url.partition("://")[2]:
        raise OutputError(
            f"{url} is a whole bucket, not a place in it", hint=f"use a path below it: {url}/model"
        )
    return url


def is_stream(path: str) -> bool:
    """Whether a path is stdout, a pipe or a device, which must be written in order."""
    if path in STDOUTS:
        return True
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def _refuse_device(path: str) -> None:
    if is_device_name(path):
        raise OutputError(f"{path} is the name of a device", hint="choose another name")


def stream_name(path: str) -> str:
    """Return the name of a stream for messages, which is the same for all names of stdout."""
    return "stdout" if path in STDOUTS else path


@contextmanager
def open_stream(path: str) -> Generator[PipeWriter, None, None]:
    """Open a pipe or device for writing in order; `-` is stdout.

    Written bytes cannot be removed. Opening a named pipe waits for its reader. Raises `OutputError`
    if it cannot be opened.
    """
    if stream_name(path) == stream_name(STDOUT):
        if not sys.stdout:  # it was closed before this process began
            raise OutputError("stdout is closed", hint="write to a file")
        sys.stdout.flush()
        yield PipeWriter(sys.stdout.fileno(), "stdout")
        return
    try:
        descriptor = open_file(path, os.O_WRONLY | NO_TERMINAL)
    except OSError as error:
        raise cannot_write(path, error) from error
    try:
        yield PipeWriter(descriptor, path)
    finally:
        os.close(descriptor)


def _format_of_file(path: str, format_name: str | None) -> str:
    by_suffix = format_by_suffix(path)
    if format_name and by_suffix and not has_suffix_of(path, format_name):
        raise ConversionError(
            f"{path} has the suffix of {by_suffix}, but --to is {format_name}",
            hint=f"use the suffix {find_format(format_name).suffix}, or remove --to (`to` in "
            "Python)",
        )
    if format_by_index(path):
        raise ConversionError(
            f"{path} has the name of an index, which weightctl writes together with the parts that "
            "it lists",
            hint="remove .index.json from the name",
        )
    if is_part(path):
        raise ConversionError(
            f"{path} has the name of one part of a multi-file checkpoint",
            hint="remove the numbers from the name; --max-shard-size (max_shard_size in Python) "
            "adds them",
        )
    chosen = format_name or by_suffix
    if chosen is None and is_stream(path):
        raise ConversionError(
            f"the output format for {stream_name(path)} is not specified",
            hint=f"use --to (`to` in Python) with one of {', '.join(list_written_formats())}",
        )
    if chosen in DIRECTORY_FORMATS:
        raise ConversionError(
            f"{stream_name(path)}: {chosen} output is a directory, not a file",
            hint="use the path of a directory, which ends with a slash",
        )
    if chosen is None:
        suffixes = ", ".join(suffix for line in FORMATS.values() for suffix in line.suffixes)
        raise ConversionError(
            f"{path}: the suffix is not that of a supported format; use one of {suffixes}",
            hint="for a directory, end the path with a slash; for a file, use --to FORMAT (`to` in "
            "Python)",
        )
    return chosen


def check_place(directory: str, path: str, nbytes: int) -> None:
    """Raise `OutputError` if a directory is missing, not writable, or on a disk that is too full.

    `nbytes` is the space that is needed. The error names `path`.
    """
    if not os.path.isdir(directory):
        raise OutputError(
            f"{path}: the directory {directory} does not exist", hint="create the directory first"
        )
    if not os.access(directory, os.W_OK):
        hint = "choose another directory"
        raise OutputError(f"{path}: the directory {directory} is not writable", hint=hint)
    disk = shutil.disk_usage(directory)
    # Some file systems do not report their size: all figures are zero.
    if disk.total and nbytes > disk.free:
        raise OutputError(
            f"{path}: {format_size(nbytes)} are needed, but {format_size(disk.free)} are free on "
            "its disk",
            hint="free some space, or choose another disk",
        )


def check_new_file(
    path: str,
    option: str,
    inputs: Iterable[str],
    consulted: Mapping[str, str] = MappingProxyType({}),
    *,
    force: bool,
) -> None:
    """Raise `OutputError` if the file of an option cannot be written, or would replace an input.

    `consulted` is as in `refuse_inputs`. Call this before any work.
    """
    _refuse_device(path)
    real = os.path.realpath(path)
    if os.path.isdir(real):
        raise OutputError(f"{path} is a directory", hint=f"use the path of a file for {option}")
    refuse_inputs(real, inputs, consulted)
    refuse_what_is_there([real], force=force)
    check_place(os.path.dirname(real), path, 0)


def refuse_inputs(
    path: str, inputs: Iterable[str], consulted: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Raise `OutputError` if a target is an input or contains one.

    `consulted` maps the paths of further files that were read to their roles, such as "the recipe".
    """
    if is_remote(path):
        if path in inputs or os.path.dirname(path) == path:
            raise OutputError(f"{path} is the input itself", hint=_OTHER_HINT)
        return
    for name, what in consulted.items():
        if os.path.exists(name) and os.path.exists(path) and os.path.samefile(name, path):
            raise OutputError(f"{path} is {what}", hint=_OTHER_HINT)
    for name in filter(os.path.exists, inputs):
        same = os.path.exists(path) and os.path.samefile(name, path)
        inside = os.path.isdir(path) and os.path.samefile(os.path.dirname(name) or ".", path)
        if same or inside:
            raise OutputError(
                f"{path} is the input itself" if same else f"{path} contains the input {name}",
                hint=_OTHER_HINT,
            )


def refuse_what_is_there(paths: Sequence[str], *, force: bool) -> None:
    """Raise `OutputError` if a target exists and `force` is not set, or if it is not a file."""
    for path in paths:
        if is_directory(path):
            there = list_names(path)
            if there and not force:
                raise OutputError(f"{path} exists and is not empty", hint=REPLACE_HINT)
            if there:
                refuse_foreign(path, there)
        elif exists(path) and not force:
            raise OutputError(f"{path} exists", hint=REPLACE_HINT)
        elif exists(path) and not is_file(path):
            raise OutputError(f"{path} is not a file", hint="choose another name")


def refuse_foreign(path: str, names: Sequence[str]) -> None:
    """Raise `OutputError` for a directory with files that an output must not replace."""
    raise OutputError(
        f"{path} contains files that are not part of the output: {', '.join(names[:3])}",
        hint="choose another directory, or move these files",
    )


def make_older_error(name: str) -> OutputError:
    """Return the error for an existing file that readers would assign to the output."""
    return OutputError(
        f"{name} is a file of an older checkpoint with the same name as the output: programs would "
        "find the old and the new checkpoint",
        hint="choose another path for the output, or use --force (force=True in Python) to replace "
        "the old checkpoint",
    )
