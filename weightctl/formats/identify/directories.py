"""Descriptions of directories without a checkpoint."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from weightctl.errors import FormatError
from weightctl.formats import format_by_index, format_by_suffix
from weightctl.formats.identify import identify_file
from weightctl.formats.identify.kinds import AGAIN, FORMATS_HINT, NonCheckpointFile
from weightctl.formats.open.index import few
from weightctl.storage.files import is_directory, list_names, open_reader
from weightctl.storage.location import is_remote
from weightctl.text.wording import list_first

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_MOST_FILES = 50
_MOST_DIRECTORIES = 100
_MOST_LINES = 4
# Suffixes of files that are beside weights but are not weights; `_GRAPHS` has the exceptions.
_BESIDE = (
    ".json", ".txt", ".md", ".py", ".jinja", ".model", ".yaml", ".yml", ".tiktoken", ".html",
    ".png", ".jpg", ".gif", ".ipynb", ".toml", ".log", ".csv", ".jsonl",
)  # fmt: skip
# Files of Orbax's checkpoints, and the text for them.
_ORBAX = frozenset({"manifest.ocdbt", "_CHECKPOINT_METADATA"})
_IS_ORBAX = "it contains an Orbax checkpoint of JAX without _METADATA, which describes its arrays"
_ORBAX_HINT = (
    "load it with orbax.checkpoint, or with tensorstore without JAX, and save its arrays with "
    "safetensors.numpy.save_file"
)
_GRAPHS = ("model.json", "openvino_model.xml")
_DOWNLOADS = os.path.join(".cache", "huggingface", "download")


def reason(path: str) -> NonCheckpointFile:
    """Describe what a file is, or why it cannot be read."""
    if os.path.islink(path) and not os.path.exists(path):
        target = os.readlink(path)
        return NonCheckpointFile(
            "a link to a missing file", AGAIN, f": {target}" * (len(target) < 100)
        )
    try:
        return identify_file(open_reader(path))
    except FormatError as error:
        reason = error.message.removeprefix(f"{path}: ")
        return NonCheckpointFile(f"a file that cannot be read: {reason}", error.hint)


def nothing_in(
    directory: str,
    names: Sequence[str],
    by_format: Mapping[str, Sequence[str]],
    format_name: str | None,
) -> FormatError:
    """Return the error for a directory without a checkpoint; it describes the contents.

    `format_name` is the only format that is looked for, or None for all.
    """
    what = f"no {format_name} file" if format_name else "no checkpoint"
    lines, hint = _describe_contents(
        directory, [name for name in names if name[0] != "."], by_format
    )
    summary = f"the directory has {what} that weightctl can read"
    message = f"{summary}: {lines[0]}" if len(lines) == 1 else "\n  ".join([f"{summary}:", *lines])
    return FormatError(directory, None, message, hint=hint)


def _describe_contents(
    directory: str, names: Sequence[str], by_format: Mapping[str, Sequence[str]]
) -> tuple[list[str], str]:
    if by_format:
        held = "; ".join(f"{found} ({few(group)})" for found, group in by_format.items())
        return [f"it contains {held}"], (
            "leave out --from (source_format or format_name in Python), or use --from "
            f"{next(iter(by_format))}"
        )
    if not _ORBAX.isdisjoint(names):
        return [_IS_ORBAX], _ORBAX_HINT
    lines, hints = _files(directory, names)
    going = _downloads(directory)
    if going:
        files = f"{going} file{'s' * (going > 1)}"
        lines.append(f"a download into it is not complete: {files} in {_DOWNLOADS}")
        hints.append("start the download again to continue")
    below = list(_below(directory, names))
    if below:
        first = os.path.join(directory, below[0])
        is_one = len(below) == 1
        subject = (
            "its directory {} contains a checkpoint"
            if is_one
            else ("its directories {} contain checkpoints")
        )
        lines.append(subject.format(few(below)))
        hints.insert(0, f"use {'this directory' if is_one else 'one of them'}: {first}")
    if lines:
        return lines, hints[0]
    if names:
        return [f"it contains {few(names)}"], FORMATS_HINT
    return ["it is empty"], "check that this is the directory that you downloaded to"


def _files(directory: str, names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return a sentence for each kind of file that could be meant as a checkpoint, and hints."""
    groups: dict[str, tuple[list[str], NonCheckpointFile]] = {}
    looked_at = 0
    for name in sorted(names, key=lambda name: format_by_suffix(name) is None):
        path = os.path.join(directory, name)
        if is_directory(path) or (name.lower().endswith(_BESIDE) and name not in _GRAPHS):
            continue
        looked_at += 1
        if looked_at > _MOST_FILES:
            break
        found = reason(path)
        is_meant = format_by_suffix(name) is not None or found.hint != FORMATS_HINT
        if is_meant:
            groups.setdefault(found.what, ([], found))[0].append(name)
    lines = [
        f"{few(group)} is {found.what}{found.more}"
        if len(group) == 1
        else f"{few(group)}: each of these {len(group)} files is {found.what}"
        for group, found in groups.values()
    ]
    return list_first(lines, _MOST_LINES, "kinds of files"), [
        found.hint for _, found in groups.values()
    ]


def _downloads(directory: str) -> int:
    """Return the number of incomplete downloads of huggingface_hub into a directory."""
    try:
        names = os.listdir(os.path.join(directory, _DOWNLOADS))
    except OSError:
        return 0
    return sum(name.endswith(".incomplete") for name in names)


def _below(directory: str, names: Sequence[str]) -> Iterator[str]:
    """Yield the subdirectories with files named like checkpoints; for a cache, its snapshots."""
    for name in names[:_MOST_DIRECTORIES]:
        path = os.path.join(directory, name)
        if not is_directory(path):
            continue
        if name == "snapshots" and not is_remote(path):
            yield from (os.path.join(name, found) for found in _snapshots(directory))
        elif os.path.isdir(os.path.join(path, "snapshots")):
            yield from (os.path.join(name, "snapshots", found) for found in _snapshots(path))
        elif _has_weights(path):
            yield name


def _snapshots(cache: str) -> list[str]:
    """Return the snapshots of a cached model that contain weights, the one of `main` first."""
    directory = os.path.join(cache, "snapshots")
    try:
        with open(os.path.join(cache, "refs", "main"), encoding="utf-8", errors="replace") as ref:
            main = ref.read(100).strip()
    except OSError:
        main = ""
    names = sorted(os.listdir(directory), key=lambda name: (name != main, name))
    return [name for name in names if _has_weights(os.path.join(directory, name))]


def _has_weights(directory: str) -> bool:
    try:
        names = list_names(directory)
    except (OSError, FormatError):
        return False
    is_orbax = not _ORBAX.isdisjoint(names)
    return is_orbax or any(format_by_suffix(name) or format_by_index(name) for name in names)
