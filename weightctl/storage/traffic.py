"""Counts network traffic: requests, bytes and retries."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock
from typing import NamedTuple


class TrafficCounts(NamedTuple):
    """The number of requests, the bytes that were received and sent, and the number of retries."""

    requests: int = 0
    bytes_read: int = 0
    bytes_sent: int = 0
    retries: int = 0

    def since(self, before: TrafficCounts) -> TrafficCounts:
        """Return the difference from earlier counts."""
        return TrafficCounts(*(now - then for now, then in zip(self, before, strict=True)))


@dataclass
class Traffic:
    """Counts the traffic of this process."""

    requests: int = 0
    bytes_read: int = 0
    bytes_sent: int = 0
    retries: int = 0
    _lock: Lock = field(default_factory=Lock, repr=False)

    def count(self, *, requests: int = 0, read: int = 0, sent: int = 0, retries: int = 0) -> None:
        """Add to the counts; any thread may call it."""
        with self._lock:
            self.requests += requests
            self.bytes_read += read
            self.bytes_sent += sent
            self.retries += retries

    @property
    def counts(self) -> TrafficCounts:
        with self._lock:
            return TrafficCounts(self.requests, self.bytes_read, self.bytes_sent, self.retries)


TRAFFIC = Traffic()
