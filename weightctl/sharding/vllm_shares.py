"""Divides weights among ranks as vLLM does: in equal sizes, with zeros after the vocabulary's rows.

The source is vLLM 0.33.0: `layers/linear.py` and `layers/vocab_parallel_embedding.py` below
`model_executor/`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import ShardingError
from weightctl.sharding.vllm_names import PADDED_TO
from weightctl.split import counts_that_work, part_along, part_shape, ranks_that_work
from weightctl.text.wording import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from weightctl.families.family import Extent
    from weightctl.families.sharing import SharedRun
    from weightctl.sharding.placing import PlacedWeight
    from weightctl.split import Heads, Part, Range

# The largest number of ranks to suggest, which is more than one model uses.
_MOST = 1024


class Shares(NamedTuple):
    """How vLLM divides a model among `ranks`; there can be at most `most` ranks, 0 for no limit."""

    heads: Heads
    ranks: int
    most: int = 0

    def part(self, place: PlacedWeight, rank: int) -> Part | None:
        """Return the part of a weight that a rank gets; None if the rank gets only padding."""
        if not place.runs:
            return ()
        ranges = [self._range(run, rank) for run in place.runs]
        if all(start == stop for start, stop in ranges):
            return None
        return part_along(place.axis, place.weight.shape[place.axis], ranges)

    def shape(self, place: PlacedWeight, part: Part | None) -> tuple[int, ...]:
        """Return the shape of a rank's shard, given its part of a weight, including padding."""
        shape = list(part_shape(place.weight.shape, part or ()))
        if any(run.extent == "vocabulary" for run in place.runs):
            shape[place.axis] = _pad_rows(place.weight.shape[place.axis]) // self.ranks
        return tuple(shape)

    def refuse(self, places: Iterable[PlacedWeight]) -> None:
        """Raise `ShardingError`, which names the weight, if vLLM cannot divide a weight evenly."""
        places = list(places)
        sizes: dict[tuple[Extent, int], PlacedWeight] = {}
        for place in places:
            for run in place.runs:
                sizes.setdefault((run.extent, run.stop - run.start), place)

        def problems(ranks: int) -> Iterator[tuple[PlacedWeight, str]]:
            for (extent, size), place in sizes.items():
                if reason := self._uneven(extent, size, ranks):
                    yield place, reason
            if 0 < self.most < ranks:
                place = next(each for each in places if each.experts)
                yield place, f"the model has only {pluralize(self.most, 'expert')}"

        found = next(problems(self.ranks), None)
        if found is None:
            return
        place, reason = found
        works = counts_that_work(
            lambda ranks: None if any(problems(ranks)) else ranks, min(self.heads.queries, _MOST)
        )
        raise ShardingError(
            f"vLLM cannot divide `{place.weight.name}` of shape "
            f"{list(place.weight.shape)} among {pluralize(self.ranks, 'rank')}: {reason}",
            hint=f"{ranks_that_work(works)}; other numbers of ranks need --layout ranks "
            '(layout="ranks" in Python)',
        )

    def _range(self, run: SharedRun, rank: int) -> Range:
        size, ranks = run.stop - run.start, self.ranks
        if run.extent == "keys" and self.heads.keys < ranks:
            # Several ranks get the same KV head.
            rank //= ranks // self.heads.keys
            ranks = self.heads.keys
        each = (_pad_rows(size) if run.extent == "vocabulary" else size) // ranks
        return run.start + min(rank * each, size), run.start + min((rank + 1) * each, size)

    def _uneven(self, extent: Extent, size: int, ranks: int) -> str:
        """Return the reason why an extent cannot be divided evenly; empty if it can."""
        queries, keys = self.heads[:2]
        if extent == "queries":
            return (
                f"{pluralize(queries, 'query head')} cannot be divided evenly"
                if queries % ranks
                else ""
            )
        if extent == "keys":
            reason = (
                f"the number of KV heads, {keys}, is neither a multiple nor a divisor of the "
                "number of ranks"
            )
            return reason if keys % ranks and ranks % keys else ""
        if extent == "vocabulary":
            rows = _pad_rows(size)
            reason = (
                f"{size} rows, padded to {rows} (a multiple of {PADDED_TO}), cannot be "
                "divided evenly"
            )
            return reason if rows % ranks else ""
        return f"{size} elements cannot be divided evenly" if size % ranks else ""


def _pad_rows(rows: int) -> int:
    return -(-rows // PADDED_TO) * PADDED_TO
