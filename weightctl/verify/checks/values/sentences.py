"""Sentences about tensors that differ from their references, for one tensor or several."""

from __future__ import annotations

from dataclasses import replace
from math import isnan
from typing import TYPE_CHECKING

from weightctl.codecs import can_decode
from weightctl.text.folding import group_alike
from weightctl.text.wording import percent
from weightctl.translate.copies import is_same
from weightctl.verify.compare.distance import (
    RUN,
    allowed_error,
    expected_error,
    is_within,
    rows_of_runs,
    stored_rows,
)
from weightctl.verify.compare.measure import read_both
from weightctl.verify.results import LISTED_APART, keep_first

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from weightctl.verify.compare.distance import Measured
    from weightctl.verify.compare.pairing import Pair
    from weightctl.verify.results import Explanation, Problem
    from weightctl.weights.info import TensorInfo


# If at most this fraction of the runs exceed their limit, the runs are described, not the error of
# the whole tensor.
_FEW_RUNS = 0.05
_NOTHING = 1e-5
_MOST_PARTS = 3


def is_comparable(pair: Pair) -> bool:
    """Whether both tensors have the same shape and real numbers that weightctl can decode."""
    mine, theirs = pair.tensor.info, pair.reference.info
    return mine.shape == theirs.shape and _is_of_numbers(mine) and _is_of_numbers(theirs)


def describe_unlike(pair: Pair) -> str:
    """Describe how two tensors that are not comparable differ; empty if they do not.

    If their shapes and encodings are equal, their bytes are compared.
    """
    mine, theirs = pair.tensor.info, pair.reference.info
    if mine.shape != theirs.shape:
        return f"has shape {list(mine.shape)}, and the reference {list(theirs.shape)}"
    if mine.encoding != theirs.encoding:
        if _is_of_numbers(mine) or _is_of_numbers(theirs):
            return f"has the encoding {mine.encoding}, and the reference {theirs.encoding}"
        return ""
    return "" if is_same(pair.tensor, pair.reference) else "differs from the reference"


def describe_fault(pair: Pair, found: Measured, most: float | None) -> str:
    """Describe what is wrong with the values of a tensor; empty if they match the reference.

    `most` is the limit of the relative RMSE, None for the limit that follows from the encodings.
    """
    if found.nonfinite:
        return _describe_nonfinite(pair, found)
    if most is not None:
        if found.relative_rmse > most:
            return f"relative RMSE {percent(found.relative_rmse)}, above {percent(most)}"
        return ""
    if is_within(pair, found):
        return ""
    is_far = found.relative_rmse > allowed_error(pair, found)
    beyond, count = (found.beyond, found.runs_beyond)
    if is_far and not 0 < count <= _FEW_RUNS * found.runs:
        return f"relative RMSE {percent(found.relative_rmse)}, {_say_times(pair, found)}"
    how = f"up to {found.worst:.0f} times more than {_name_coarser(pair)} explains"
    if _is_plain_twice(pair):
        how = f"from the reference, though {_name_encodings(pair)}"
    if not count:
        beyond, count = found.unequal, found.runs_unequal
        how = "from the reference, and all other groups are equal"
    rows = stored_rows(pair, rows_of_runs(pair, beyond))
    where = f"row {rows[0]}" if len(rows) == 1 else f"{len(rows)} rows, first row {rows[0]}"
    groups = "1 group" if count == 1 else f"{count} groups"
    return f"{groups} of {RUN} values in {where} {'differs' if count == 1 else 'differ'} {how}"


def _describe_nonfinite(pair: Pair, found: Measured) -> str:
    place = found.first_nonfinite
    row = stored_rows(pair, rows_of_runs(pair, [place // RUN]))[0]
    count = found.nonfinite
    where = "here but not in the reference"
    if found.nonfinite_there == count:
        where = "in the reference but not here"
    elif found.nonfinite_there:
        where = "either here or in the reference"
    if count > 1:
        return f"{count:,} values are NaN or infinite {where}, the first in row {row}"
    is_nan = any(isnan(each[0]) for each in read_both(pair, place, 1))
    kind = "NaN" if is_nan else "infinite"
    return f"1 value is {kind} {where}, in row {row}"


def _is_plain_twice(pair: Pair) -> bool:
    """Whether both tensors have the same encoding in full precision."""
    one, other = pair.sides
    return one == other and one.encoding.block == 1 and one.bits == 8 * one.encoding.size


def _name_encodings(pair: Pair) -> str:
    return f"both are {pair.tensor.info.encoding}"


def _say_times(pair: Pair, found: Measured) -> str:
    usual = expected_error(pair, found)
    if pair.sides[0].keeps_all and usual < _NOTHING:
        return "expected 0"
    if _is_plain_twice(pair):
        return f"expected 0 because {_name_encodings(pair)}"
    times = found.relative_rmse / usual
    return f"{times:.0f} times the expected {percent(usual)} of {_name_coarser(pair)}"


def _name_coarser(pair: Pair) -> str:
    """Return the name of the encoding with fewer bits; for a scheme, its bits per value."""
    is_own = pair.bits <= pair.reference_bits
    bits, tensor = (pair.bits, pair.tensor) if is_own else (pair.reference_bits, pair.reference)
    encoding = tensor.info.encoding
    if bits == encoding.size * 8 / encoding.block:
        return str(encoding)
    return f"{bits:.3g} bits per value"


def _is_of_numbers(info: TensorInfo) -> bool:
    return info.encoding.is_known and info.encoding.is_real and can_decode(info.encoding)


def fold_problems(problems: Iterable[tuple[Pair, Problem]]) -> Iterator[Problem]:
    """Yield problems, with many problems of the same cause joined into one.

    If many problems have no cause, only the first are yielded, and one that counts the others. The
    order is that of the first problem of each cause.
    """
    for group in group_alike(problems, lambda each: each[1].cause):
        if group[0][1].cause is not None and len(group) > LISTED_APART:
            yield _fold(group)
        else:
            found = [problem for _, problem in group]
            yield from keep_first(found, "{} more tensors differ as much")


def note_alike(alike: Iterable[tuple[Pair, Explanation]]) -> Iterator[str]:
    """Yield a note for each cause of differences that do not change the model's results."""
    for group in group_alike(alike, lambda each: each[1]):
        pairs = [pair for pair, _ in group]
        cause = group[0][1]
        yield f"{_name_problem(pairs)} {'differ' if len(pairs) > 1 else 'differs'}: {cause.text}"


def _fold(group: Sequence[tuple[Pair, Problem]]) -> Problem:
    _, first = group[0]
    named = _name_problem([pair for pair, _ in group])
    text = f"{first.text}; in all, {len(group)} tensors differ in this way: {named}"
    return replace(first, text=text)


def _name_problem(pairs: Sequence[Pair]) -> str:
    """Return the names, without layer, of the weights in some pairs, and the layers as text."""
    parts = dict.fromkeys(each.part.removesuffix(".weight") for each in pairs)
    named = ", ".join(list(parts)[:_MOST_PARTS]) + (", ..." if len(parts) > _MOST_PARTS else "")
    layers = sorted({each.layer for each in pairs if each.layer is not None})
    return f"{named}{_say_layers(layers)}"


def _say_layers(layers: Sequence[int]) -> str:
    if not layers:
        return ""
    if len(layers) == 1:
        return f" of layer {layers[0]}"
    if list(layers) == list(range(layers[0], layers[-1] + 1)):
        return f" of layers {layers[0]} to {layers[-1]}"
    return f" of {len(layers)} layers from {layers[0]} to {layers[-1]}"
