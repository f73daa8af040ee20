"""SHA-256 of tensors' bytes: streamed, several tensors side by side."""

from __future__ import annotations

import hashlib
from threading import Lock
from typing import TYPE_CHECKING

from weightctl.system.threads import Memory, map_in_threads
from weightctl.weights.readable import refuse_expanded, refuse_unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from threading import Event

    from weightctl.weights.source import Source

__all__ = ["digests"]

_PIECE = 4 << 20


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
    Raises `FormatError` where a file cannot be read or was written to meanwhile, and before
    anything is read `EncodingError` for an encoding that is not known, and for tensors far larger
    than their files.
    """
    header = source.header
    wanted = list(header.tensors if names is None else names)
    refuse_unknown(header.tensors[name] for name in wanted)
    refuse_expanded(source, [header.tensors[name] for name in wanted])
    one_at_a_time, memory = Lock(), Memory()

    def digest(name: str, ended: Event) -> str:
        block, nbytes = header.tensors[name].encoding.size, header.extents[name].nbytes
        # A change of byte order needs whole blocks.
        step = max(_PIECE // block, 1) * block
        found = hashlib.sha256()
        for start in range(0, nbytes, step):
            if ended.is_set():
                break
            piece = memory.room("piece", min(step, nbytes - start))
            source.read_into(name, start, piece)
            found.update(piece)
            if progress is not None:
                with one_at_a_time:
                    progress(len(piece))
        return found.hexdigest()

    # In the order of the files, which disks like best.
    in_order = sorted(wanted, key=lambda name: header.extents[name])
    with map_in_threads(digest, in_order, threads=threads) as made:
        found = dict(zip(in_order, made, strict=True))
    source.refuse_change()
    return {name: found[name] for name in wanted}
