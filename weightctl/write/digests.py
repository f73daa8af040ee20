"""Computes the SHA-256 of tensors with several threads, and compares them with a manifest."""

from __future__ import annotations

import hashlib
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import FormatError
from weightctl.system.threads import Memory, map_in_threads
from weightctl.text.wording import list_first
from weightctl.weights.readable import refuse_expanded, refuse_unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from threading import Event

    from weightctl.formats.sharded.gathered import GatheredSource
    from weightctl.weights.data import Source

_CHUNK = 4 << 20
_MOST_NAMED = 5


def compute_digests(
    source: Source,
    names: Iterable[str] | None = None,
    *,
    threads: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> dict[str, str]:
    """Return the SHA-256, in hexadecimal, of each tensor's bytes in little-endian order.

    `names` are names of stored tensors, by default all. `progress` is called with the bytes of each
    chunk, by one thread at a time. Each thread uses at most 4 MB of memory.

    Raises `FormatError` if a file cannot be read or changes in the meantime. Before anything is
    read, raises `EncodingError` if an encoding is unknown, or if tensors are far larger than their
    files.
    """
    header = source.header
    wanted = list(header.tensors if names is None else names)
    refuse_unknown(header.tensors[name] for name in wanted)
    refuse_expanded(source, [header.tensors[name] for name in wanted])
    one_at_a_time, memory = Lock(), Memory()

    def digest(name: str, ended: Event) -> str:
        block, nbytes = header.tensors[name].encoding.size, header.extents[name].nbytes
        # Chunks have whole blocks, in which the byte order can be changed.
        step = max(_CHUNK // block, 1) * block
        found = hashlib.sha256()
        for start in range(0, nbytes, step):
            if ended.is_set():
                break
            chunk = memory.room("chunk", min(step, nbytes - start))
            source.read_into(name, start, chunk)
            found.update(chunk)
            if progress is not None:
                with one_at_a_time:
                    progress(len(chunk))
        return found.hexdigest()

    # Tensors are read in file order, which is fastest on disks.
    in_order = sorted(wanted, key=lambda name: header.extents[name][:3])
    with map_in_threads(digest, in_order, threads=threads) as made:
        found = dict(zip(in_order, made, strict=True))
    source.refuse_change()
    return {name: found[name] for name in wanted}


class Altered(NamedTuple):
    """A tensor of a rank's file whose bytes have changed since it was written."""

    rank: int
    file: str
    tensor: str


def find_altered(
    gathered: GatheredSource,
    *,
    threads: int | None = None,
    progress: Callable[[int], object] | None = None,
    digests: Mapping[str, str] | None = None,
) -> list[Altered]:
    """Read all files of a sharded checkpoint; return the shards whose SHA-256 is wrong, by rank.

    `progress` is called with the bytes of each chunk. If `digests` is given, it has the SHA-256 of
    all shards, and files are not read. Raises `FormatError` if a file cannot be read.
    """
    from weightctl.formats.sharded.gathered import shard_key

    manifest = gathered.manifest
    found = digests
    if found is None:
        found = compute_digests(gathered.shards, threads=threads, progress=progress)
    return [
        Altered(rank, gathered.header.files[rank], shard.info.name)
        for rank, file in enumerate(manifest.files)
        for shard in file.shards
        if found[shard_key(rank, shard.info.name)] != shard.sha256
    ]


def count_checked_bytes(gathered: GatheredSource) -> int:
    """Return the number of bytes that `find_altered` reads."""
    return sum(info.nbytes for info in gathered.shards.header.tensors.values())


def refuse_altered(
    source: Source,
    *,
    threads: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> None:
    """Raise `FormatError`, which names the shards, if shards of a sharded checkpoint were altered.

    All files are read, as by `find_altered`. Other sources are not read.
    """
    if source.header.listing is None:
        return
    from weightctl.formats.sharded.gathered import GatheredSource

    if not isinstance(source, GatheredSource):
        return
    found = find_altered(source, threads=threads, progress=progress)
    if not found:
        return
    listed = [f"rank {each.rank}: `{each.tensor}` in {each.file}" for each in found]
    lines = ["altered since they were written:", *list_first(listed, _MOST_NAMED)]
    raise FormatError(
        source.header.listing or "", None,
        "\n  ".join(lines) if len(listed) > 1 else f"altered since it was written: {listed[0]}",
        hint="copy the files again from their origin, or write them again with `weightctl shard`",
    )  # fmt: skip
