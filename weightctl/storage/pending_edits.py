"""The record of an edit of local files, through which readers see the files as edited.

An edit changes the beginning of large files in place. Before the first change, the new bytes are in
a record beside the files. As soon as the record exists, the edited files are valid. If the run is
killed before all files are changed, readers take the missing bytes from the record, and the next
edit, or the next run that writes there, completes the changes.

While a file is changed, it begins with `MARKER`. Other programs then refuse it, instead of reading
a mixture of the old and the new header.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.errors import FormatError
from weightctl.storage.local import FileReader
from weightctl.storage.own_edits import is_own_edit, own_edit_path
from weightctl.system.temporary import EDIT, without_temporary
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
        """Return bytes of the edited file, like `FileReader.read`."""
        found = bytearray(super().read(offset, nbytes))
        self._patch(offset, memoryview(found))
        return bytes(found)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` with bytes of the edited file, like `FileReader.read_into`."""
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
        """Raise `FormatError` if the file has been written to since it was opened."""
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
