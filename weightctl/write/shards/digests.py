"""Whether the parts of a sharded checkpoint are, byte for byte, what its manifest says."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import FormatError
from weightctl.formats.sharded.gathered import GatheredSource, shard_key
from weightctl.write.digests import digests

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightctl.weights.source import Source

__all__ = ["Altered", "count_checked_bytes", "find_altered", "refuse_altered"]

_MOST_NAMED = 5


class Altered(NamedTuple):
    """A tensor of a rank's file whose bytes are other than when it was written."""

    rank: int
    file: str
    tensor: str


def find_altered(
    gathered: GatheredSource,
    *,
    threads: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> list[Altered]:
    """Read all files of a sharded checkpoint, and return the tensors of other SHA-256, by rank.

    `progress` is called with the bytes of each piece. Raises `FormatError` where a file cannot be
    read.
    """
    manifest = gathered.manifest
    found = digests(gathered.shards, threads=threads, progress=progress)
    return [
        Altered(rank, gathered.header.files[rank], shard.info.name)
        for rank, file in enumerate(manifest.files)
        for shard in file.shards
        if found[shard_key(rank, shard.info.name)] != shard.sha256
    ]


def count_checked_bytes(gathered: GatheredSource) -> int:
    """Return how many bytes `find_altered` reads."""
    return sum(info.nbytes for info in gathered.shards.header.tensors.values())


def refuse_altered(
    source: Source,
    *,
    threads: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> None:
    """Raise `FormatError` that names the altered tensors of a set, before anything is made of them.

    Reads all its files, as `find_altered` does, and nothing of a source that is no sharded
    checkpoint.
    """
    if not isinstance(source, GatheredSource):
        return
    found = find_altered(source, threads=threads, progress=progress)
    if not found:
        return
    told = [f"rank {each.rank}: `{each.tensor}` in {each.file}" for each in found]
    more = [f"... and {len(told) - _MOST_NAMED} more"] if len(told) > _MOST_NAMED else []
    lines = ["altered since they were written:", *told[:_MOST_NAMED], *more]
    raise FormatError(
        source.header.listing or "", None,
        "\n  ".join(lines) if len(told) > 1 else f"altered since it was written: {told[0]}",
        hint="copy them once more from where they came, or `weightctl shard` writes them anew",
    )  # fmt: skip
