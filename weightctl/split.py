"""Arithmetic for cutting a tensor into the shards of ranks."""

from __future__ import annotations

from itertools import accumulate, groupby, pairwise
from math import lcm
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from weightctl.errors import ShardingError, TensorSplitError
from weightctl.text.wording import pluralize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

# The first element along an axis, and the element after the last.
Range: TypeAlias = "tuple[int, int]"


class Cut(NamedTuple):
    """The ranges of elements along an axis that a rank gets, in order and without overlap."""

    axis: int
    ranges: tuple[Range, ...]

    @property
    def size(self) -> int:
        """The number of elements."""
        return sum(stop - start for start, stop in self.ranges)


# The elements of a tensor that a rank gets: those inside all cuts, each along one axis. Without
# cuts it is the whole tensor.
Part: TypeAlias = "tuple[Cut, ...]"


class Sharding(NamedTuple):
    """How a tensor is cut: the part of each rank, None for a rank that gets nothing of it.

    Every element is on at least one rank. `strategy` is the name of the way to cut.
    """

    strategy: str
    parts: tuple[Part | None, ...]

    def shape(self, whole: Sequence[int], rank: int) -> tuple[int, ...] | None:
        """Return the shape of a rank's shard of a tensor of shape `whole`; None if it has none."""
        part = self.parts[rank]
        return None if part is None else part_shape(whole, part)


def part_shape(whole: Sequence[int], part: Part) -> tuple[int, ...]:
    """Return the shape of a part of a tensor of shape `whole`."""
    sizes = {cut.axis: cut.size for cut in part}
    return tuple(sizes.get(axis, size) for axis, size in enumerate(whole))


class Grid(NamedTuple):
    """The arrangement of ranks: `tp` tensor parallel, `ep` expert parallel, `pp` pipeline parallel.

    Ranks are numbered with `tp` varying fastest and `pp` slowest. Weights other than experts are
    the same in each of the `ep` groups.
    """

    tp: int = 1
    ep: int = 1
    pp: int = 1

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.tp * self.ep * self.pp

    @property
    def degrees(self) -> str:
        """The degrees above 1 as text: `tp 2 x pp 4`; empty for one rank."""
        return " x ".join(f"{name} {size}" for name, size in self._asdict().items() if size > 1)

    def __str__(self) -> str:
        ranks = pluralize(self.ranks, "rank")
        return f"{ranks}: {self.degrees}" if self.degrees else ranks

    def place(self, rank: int) -> tuple[int, int, int]:
        """Return the position of a rank along `tp`, `ep` and `pp`."""
        rest, tensor = divmod(rank, self.tp)
        stage, expert = divmod(rest, self.ep)
        return tensor, expert, stage


class Heads(NamedTuple):
    """The attention heads: the number of query heads, the number of KV heads, and the head size."""

    queries: int
    keys: int
    size: int
    plain: int = 0  # of a key, the numbers that are made of a latent vector
    value: int = 0  # the size of a value that is
    called: tuple[str, str] = ("query head", "KV head")  # in messages

    def __str__(self) -> str:
        queries, keys = map(pluralize, self[:2], self.called)
        return f"{queries}{f' and {keys}' * (self.keys != self.queries)} (head size {self.size})"

    def ranges(
        self, ranks: int, *, block: int = 1, key_block: int = 1
    ) -> list[tuple[Range, Range]] | None:
        """Return the range of query elements, and that of key (or value) elements, of each rank.

        No block is split. Returns None if `head_ranges` does.
        """
        size = self.size
        step, key_step = (lcm(each, size) // size for each in (block, key_block))
        shared = head_ranges(self.queries, self.keys, ranks, step=step, kv_step=key_step)
        if shared is None:
            return None
        return [
            ((first * size, last * size), (key * size, key_last * size))
            for (first, last), (key, key_last) in shared
        ]


class Whole(NamedTuple):
    """A tensor to be cut; `blocks` has the number of elements that stay together, per axis."""

    name: str
    shape: tuple[int, ...]
    blocks: tuple[int, ...]


def shares(count: int, ranks: int) -> list[Range]:
    """Divide items in order and as evenly as possible: the first ranks get one more."""
    least, more = divmod(count, ranks)
    return list(pairwise(accumulate((least + (rank < more) for rank in range(ranks)), initial=0)))


def unit_ranges(size: int, unit: int, ranks: int) -> list[Range] | None:
    """Divide `size` elements in whole units; the last unit may be smaller.

    Returns None if there are fewer units than ranks: no rank may be empty.
    """
    units = -(-size // unit)
    if units < ranks:
        return None
    return [(first * unit, min(last * unit, size)) for first, last in shares(units, ranks)]


def head_ranges(
    heads: int, kv_heads: int, ranks: int, *, step: int = 1, kv_step: int = 1
) -> list[tuple[Range, Range]] | None:
    """Divide query heads among ranks, together with the KV heads that they use.

    Ranges start at multiples of `step` query heads and `kv_step` KV heads, for blocks that are
    longer than a head. If there are fewer KV heads than ranks, several ranks get the same KV head
    and divide its query heads. Returns None if a rank would be empty, or if the KV heads of a rank
    would not have the same number of query heads.
    """
    group = heads // kv_heads
    if ranks <= kv_heads:
        unit = lcm(lcm(step, group) // group, kv_step)
        shared = unit_ranges(kv_heads, unit, ranks)
        if shared is None:
            return None
        return [((first * group, last * group), (first, last)) for first, last in shared]
    each, rest = divmod(ranks, kv_heads)
    own = unit_ranges(group, step, each)
    is_whole = kv_heads == 1 or (group % step == 0 and kv_step == 1)
    if rest or own is None or not is_whole:
        return None
    return [
        ((kv * group + first, kv * group + last), (kv, kv + 1))
        for kv in range(kv_heads)
        for first, last in own
    ]


def replicate(whole: Whole, ranks: int) -> Sharding:
    """Give every rank the whole tensor."""
    del whole
    return Sharding("replicate", ((),) * ranks)


def axiswise(whole: Whole, ranks: int, axis: int) -> Sharding:
    """Cut along an axis, on block boundaries; the first ranks get one more block."""
    name = {0: "rowwise", 1: "columnwise"}.get(axis, f"axis {axis}")
    return _cut_segments(name, whole, ranks, axis, None)


def rowwise(whole: Whole, ranks: int) -> Sharding:
    """Cut along the first axis: output features, the rows of a matrix."""
    return axiswise(whole, ranks, 0)


def columnwise(whole: Whole, ranks: int) -> Sharding:
    """Cut along the second axis: input features, the columns of a matrix."""
    return axiswise(whole, ranks, 1)


def expert_parallel(whole: Whole, ranks: int) -> Sharding:
    """Divide experts that are stacked along the first axis; no expert is cut."""
    return rowwise(whole, ranks)._replace(strategy="expert_parallel")


def segmented(whole: Whole, ranks: int, sizes: Sequence[int], axis: int = 0) -> Sharding:
    """Cut each segment of an axis separately; each rank gets a range of every segment."""
    return _cut_segments("segmented", whole, ranks, axis, sizes)


def gate_up(whole: Whole, ranks: int, axis: int = 0) -> Sharding:
    """Cut each half of an axis separately: the gate rows and the up rows."""
    size = _size(whole, ranks, axis)
    if size % 2:
        raise _cannot_cut(
            whole, ranks, axis, f"its {size} rows cannot be divided into two halves", None
        )
    return _cut_segments("gate_up", whole, ranks, axis, (size // 2, size // 2))


def stacked_qkv(
    whole: Whole, ranks: int, *, heads: int, kv_heads: int, head_dim: int, axis: int = 0
) -> Sharding:
    """Cut rows of queries, keys and values, stored one after the other, by heads.

    KV heads are replicated if there are fewer KV heads than ranks.
    """
    size, block = _size(whole, ranks, axis), whole.blocks[axis]
    found = Heads(heads, kv_heads, head_dim)
    _require_heads(whole, ranks, axis, found)
    starts = (0, heads * head_dim, (heads + kv_heads) * head_dim)
    if size != starts[2] + kv_heads * head_dim:
        reason = (
            f"it has {size} rows, but {heads} + 2 x {kv_heads} heads of {head_dim} need "
            f"{(heads + 2 * kv_heads) * head_dim}"
        )
        raise _cannot_cut(whole, ranks, axis, reason, None)

    def find_ranges(count: int) -> list[tuple[Range, Range]] | None:
        if count > 1 and any(start % block for start in starts):
            return None
        return found.ranges(count, block=block, key_block=block)

    shared = find_ranges(ranks)
    if shared is None:
        works = counts_that_work(find_ranges, heads)
        raise _cannot_cut(whole, ranks, axis, _describe_heads(found, block), works)
    ranges = [
        [
            (start + first, start + last)
            for start, (first, last) in zip(starts, (queries, keys, keys), strict=True)
        ]
        for queries, keys in shared
    ]
    return Sharding("stacked_qkv", tuple(part_along(axis, size, each) for each in ranges))


def head_aware_columnwise(
    whole: Whole,
    ranks: int,
    *,
    heads: int,
    head_dim: int,
    kv_heads: int | None = None,
    axis: int = 1,
) -> Sharding:
    """Cut the columns of the output projection of attention by heads.

    With `kv_heads`, the query heads are divided as `stacked_qkv` divides them.
    """
    size, block = _size(whole, ranks, axis), whole.blocks[axis]
    found = Heads(heads, heads if kv_heads is None else kv_heads, head_dim)
    _require_heads(whole, ranks, axis, found)
    if size != heads * head_dim:
        raise _cannot_cut(
            whole,
            ranks,
            axis,
            f"the axis has {size} elements, but {heads} heads of size {head_dim} need "
            f"{heads * head_dim}",
            None,
        )

    def find_ranges(count: int) -> list[tuple[Range, Range]] | None:
        return found.ranges(count, block=block)

    shared = find_ranges(ranks)
    if shared is None:
        works = counts_that_work(find_ranges, heads)
        raise _cannot_cut(whole, ranks, axis, _describe_heads(found, block), works)
    parts = (part_along(axis, size, [queries]) for queries, _ in shared)
    return Sharding("head_aware_columnwise", tuple(parts))


def counts_that_work(found: Callable[[int], object | None], most: int) -> list[int]:
    """Return the numbers of ranks up to `most` for which `found` does not return None."""
    return [count for count in range(1, most + 1) if found(count) is not None]


def ranks_that_work(counts: Sequence[int]) -> str:
    """Return the numbers of ranks that work as text: `1 to 4 or 6 ranks work`."""
    return f"{join_counts(counts)} {'rank works' if list(counts) == [1] else 'ranks work'}"


def join_counts(counts: Sequence[int]) -> str:
    """Join numbers of ranks as text, with ranges of consecutive numbers: `1 to 4, 6 or 8`."""
    texts: list[str] = []
    for _, group in groupby(enumerate(counts), lambda pair: pair[1] - pair[0]):
        run = [count for _, count in group]
        texts += [f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run)
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} or {texts[-1]}"


def _cut_segments(
    name: str, whole: Whole, ranks: int, axis: int, sizes: Sequence[int] | None
) -> Sharding:
    size, block = _size(whole, ranks, axis), whole.blocks[axis]
    segments = [size] if sizes is None else list(sizes)
    if sum(segments) != size or min(segments, default=0) < 0:
        reason = f"the segments {' + '.join(map(str, segments))} do not add up to {size} elements"
        raise _cannot_cut(whole, ranks, axis, reason, None)
    starts = [0, *accumulate(segments)][:-1]
    units = min((-(-each // block) for each in segments), default=0)
    if any(start % block for start in starts):
        units = 1
    if ranks > max(units, 1):
        are = pluralize(units, "block" if block > 1 else "element")
        are += f" of {block} elements" if block > 1 else ""
        of = "the axis has" if len(segments) == 1 else "a segment has"
        raise _cannot_cut(whole, ranks, axis, f"{of} only {are}", list(range(1, max(units, 1) + 1)))
    shared = [unit_ranges(each, block, ranks) or [(0, each)] for each in segments]
    parts = [
        [(start + ranges[rank][0], start + ranges[rank][1])
         for start, ranges in zip(starts, shared, strict=True)]
        for rank in range(ranks)
    ]  # fmt: skip
    return Sharding(name, tuple(part_along(axis, size, each) for each in parts))


def part_along(axis: int, size: int, ranges: Iterable[Range]) -> Part:
    """Return the cut along an axis, with adjacent ranges joined; empty for the whole axis."""
    joined: list[Range] = []
    for start, stop in ranges:
        if start == stop:
            continue
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return () if joined == [(0, size)] else (Cut(axis, tuple(joined)),)


def _size(whole: Whole, ranks: int, axis: int) -> int:
    if ranks < 1:
        raise ShardingError(f"{ranks} is not a valid number of ranks", hint="use at least 1")
    if not 0 <= axis < len(whole.shape):
        raise ShardingError(
            f"`{whole.name}` of shape {list(whole.shape)} has no axis {axis}",
            hint="use `replicate` to give all ranks the whole tensor",
        )
    return whole.shape[axis]


def _require_heads(whole: Whole, ranks: int, axis: int, heads: Heads) -> None:
    """Raise `ShardingError` unless each KV head has the same number of query heads."""
    queries, keys = heads[:2]
    if min(heads[:3]) < 1 or queries % keys:
        reason = f"{queries} query heads cannot be divided evenly among {keys} KV heads"
        raise _cannot_cut(whole, ranks, axis, reason, None)


def _describe_heads(heads: Heads, block: int) -> str:
    return f"the model has {heads}" + (f", in blocks of {block} elements" if block > 1 else "")


def _cannot_cut(
    whole: Whole, ranks: int, axis: int, reason: str, works: Sequence[int] | None
) -> ShardingError:
    hint = "" if works is None else ranks_that_work(works)
    return TensorSplitError(whole.name, tuple(whole.shape), axis, ranks, reason, hint=hint)
