"""Measures the tensors of a checkpoint, as `weightctl stat` does."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from math import nan
from typing import TYPE_CHECKING, NamedTuple

from weightctl.inspection.contents import kind, read_contents
from weightctl.system.phases import announce
from weightctl.text.rows import Tabular
from weightctl.text.wording import join_ranges
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from weightctl.inspection.contents import Contents
    from weightctl.values import Statistics, ValueCounts
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import TensorInfo
    from weightctl.weights.protocol import Openable

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.)")
# The number of ranges of a histogram.
BINS = 24


class MeasuredRow(NamedTuple):
    """Tensors that are shown in one row, and figures of all their values.

    `bins` counts the values in equal ranges from -`limit` to `limit`. `rank` is the mean effective
    rank of the tensors, or NaN if it was not estimated. `members` has the rows of single tensors,
    if they were asked for. Of several tensors, `nonfinite` has the names of those with
    values that are not finite. `largest` is the name of the tensor with the largest magnitude.
    """

    infos: list[TensorInfo]
    encoding: str
    found: Statistics
    bins: list[int]
    limit: float
    rank: float
    members: Sequence[MeasuredRow] = ()
    nonfinite: Sequence[str] = ()
    largest: str = ""

    @property
    def name(self) -> str:
        """The name; names that differ only in numbers are one: `layers.[0-27].norm.weight`."""
        names = [info.name for info in self.infos]
        if len(names) == 1:
            return names[0]
        places = zip(*(_NUMBER.findall(name) for name in names), strict=True)
        texts = iter([join_ranges(sorted({*place}, key=int)) for place in places])
        return _NUMBER.sub(lambda _: next(texts), names[0])


@dataclass(frozen=True, slots=True)
class Histogram:
    """The numbers of values in equal ranges from -`limit` to `limit`."""

    limit: float
    counts: Sequence[int]


@dataclass(frozen=True, slots=True)
class MeasuredTensor:
    """The statistics of the finite values of a tensor; they are NaN if there are none.

    `count` is the number of all values. `std` is the standard deviation, and `abs_p50` to
    `abs_p99_9` are percentiles of magnitudes. `outliers` is the share of values that are more than
    6 standard deviations from the mean. `effective_rank` is NaN if it was not estimated.
    """

    name: str
    shape: tuple[int, ...]
    encoding: str
    count: int
    min: float
    max: float
    mean: float
    std: float
    abs_p50: float
    abs_p99: float
    abs_p99_9: float
    outliers: float
    zeros: int
    nans: int
    infinities: int
    effective_rank: float
    histogram: Histogram


@dataclass(frozen=True, slots=True)
class MeasuredCheckpoint(Tabular):
    """The statistics of a checkpoint's tensors; `path` is empty for a tree without a path.

    `skipped` are the names of listed tensors that have no floating-point values.
    """

    path: str
    format: str
    tensors: tuple[MeasuredTensor, ...]
    skipped: Sequence[str]

    def _records(self) -> Sequence[MeasuredTensor]:
        return self.tensors


def stat(
    source: Openable,
    *,
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    ranks: bool = False,
    threads: int | None = None,
    source_format: str | None = None,
    progress: Callable[[int], object] | None = None,
) -> MeasuredCheckpoint:
    """Measure the values of tensors, in one pass over the file.

    `source` is a path, a URL, a tree of weights, or a mapping of names to arrays. `include` and
    `exclude` are patterns of names. With `ranks`, effective ranks are estimated. `progress` is
    called with the number of bytes of each chunk. Raises the errors of `open_weights`, and
    `EncodingError` for a tensor that cannot be decoded.
    """
    contents = read_contents(source, include, exclude, source_format)
    tensors, skipped = list_tensors(contents)
    total = sum(each.info.nbytes for each in tensors) * (2 if ranks else 1)
    announce(progress, "measuring values", total)
    rows = measure(contents, tensors, progress, threads, folds=False, ranks=ranks, members=False)
    path = os.fspath(source) if isinstance(source, str | os.PathLike) else ""
    return describe_rows(path, contents, rows, skipped)


def describe_rows(
    path: str, contents: Contents, rows: Iterable[MeasuredRow], skipped: Sequence[str]
) -> MeasuredCheckpoint:
    """Return the statistics of rows that have one tensor each."""
    measured = tuple(map(_describe_row, rows))
    return MeasuredCheckpoint(path, header_of(contents.weights).format, measured, skipped)


def _describe_row(row: MeasuredRow) -> MeasuredTensor:
    (info,) = row.infos
    found = row.found
    half, most, nearly_all = found.percentiles
    return MeasuredTensor(
        name=info.name,
        shape=tuple(info.shape),
        encoding=row.encoding,
        count=found.size,
        min=found.least,
        max=found.most,
        mean=found.mean,
        std=found.std,
        abs_p50=half,
        abs_p99=most,
        abs_p99_9=nearly_all,
        outliers=found.outliers,
        zeros=found.zeros,
        nans=found.nans,
        infinities=found.infinities,
        effective_rank=row.rank,
        histogram=Histogram(row.limit, row.bins),
    )


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
        nonfinite: list[str] = []
        largest: tuple[float, str] = (-1.0, "")
        total: ValueCounts | None = None
        for info, rank in zip(infos, found, strict=True):
            each = next(counts)
            if len(group) > 1:  # the row of a single tensor needs no names
                nonfinite += [info.name] if each.has_nonfinite() else []
                largest = max(largest, (each.find_largest(), info.name))
            if members:
                single.append(_row([info], label, each, rank))
            if total is None:
                total = each
            else:
                total.add(each)
        if total is not None:
            row = _row(infos, label, total, sum(found) / len(found))
            yield row._replace(
                members=single, nonfinite=nonfinite, largest=largest[1] or infos[0].name
            )


def _row(
    infos: list[TensorInfo],
    label: str,
    counts: ValueCounts,
    rank: float,
) -> MeasuredRow:
    bins, limit = counts.histogram(BINS)
    return MeasuredRow(infos, label, counts.statistics(), bins.tolist(), limit, rank)
