"""Measures the tensors of a checkpoint for `stat`, and groups those of several layers."""

from __future__ import annotations

import re
from math import nan
from typing import TYPE_CHECKING, NamedTuple

from weightctl.cli.contents import kind
from weightctl.cli.outline import join_ranges
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from weightctl.cli.contents import Contents
    from weightctl.values import Statistics, ValueCounts
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import TensorInfo

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.)")
# The number of ranges of a histogram.
BINS = 24


class MeasuredRow(NamedTuple):
    """Tensors that are shown in one row, and figures of all their values.

    `bins` counts the values in equal ranges from -`limit` to `limit`. `rank` is the mean effective
    rank of the tensors, or NaN if it was not estimated. `members` has the rows of single tensors,
    if they were asked for.
    """

    infos: list[TensorInfo]
    encoding: str
    found: Statistics
    bins: list[int]
    limit: float
    rank: float
    members: list[MeasuredRow]

    @property
    def name(self) -> str:
        """The name; names that differ only in numbers are one: `layers.[0-27].norm.weight`."""
        names = [info.name for info in self.infos]
        if len(names) == 1:
            return names[0]
        places = zip(*(_NUMBER.findall(name) for name in names), strict=True)
        texts = iter([join_ranges(sorted({*place}, key=int)) for place in places])
        return _NUMBER.sub(lambda _: next(texts), names[0])


def list_tensors(contents: Contents) -> tuple[list[ReadableTensor], list[str]]:
    """Return the listed weights with real values, and the names of the other listed tensors."""
    from weightctl.schemes.dequantize import dequantize_weights
    from weightctl.values import can_measure
    from weightctl.weights.derived import tensor_of
    from weightctl.weights.tree import source_of

    weights = dequantize_weights(contents.weights, in_blocks=False, keeps_shapes=True)
    source = source_of(weights)
    found = [each for name, each in header_of(weights).tensors.items() if name in contents.entries]
    wanted = [each for each in found if can_measure(each.encoding) and each.size]
    names = {each.name for each in wanted}
    skipped = [each.name for each in found if each.name not in names]
    return [tensor_of(source, each.name) for each in wanted], skipped


def measure(
    contents: Contents,
    tensors: Sequence[ReadableTensor],
    advance: Callable[[int], object] | None,
    threads: int | None,
    *,
    folds: bool,
    ranks: bool,
    members: bool,
) -> Iterator[MeasuredRow]:
    """Yield the rows of tensors; with `folds`, tensors of the same name in several layers are one.

    With `ranks`, effective ranks are estimated. With `members`, rows have those of their tensors.
    """
    from weightctl.values import estimate_rank, has_rank, measure_counts

    groups: dict[object, list[ReadableTensor]] = {}
    for tensor in tensors:
        info = tensor.info
        name = _NUMBER.sub("#", info.name) if folds else info.name
        label = kind(contents.entries[info.name])[0]
        groups.setdefault((name, info.shape, label), []).append(tensor)
    # The counts of a tensor take half a megabyte, so those of one group are kept at a time.
    ordered = [tensor for group in groups.values() for tensor in group]
    counts = measure_counts(ordered, advance, threads=threads)
    for group in groups.values():
        infos = [each.info for each in group]
        label = kind(contents.entries[infos[0].name])[0]
        found = [
            estimate_rank(each, advance) if ranks and has_rank(each) else nan for each in group
        ]
        single: list[MeasuredRow] = []
        total = next(counts)
        if members:
            single.append(_row(infos[:1], label, total, found[0], []))
        for info, rank in zip(infos[1:], found[1:], strict=True):
            each = next(counts)
            if members:
                single.append(_row([info], label, each, rank, []))
            total.add(each)
        yield _row(infos, label, total, sum(found) / len(found), single)


def _row(
    infos: list[TensorInfo],
    label: str,
    counts: ValueCounts,
    rank: float,
    members: list[MeasuredRow],
) -> MeasuredRow:
    bins, limit = counts.histogram(BINS)
    return MeasuredRow(infos, label, counts.statistics(), bins.tolist(), limit, rank, members)
