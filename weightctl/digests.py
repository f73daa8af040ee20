"""SHA-256 of tensors' bytes: streamed, several tensors side by side."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Lock, local
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from weightctl.weights.source import Source

__all__ = ["digests"]

_PIECE = 4 << 20
_MOST_THREADS = 16


def digests(
    source: Source,
    names: Iterable[str] | None = None,
    *,
    threads: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> dict[str, str]:
    """Return the SHA-256 in hexadecimal of each tensor's bytes, in little-endian order.

    `names` are those of stored tensors; without it all are read. `progress` is called with the
    bytes of each piece, by one thread at a time. No more than 4 MB are held for each thread.
    Raises `FormatError` where a file cannot be read.
    """
    header = source.header
    wanted = list(header.tensors if names is None else names)
    ended, one_at_a_time, own = Event(), Lock(), local()

    def digest(name: str) -> str:
        encoding, nbytes = header.tensors[name].encoding, header.extents[name].nbytes
        # A change of byte order needs whole blocks; where blocks are unknown there is none.
        block = encoding.size if encoding.is_known else 1
        step = max(_PIECE // block, 1) * block
        found = hashlib.sha256()
        for start in range(0, nbytes, step):
            if ended.is_set():
                break
            piece = _room(own, min(step, nbytes - start))
            source.read_into(name, start, piece)
            found.update(piece)
            if progress is not None:
                with one_at_a_time:
                    progress(len(piece))
        return found.hexdigest()

    with ThreadPoolExecutor(threads or min(os.cpu_count() or 1, _MOST_THREADS)) as pool:
        try:
            # In the order of the files, which disks like best.
            in_order = sorted(wanted, key=lambda name: header.extents[name])
            found = dict(zip(in_order, pool.map(digest, in_order), strict=True))
        finally:
            # What still runs after an error, or Ctrl-C, is for nobody.
            ended.set()
    return {name: found[name] for name in wanted}


def _room(own: local, nbytes: int) -> memoryview:
    """Return so many bytes of a buffer that a thread keeps for all its pieces."""
    kept: bytearray | None = getattr(own, "buffer", None)
    if kept is None or len(kept) < nbytes:
        kept = own.buffer = bytearray(nbytes)
    return memoryview(kept)[:nbytes]
