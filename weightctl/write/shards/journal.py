"""What of a sharded checkpoint is complete and on the disk, while it is written."""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.text.untyped import is_list, is_object
from weightctl.write.output_file import cannot_write
from weightctl.write.shards.writable import put, write_all

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["JOURNAL", "REPLACED", "Journal", "Purpose", "Record", "begin_journal", "read_journal"]

# Beside the manifest, until that says all.
JOURNAL = "manifest.journal"
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Purpose(NamedTuple):
    """What a run is for: digests of its plan and its input, and the names of what it writes."""

    plan: str
    input: str
    names: tuple[str, ...]


# What the journal says in a directory that a new one has taken the place of, but for the names.
REPLACED = Purpose("", "", ())


class Record(NamedTuple):
    """A tensor of a rank's file that is complete and on the disk."""

    rank: int
    name: str
    sha256: str


class Journal:
    """A journal that is written: a line says what the run is for, and one follows for each tensor.

    A line that a crash has torn, and what is behind it, is not there for who reads it. `records`
    are those in it, by rank and name.
    """

    def __init__(self, path: str, purpose: Purpose, records: Sequence[Record]) -> None:
        self._path = path
        self.records = {(record.rank, record.name): record for record in records}
        begin_journal(path, purpose, records)
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        except OSError as error:
            raise cannot_write(path, error) from error

    def add(self, records: Sequence[Record]) -> None:
        """Append records; they are on the disk when this returns."""
        data = "".join(map(_line, records)).encode("ascii")
        try:
            write_all(self._descriptor, memoryview(data))
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise cannot_write(self._path, error) from error
        self.records.update(((record.rank, record.name), record) for record in records)

    def close(self) -> None:
        """End writing."""
        os.close(self._descriptor)


def begin_journal(path: str, purpose: Purpose, records: Sequence[Record] = ()) -> None:
    """Write a journal in the place of what is there; raises `OutputError`."""
    lines = (_line(purpose), *map(_line, records))
    put(path, "".join(lines).encode("ascii"))


def _line(entry: Purpose | Record) -> str:
    return json.dumps(entry._asdict()) + "\n"


def read_journal(path: str) -> tuple[Purpose, dict[tuple[int, str], Record]] | None:
    """Return what a journal says, by rank and name; None where it is none, or not begun."""
    with suppress(OSError):
        with open(path, "rb") as file:
            lines = file.read().split(b"\n")[:-1]
        purpose = _purpose(_entry(lines[0])) if lines else None
        if purpose is None:
            return None
        records: dict[tuple[int, str], Record] = {}
        for line in lines[1:]:
            record = _record(_entry(line))
            if record is None:
                break
            records[record.rank, record.name] = record
        return purpose, records
    return None


def _entry(line: bytes) -> Mapping[str, Any]:
    try:
        entry: Any = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return entry if is_object(entry) else {}


def _purpose(entry: Mapping[str, Any]) -> Purpose | None:
    plan, source, names = (entry.get(key) for key in Purpose._fields)
    if not isinstance(plan, str) or not isinstance(source, str) or not is_list(names):
        return None
    if not all(isinstance(name, str) and _is_below(name) for name in names):
        return None
    return Purpose(plan, source, tuple(names))


def _is_below(name: str) -> bool:
    return not {"", ".", ".."} & {*name.split("/")}


def _record(entry: Mapping[str, Any]) -> Record | None:
    rank, name, sha256 = (entry.get(key) for key in Record._fields)
    if type(rank) is not int or not isinstance(name, str) or not isinstance(sha256, str):
        return None
    return Record(rank, name, sha256) if _SHA256.fullmatch(sha256) else None
