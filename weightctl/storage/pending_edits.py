"""The record of an edit of local files, through which readers see the files as edited.

An edit changes the beginning of large files in place. Before the first change, the new bytes are in
a record beside the files. As soon as the record exists, the edited files are valid. If the run is
killed before all files are changed, readers take the missing bytes from the record, and the next
edit, or the next run that writes there, completes the changes. The same function carries out a new
edit, and one that a killed run has left.

While a file is changed, it begins with `MARKER`. Other programs then refuse it, instead of reading
a mixture of the old and the new header.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.errors import FormatError, OutputError
from weightctl.storage.base import cannot_write
from weightctl.storage.local import FileReader
from weightctl.system.files import (
    NO_FOLLOW,
    explain_open_file,
    lock_file,
    open_file,
    read_at,
    sync,
    sync_directory,
    write_all_at,
    write_durably,
)
from weightctl.system.temporary import EDIT, temporary_name, without_temporary
from weightctl.text.untyped import is_list, is_object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

# It is not the beginning of a GGUF file, and as the length of a safetensors header it is too large.
MARKER = b"wctledit"
_SIZE = len(MARKER)
# The changed parts of the headers of all files; a GGUF header with a large vocabulary has 20 MB.
MOST_BYTES = 1 << 28
_TRIES = 100
# Of safetensors.
_LONGEST_HEADER = 100_000_000


class EditedFile(NamedTuple):
    """A file of an edit: its name, its old and new sizes, and its changed bytes.

    The file begins with `first`, and `patches` are offsets and bytes that follow it. `digest` is
    the SHA-256 of the old bytes at these places. If the file is replaced by a new one instead,
    `temporary` is the name of the new file.
    """

    name: str
    old_size: int
    size: int
    digest: str = ""
    first: bytes = b""
    patches: tuple[tuple[int, bytes], ...] = ()
    temporary: str = ""

    @property
    def new_digest(self) -> str:
        """The SHA-256 of the new bytes."""
        return digest_of([self.first, *(changed for _, changed in self.patches)])

    @property
    def places(self) -> list[tuple[int, bytes]]:
        """The offsets and bytes of all changes, with those at the beginning."""
        return [(0, self.first), *self.patches]


class PendingEdit(NamedTuple):
    """An edit whose record exists; `path` is that of the record.

    `is_own` is false if another user, or another machine, wrote the record.
    """

    path: str
    files: tuple[EditedFile, ...]
    is_own: bool

    def refuse_foreign(self) -> None:
        """Raise `FormatError` if this user did not write the record."""
        if not self.is_own:
            known = own_edit_path(os.path.dirname(self.path))
            raise FormatError(
                self.path,
                None,
                "you did not write this journal of an edit on this machine, so it is not applied",
                hint="if it came with a download, remove it. If you wrote it on another machine, "
                f"finish the edit there, or write the SHA-256 of the journal into {known}",
            )

    def path_of(self, name: str) -> str:
        """Return the path of a file beside the record."""
        return os.path.join(os.path.dirname(self.path), name)


class PendingReader(FileReader):
    """A file that is read as an edit leaves it, whether or not the edit is complete.

    Raises `FormatError` if another program has changed the file since the edit was recorded.
    """

    def __init__(self, path: str, edit: PendingEdit, file: EditedFile) -> None:
        temporary = edit.path_of(file.temporary)
        is_waiting = bool(file.temporary) and os.path.lexists(temporary)
        super().__init__(temporary if is_waiting else path)
        self.path = path
        self._found = self.size
        self._patches = file.places
        if not file.temporary:
            refuse_changed(self._raw, self.size, edit, file)
            self.size = file.size

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return (open_local, (self.path,))

    def _raw(self, offset: int, nbytes: int) -> bytes:
        return FileReader.read(self, offset, nbytes)

    def read(self, offset: int, nbytes: int) -> bytes:
        found = bytearray(super().read(offset, nbytes))
        self._patch(offset, memoryview(found))
        return bytes(found)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        super().read_into(offset, buffer)
        self._patch(offset, buffer)

    def private(self, offset: int, nbytes: int) -> memoryview:
        """Return a writable copy of a range if it is edited, and else a view."""
        if self._is_edited(offset, nbytes):
            return memoryview(bytearray(self.read(offset, nbytes)))
        return super().private(offset, nbytes)

    def copy_into(self, offset: int, nbytes: int, descriptor: int, at: int | None = None) -> int:
        """Make the kernel copy a range if it is not edited; the result is then its length."""
        if self._is_edited(offset, nbytes):
            return 0
        return super().copy_into(offset, nbytes, descriptor, at)

    def refuse_change(self) -> None:
        edited, self.size = self.size, self._found
        try:
            super().refuse_change()
        finally:
            self.size = edited

    def _is_edited(self, offset: int, nbytes: int) -> bool:
        return any(
            offset < start + len(changed) and start < offset + nbytes
            for start, changed in self._patches
        )

    def _patch(self, offset: int, buffer: memoryview) -> None:
        for start, changed in self._patches:
            first, last = max(start, offset), min(start + len(changed), offset + len(buffer))
            if first < last:
                buffer[first - offset : last - offset] = changed[first - start : last - start]


def open_local(path: str) -> FileReader:
    """Open a local file for reading, as a pending edit of it leaves it."""
    found = find_edited(path)
    return FileReader(path) if found is None else PendingReader(path, *found)


def find_edited(path: str) -> tuple[PendingEdit, EditedFile] | None:
    """Return the edit that a file is part of, if it may not be complete; else None.

    Raises `FormatError` if its record is invalid, or if this user did not write it.
    """
    real = os.path.realpath(path) if os.path.islink(path) else path
    edit = find_edit(os.path.dirname(real))
    if edit is None:
        return None
    name = os.path.basename(real)
    for file in edit.files:
        if file.name == name:
            edit.refuse_foreign()
            return edit, file
    return None


def edit_path(directory: str) -> str:
    """Return the path of the record of an edit of files in a directory."""
    return os.path.join(directory, EDIT)


def digest_of(pieces: Iterable[bytes]) -> str:
    """Return the SHA-256 that identifies the bytes at the changed places of a file."""
    import hashlib  # opening a file without an edit does not need this

    found = hashlib.sha256()
    for piece in pieces:
        found.update(piece)
    return found.hexdigest()


def refuse_changed(
    read: Callable[[int, int], bytes], size: int, edit: PendingEdit, file: EditedFile
) -> bool:
    """Return whether a file has all its new bytes.

    Raises `FormatError` if it has neither the old nor the new bytes, and is not being changed.
    """
    digest = ""
    for _ in range(_TRIES):
        first = read(0, _SIZE)
        changed = [read(start, len(piece)) for start, piece in file.patches]
        # Another process may change the file at this moment.
        if read(0, _SIZE) == first:
            digest = "" if first == MARKER else digest_of([first, *changed])
            break
    if size in {file.old_size, file.size} and digest in {"", file.digest, file.new_digest}:
        return digest == file.new_digest and size == file.size
    raise FormatError(
        edit.path_of(file.name),
        None,
        "a run that was editing this file was stopped, and the file was changed afterwards",
        hint=f"to read the file as it is, remove {edit.path}",
    )


def find_edit(directory: str) -> PendingEdit | None:
    """Return the edit of files in a directory that may not be complete; None if there is none.

    Raises `FormatError` if its record is invalid.
    """
    path = edit_path(directory)
    if not os.path.lexists(path):
        return None
    try:
        reader = FileReader(path)
    except FileNotFoundError:  # the run has just ended
        return None
    content = reader.read(0, MOST_BYTES) if reader.size <= MOST_BYTES else b""
    files = _parse(content)
    if files:
        return PendingEdit(path, files, is_own_edit(directory, digest_of([content])))
    raise FormatError(
        path,
        None,
        "this file has the name of the journal that weightctl writes while it edits files, but it "
        "is not a valid journal",
        hint="move the file to another directory, then run the command again",
    )


def format_edit(files: Sequence[EditedFile]) -> bytes:
    """Return the content of a record: a line of JSON, and then the changed bytes of each file."""
    entries = [
        file._asdict()
        | {
            "first": file.first.hex(),
            "patches": [[start, len(changed)] for start, changed in file.patches],
        }
        for file in files
    ]
    line = json.dumps({"files": entries}).encode("ascii")
    return b"\n".join([line, b"".join(each for file in files for _, each in file.patches)])


def _parse(content: bytes) -> tuple[EditedFile, ...]:
    """Return the files of a record; none if it is invalid."""
    line, _, rest = content.partition(b"\n")
    try:
        document: Any = json.loads(line)
    except (ValueError, RecursionError):
        return ()
    entries = document.get("files") if is_object(document) else None
    made: list[EditedFile] = []
    position = 0
    try:
        for entry in entries if is_list(entries) else ():
            made.append(_parse_file(entry, rest, position))
            position += sum(len(changed) for _, changed in made[-1].patches)
    except (KeyError, TypeError, ValueError):
        return ()
    return tuple(made) if position == len(rest) else ()


def _parse_file(entry: Any, rest: bytes, position: int) -> EditedFile:
    """Return a file of a record; raises `KeyError`, `TypeError` or `ValueError` if invalid."""
    first, ranges = bytes.fromhex(entry["first"]), [*entry["patches"]]
    name, digest, temporary = entry["name"], entry["digest"], entry["temporary"]
    old_size, size = entry["old_size"], entry["size"]
    sizes = (old_size, size, *(number for each in ranges for number in each))
    _require(
        all(type(each) is int and each >= 0 for each in sizes)
        and all(isinstance(each, str) for each in (name, digest, temporary))
        and os.path.basename(name) == name not in {"", ".", ".."}
    )
    file = EditedFile(name, old_size, size, digest, first, (), temporary)
    if file.temporary:
        _require(file.temporary != file.name == without_temporary(file.temporary))
        _require(not ranges and not first)
        return file
    _require(len(first) == _SIZE and _SIZE <= file.size <= file.old_size)
    # Only headers of GGUF and safetensors are edited in place.
    length = int.from_bytes(first, "little")
    is_gguf = first[:4] in {b"GGUF", b"FUGG"}
    _require(is_gguf or length <= _LONGEST_HEADER)
    end = file.size if is_gguf else _SIZE + length
    _require(all(start + nbytes <= end for start, nbytes in ranges))
    patches: list[tuple[int, bytes]] = []
    for start, length in ranges:
        _require(start >= _SIZE and start + length <= file.size and position + length <= len(rest))
        patches.append((start, rest[position : position + length]))
        position += length
    return file._replace(patches=tuple(patches))


def _require(is_valid: bool) -> None:
    if not is_valid:
        raise ValueError


# Which records this user wrote: their SHA-256 is kept outside of the edited directory. A record
# makes readers see other bytes than a file has, and may come with a download. So it is applied only
# if it is known here.


def own_edit_path(directory: str) -> str:
    """Return the path of the file that knows the journal of an edit in a directory."""
    import hashlib  # opening a file without an edit does not need this

    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    place = os.path.realpath(directory or ".")
    name = hashlib.sha256(os.fsencode(place)).hexdigest()[:32]
    return os.path.join(state, "weightctl", "edits", name)


def note_own_edit(directory: str, digest: str) -> None:
    """Record the SHA-256 of a journal; raises `OSError` if that is not possible."""
    path = own_edit_path(directory)
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    write_durably(path, digest.encode("ascii"), "wb")


def is_own_edit(directory: str, digest: str) -> bool:
    """Whether this user wrote the journal with this SHA-256, for this directory."""
    try:
        with open(own_edit_path(directory), encoding="ascii") as file:
            return file.read(len(digest) + 1).strip() == digest
    except (OSError, ValueError):
        return False


def forget_own_edit(directory: str) -> None:
    """Remove what `note_own_edit` recorded."""
    with suppress(OSError):
        os.unlink(own_edit_path(directory))


def record_edit(directory: str, files: Sequence[EditedFile]) -> int:
    """Write the record of an edit: from then on, the edited files are valid.

    Returns the number of bytes of the record. Raises `OutputError` if it cannot be written.
    """
    path, content = edit_path(directory), format_edit(files)
    if len(content) > MOST_BYTES:
        raise OutputError(
            f"{path}: the changes of the headers need {len(content):,} bytes, more than weightctl "
            f"writes in place ({MOST_BYTES:,})",
            hint="`weightctl convert` writes an edited copy",
        )
    temporary = temporary_name(os.path.join(directory, files[0].name))
    try:
        note_own_edit(directory, digest_of([content]))
    except OSError as error:
        raise cannot_write(own_edit_path(directory), error) from error
    try:
        with open(temporary, "xb", buffering=0) as file:
            write_all_at(file.fileno(), content, 0)
            sync(file.fileno())
        os.rename(temporary, path)
        sync_directory(directory)
    except OSError as error:
        # The files did not change yet, so the edit is undone.
        for name in (temporary, path):
            with suppress(OSError):
                os.unlink(name)
        if not os.path.lexists(path):
            forget_own_edit(directory)
        raise cannot_write(path, error) from error
    return len(content)


def complete_edit(directory: str, names: Sequence[str] = ()) -> int:
    """Carry out the edit that is recorded in a directory, if there is one; then remove the record.

    If `names` are given, this is only done if the edit changes one of these files. Returns the
    number of bytes that were written. Raises `OutputError` if a file cannot be written, and
    `FormatError` if the record is invalid, or if a file was changed since it was written.
    """
    edit = find_edit(directory)
    if edit is None or (names and not {*names} & {file.name for file in edit.files}):
        return 0
    edit.refuse_foreign()
    written = 0
    try:
        for file in edit.files:
            written += _replace(edit, file) if file.temporary else _change(edit, file)
        sync_directory(directory)
        os.unlink(edit.path)
        sync_directory(directory)
    except OSError as error:
        changed = edit.path_of(edit.files[0].name)
        if os.path.lexists(edit.path):
            raise OutputError(
                f"{changed} cannot be written: {error.strerror}. The edit is recorded but not "
                "complete: weightctl reads the file as edited, and other programs refuse it or "
                "read the old one",
                hint=f"{explain_open_file(error) or 'mend the cause'}, then complete the edit: "
                f"weightctl edit {changed}",
            ) from error
    forget_own_edit(directory)
    return written


def _replace(edit: PendingEdit, file: EditedFile) -> int:
    with suppress(FileNotFoundError):  # a killed run has already renamed it
        os.rename(edit.path_of(file.temporary), edit.path_of(file.name))
    return 0


def _change(edit: PendingEdit, file: EditedFile) -> int:
    descriptor = open_file(edit.path_of(file.name), os.O_RDWR | NO_FOLLOW)
    try:
        lock_file(descriptor, wait=True)

        def read(offset: int, nbytes: int) -> bytes:
            return read_at(descriptor, nbytes, offset)

        if refuse_changed(read, os.fstat(descriptor).st_size, edit, file):
            return 0
        # Other programs refuse the file until all its bytes are on the disk.
        write_all_at(descriptor, MARKER, 0)
        sync(descriptor)
        for start, changed in file.patches:
            write_all_at(descriptor, changed, start)
        if file.size < file.old_size:
            os.ftruncate(descriptor, file.size)
        sync(descriptor)
        write_all_at(descriptor, file.first, 0)
        sync(descriptor)
    finally:
        os.close(descriptor)
    return len(MARKER) + sum(len(changed) for _, changed in file.places)
