"""Writes the bytes between the tensors of a file if they depend on the tensors' checksums."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from weightctl.formats.base import Layout
    from weightctl.storage.base import Writer
    from weightctl.write.journal import Record
    from weightctl.write.outcome import Outcome

_COPY = 1 << 20


class SeamWriter:
    """Writes the bytes between tensors, such as checksums, as soon as they are known.

    They depend on the CRC-32 of the tensors before them. Files with zeros between tensors are left
    out.
    """

    def __init__(self, outcome: Outcome, files: Sequence[Writer]) -> None:
        pairs = zip(files, outcome.parts.values(), strict=True)
        self._files = [
            (number, file, layout)
            for number, (file, layout) in enumerate(pairs)
            if layout.between is not None
        ]
        self._known: dict[tuple[int, str], int] = {}
        self._checks: dict[int, list[int]] = {}
        self._lock = Lock()

    def advance(self, records: Iterable[Record]) -> None:
        """Add the CRC-32 of further tensors, and write the bytes that can be computed from them."""
        if not self._files:
            return
        with self._lock:
            for record in records:
                for name, check in record.facts.get("crc32", {}).items():
                    self._known[record.file, name] = check
            for number, file, layout in self._files:
                self._write(number, file, layout)

    def _write(self, number: int, file: Writer, layout: Layout) -> None:
        checks = self._checks.get(number)
        if checks is None:
            checks = self._checks[number] = []
            self._write_one(file, layout, checks)
        for info in layout.tensors[len(checks) :]:
            # A tensor without bytes has no task.
            check = self._known.get((number, info.name)) if info.nbytes else 0
            if check is None:
                return
            checks.append(check)
            self._write_one(file, layout, checks)

    @staticmethod
    def _write_one(file: Writer, layout: Layout, checks: Sequence[int]) -> None:
        """Write the bytes after the tensors with the CRC-32 `checks`, and zeros up to the next."""
        place = len(checks)
        start = len(layout.header)
        if place:
            start = layout.offsets[place - 1] + layout.tensors[place - 1].nbytes
        stop = layout.offsets[place] if place < len(layout.offsets) else layout.nbytes
        seam = layout.between(checks) if layout.between is not None else b""
        file.write(start, seam)
        for at in range(start + len(seam), stop, _COPY):
            file.write(at, bytes(min(_COPY, stop - at)))
