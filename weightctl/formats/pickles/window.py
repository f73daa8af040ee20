"""Bytes of a pickle, read in order through a window, with frames as CPython handles them."""

from __future__ import annotations

from typing import Protocol

_FIRST_READ, _LARGEST_READ = 1 << 12, 1 << 18
# Only this many bytes of a longer argument or line are returned.
LONGEST_KEPT = 1 << 16


class Readable(Protocol):
    """Bytes that are read on demand."""

    def read(self, offset: int, nbytes: int, /) -> bytes:
        """Return up to `nbytes` bytes at `offset`; fewer at the end."""
        ...


class TruncatedPickle(ValueError):  # noqa: N818  # raised for a truncated pickle
    """A pickle ends within an opcode; if it is a line, `rest` is the part that exists."""

    def __init__(self, rest: bytes = b"") -> None:
        super().__init__("the pickle is incomplete")
        self.rest = rest


class Window:
    """The bytes from `start`; `at` is the offset of the next byte.

    If an opcode crosses the end of its frame, an unpickler whose file cannot look ahead continues
    after the frame, and drops the rest of the frame. With `drops`, the window does so too;
    `crossed` is true if it makes a difference.
    """

    __slots__ = (
        "_base",
        "_buffer",
        "_data",
        "_frame_end",
        "_reads",
        "at",
        "crossed",
        "drops",
        "is_short",
    )

    def __init__(self, data: Readable, start: int, *, drops: bool = False) -> None:
        self.at = start
        self.crossed = self.is_short = False
        self.drops = drops
        self._data = data
        self._base = start
        self._buffer = b""
        self._reads = _FIRST_READ
        self._frame_end = start

    def ahead(self) -> tuple[bytes, int, int]:
        """Return the buffer, the index of the next byte in it, and the index where to stop.

        Up to there, no opcode crosses the end of a frame.
        """
        end = self._base + len(self._buffer)
        if self.at < self._frame_end < end:
            end = self._frame_end
        return self._buffer, self.at - self._base, end - self._base

    def byte(self) -> int:
        place = self.at - self._base
        if place < len(self._buffer):
            self.at += 1
            return self._buffer[place]
        self._refill(1)
        self.at += 1
        return self._buffer[0]

    def take(self, nbytes: int) -> bytes:
        """Read `nbytes` bytes; at most the first `LONGEST_KEPT` are returned."""
        self._stay_in_frame(self.at + nbytes)
        kept = min(nbytes, LONGEST_KEPT)
        place = self.at - self._base
        if place + kept > len(self._buffer):
            self._refill(kept)
            place = 0
        self.at += nbytes
        return self._buffer[place : place + kept]

    def number(self, width: int) -> int:
        """Read an unsigned integer of `width` bytes."""
        return int.from_bytes(self.take(width), "little")

    def line(self) -> bytes:
        """Read a line with its line feed; return at most its first `LONGEST_KEPT` bytes."""
        line, end = self._line()
        if self.at < self._frame_end < end:
            self.crossed = True
            if self.drops:
                self.at = self._frame_end
                line, end = self._line()
        self.at = end
        return line

    def frame(self, length: int) -> None:
        """Record the end of a frame that begins here; set `is_short` if the data ends before it.

        Raises `ValueError` for a length that no program accepts.
        """
        if length >> 63:
            raise ValueError("a frame is too large")
        end = self.at + length
        if self.at < self._frame_end:
            self.crossed = True
            if self.drops and end > self._frame_end:
                self.at, end = self._frame_end, self._frame_end + length
        # A frame within another has no effect: its bytes are already in memory.
        self._frame_end = max(end, self._frame_end)
        if self.at < self._frame_end and not self._data.read(self._frame_end - 1, 1):
            self.is_short = True

    def _stay_in_frame(self, end: int) -> None:
        if self.at < self._frame_end < end:
            self.crossed = True
            if self.drops:
                self.at = self._frame_end

    def _refill(self, least: int) -> None:
        is_next = self.at <= self._base + len(self._buffer)
        self._reads = min(2 * self._reads, _LARGEST_READ) if is_next else _FIRST_READ
        self._base = self.at
        self._buffer = self._data.read(self.at, max(least, self._reads))
        if len(self._buffer) < least:
            raise TruncatedPickle

    def _line(self) -> tuple[bytes, int]:
        """Return the line at the current position, and the offset of the next one."""
        place = self.at - self._base
        end = self._buffer.find(b"\n", place) if place <= len(self._buffer) else -1
        if end >= 0:
            return self._buffer[place : min(end, place + LONGEST_KEPT)], self._base + end + 1
        at, kept, window = self.at, b"", _FIRST_READ
        while True:
            piece = self._data.read(at, window)
            end = piece.find(b"\n")
            if len(kept) < LONGEST_KEPT:
                kept = (kept + (piece if end < 0 else piece[:end]))[:LONGEST_KEPT]
            if end >= 0:
                return kept, at + end + 1
            if len(piece) < window:
                raise TruncatedPickle(kept)
            at += len(piece)
            window = min(2 * window, _LARGEST_READ)
