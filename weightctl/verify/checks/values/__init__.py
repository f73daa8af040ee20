"""The check `values`: each tensor matches the reference's within the error of its encoding."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from functools import partial
from math import isnan
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from weightctl.families.matching import OUTPUT_WEIGHT
from weightctl.families.mtp import names_by_mtp_layer
from weightctl.text.folding import group_alike
from weightctl.text.wording import number, percent, pluralize
from weightctl.translate.copies import is_same
from weightctl.verify.compare.causes import CAUSES
from weightctl.verify.compare.causes.mistakes import TRANSPOSED
from weightctl.verify.compare.distance import (
    Piece,
    allowed_error,
    expected_error,
    is_within,
    measure_pairs,
    measure_pieces,
    read_both,
    rows_of_runs,
    stored_rows,
)
from weightctl.verify.compare.explaining import CauseSearch
from weightctl.verify.compare.mismatch import explain_unpaired
from weightctl.verify.compare.pairing import RUN, is_of_numbers
from weightctl.verify.figures import (
    TensorError,
    ValuesFigures,
    describe_differences,
    describe_range,
    list_unequal,
)
from weightctl.verify.results import LISTED_APART, Explanation, Problem, Result, keep_first

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from weightctl.verify.compare.distance import Measured
    from weightctl.verify.compare.pairing import Pair, Pairing
    from weightctl.verify.request import Request


# The hint for a tensor whose error is above the limit of the request, and usual for its type.
_USUAL = (
    "the error is usual for the tensor's type: quantize it to a larger type, or use a higher limit"
)
_BIAS_DROPPED = Explanation("bias_dropped", "biases were left out when the checkpoint was written")
_FORGOTTEN = Explanation(
    "output_forgotten",
    "the output was left out when the checkpoint was written, and is not a copy of the embedding",
)
_MTP_LOST = Explanation(
    "mtp_lost",
    "the layer was left out when the checkpoint was written; the other layers compute the same "
    "without it",
)
# Types with at least this many bits per value are not quantized.
_PLAIN_BITS = 16
_WIDE = (
    "the file says that values were rounded with error feedback, so errors of up to 8 times the "
    "usual ones are accepted; `verify --prove --imatrix FILE` shows whether it is true"
)
_OUTPUTS = {OUTPUT_WEIGHT, "lm_head.weight"}


def check(request: Request) -> Result:
    """Compare all tensors with the reference's, in chunks.

    A tensor is a problem if only one side has it, or if it differs by more than its encodings
    explain, or by more than the request's limit. Tensors that differ without changing the model's
    results are notes. If the two models are different, tensors are not compared.
    """
    if why := explain_skip(request):
        return Result(skipped=why)
    mismatch = request.mismatch
    if mismatch is not None and mismatch.pairing is None:
        return Result(problems=(mismatch.problem,))
    pairing = request.pairing
    pairs = [pair for pair in pairing.pairs if request.has_layer(pair.layer)]
    if not pairs and pairing.pairs and request.layers is not None:
        layers = {pair.layer for pair in pairing.pairs} - {None}
        return Result(
            skipped=f"no tensor is in the layers of --layers: the model has {len(layers)} layers, "
            "from 0 on"
        )
    if not pairs and not pairing.missing and not pairing.unexpected:
        return Result(skipped="A and B have no tensor names in common")
    fit = [pair for pair in pairs if pair.is_comparable]
    if mismatch is not None and not fit:
        return Result(problems=(mismatch.problem,), skipped=mismatch.short)
    wrong = _Wrong(request)
    alone: list[Problem] = []
    notes = list[str]()
    if mismatch is not None:
        # The mismatch already reports the tensors that are cut, missing or renamed.
        alone = [] if mismatch.is_of_reference else [mismatch.problem]
        notes += [mismatch.text] if mismatch.is_of_reference else []
    else:
        alone = [] if request.layers is not None else list(report_unpaired(pairing))
        wrong.problems += list_unlike(pairs)
    if any(pair.is_fed_back for pair in fit):
        notes.append(_WIDE)
    errors = _measure(request, fit, wrong, alone)
    overall = _list_differences(list(errors.values())) if request.compare else []
    if explained := _explain_overall(pairing, fit, wrong, errors):
        overall = [explained]
        wrong.keep_outliers(list(errors.values()))
    order = {pair.module: place for place, pair in enumerate(pairs)}
    listed = sorted(wrong.problems, key=lambda each: order[each[0].module])
    return Result(
        problems=(*alone, *overall, *fold_problems(listed)),
        figures=ValuesFigures(
            tensors=tuple(errors.values()), pairing=pairing.how, judged=not request.compare
        ),
        notes=(*notes, *note_alike(wrong.alike)),
    )


def explain_skip(request: Request) -> str:
    """Return the reason why tensors cannot be compared; empty if they can."""
    if request.reference is None:
        return "there is no reference: --against PATH"
    return explain_unpaired(request.subject, request.reference)


def list_unlike(pairs: Sequence[Pair]) -> Iterator[tuple[Pair, Problem]]:
    """Yield the pairs whose values cannot be compared and that differ, with their problems.

    Either their shapes or encodings differ, or their bytes differ if they are not real numbers.
    """
    for pair in pairs:
        text = "" if pair.is_comparable else describe_unlike(pair)
        if text:
            yield pair, _make_problem(pair, text, _explain_shape(pair))


def _measure(
    request: Request, pairs: Sequence[Pair], wrong: _Wrong, alone: list[Problem]
) -> dict[str, TensorError]:
    """Measure pairs, and return their errors by module.

    Problems of differing tensors are added to `wrong`. A missing output is added to `alone`.
    """
    pairing = request.pairing
    errors: dict[str, TensorError] = {}
    progress = partial(request.tell, "values")
    elsewhere = None if request.workers is None else partial(_measure_by_workers, request)
    with closing(measure_pairs(pairs, progress, elsewhere=elsewhere)) as made:
        for pair, measured in zip(pairs, made, strict=True):
            pairing.within[pair.module] = is_within(pair, measured)
            if is_forgotten(pair, pairing) and not pairing.within[pair.module]:
                alone.append(report_forgotten(pair, pairing))
                continue
            is_problem = not request.compare and wrong.add(pair, measured)
            errors[pair.module] = _make_figures(pair, measured, is_problem=is_problem)
    return errors


class PieceUnit(NamedTuple):
    """A range of elements of a pair, which is given by its index in the pairing, for workers."""

    place: int
    start: int
    stop: int


def _measure_by_workers(request: Request, pieces: Sequence[Piece]) -> Iterator[Measured]:
    places = {id(pair): place for place, pair in enumerate(request.pairing.pairs)}
    units = [PieceUnit(places[id(pair)], start, stop) for pair, start, stop in pieces]
    sizes = [piece.nbytes for piece in pieces]
    if request.workers is None:
        raise TypeError("the request has no workers")
    return request.workers.map(_measure_units, units, sizes, lambda _: None)


def _measure_units(request: Request, units: Sequence[PieceUnit]) -> list[Measured]:
    pairs = request.pairing.pairs
    pieces = (Piece(pairs[place], start, stop) for place, start, stop in units)
    with measure_pieces(pieces, threads=1) as made:
        return list(made)


class _Wrong:
    """The tensors that differ from their references.

    `problems` has the tensors that are problems. `alike` has those whose difference does not change
    the model's results, with the cause. `has_damage` says whether a tensor has values that are
    finite on one side only.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self._search = CauseSearch(request.pairing)
        self.has_damage = False
        self.problems: list[tuple[Pair, Problem]] = []
        self.alike: list[tuple[Pair, Explanation]] = []

    def add(self, pair: Pair, found: Measured) -> bool:
        """Add a tensor if it differs, with its cause, and return whether it is a problem."""
        request, pairing = self._request, self._request.pairing
        text = describe_fault(pair, found, request.max_rmse)
        if not text:
            return False
        self.has_damage |= bool(found.nonfinite)
        cause = self._search.explain(pair, found)
        # A limit that the request sets applies to these tensors too.
        is_same = cause is not None and CAUSES[cause.name].computes_the_same
        if cause is not None and is_same and request.max_rmse is None:
            pairing.within[pair.module] = True
            self.alike.append((pair, cause))
            return False
        is_usual = request.max_rmse is not None and not describe_fault(pair, found, None)
        self.problems.append((pair, _make_problem(pair, text, cause, _USUAL if is_usual else "")))
        return True

    def keep_outliers(self, errors: Sequence[TensorError]) -> None:
        """Remove problems without a cause, except those of tensors with by far the largest errors.

        `errors` has the errors of all tensors.
        """
        names = _list_outliers(errors)
        self.problems = [
            (pair, problem)
            for pair, problem in self.problems
            if problem.cause is not None or pair.name in names
        ]


def _explain_overall(
    pairing: Pairing, pairs: Sequence[Pair], wrong: _Wrong, errors: Mapping[str, TensorError]
) -> Problem | None:
    """Return a single problem that explains all differences, or None.

    Its cause becomes the cause of all tensors that differ and have none yet.
    """
    if wrong.has_damage or not wrong.problems or not errors:
        return None
    explained = sum(problem.cause is not None for _, problem in wrong.problems)
    found = _find_explanation(
        list(errors.values()),
        explained + len(wrong.alike),
        is_quantized=any(side.bits < _PLAIN_BITS for pair in pairs for side in pair.sides),
    )
    if found is not None:
        for pair in pairs:
            if pairing.causes.get(pair.module) is None and not pairing.within[pair.module]:
                pairing.causes[pair.module] = found.cause
    return found


def report_unpaired(pairing: Pairing) -> Iterator[Problem]:
    """Yield a problem for each tensor that only one side has.

    A whole layer for multi-token prediction that is missing is one problem.
    """
    missing = pairing.missing
    own, reference = pairing.checkpoint, pairing.reference
    if own is not None and reference is not None:
        for layer, names in names_by_mtp_layer(reference, own.convention).items():
            if names <= set(missing):
                missing = [name for name in missing if name not in names]
                count = pluralize(len(names), "tensor")
                text = f"is missing ({count} of a layer for multi-token prediction, MTP)"
                yield Problem(where=f"layers.{layer}", text=text, cause=_MTP_LOST)
    yield from map(_report_missing, missing)
    for name in pairing.unexpected:
        yield Problem(where=name, text="is not in the reference")


def _report_missing(name: str) -> Problem:
    cause = _BIAS_DROPPED if name.endswith("bias") else None
    return Problem(
        where=name,
        text="is missing, and the reference has it",
        cause=_FORGOTTEN if name in _OUTPUTS else cause,
    )


def is_forgotten(pair: Pair, pairing: Pairing) -> bool:
    """Whether the pair is the output, and the checkpoint has only an embedding in its place."""
    own = pairing.checkpoint
    return pair.module == OUTPUT_WEIGHT and own is not None and OUTPUT_WEIGHT not in own.tensors


def report_forgotten(pair: Pair, pairing: Pairing) -> Problem:
    """Return the problem of an output that the checkpoint does not have."""
    own = pairing.checkpoint
    name = None if own is None or pair.names is None else pair.names.name(own.convention)
    return _report_missing(name or pair.name)


def _make_problem(pair: Pair, text: str, cause: Explanation | None, hint: str = "") -> Problem:
    if pair.expert is not None:
        text = f"expert {pair.expert}: {text}"
    return Problem(where=pair.name, text=text, hint=hint, cause=cause)


def _explain_shape(pair: Pair) -> Explanation | None:
    shape, other = pair.tensor.info.shape, pair.reference.info.shape
    return TRANSPOSED if len(shape) == 2 and shape[::-1] == other else None


def _make_figures(pair: Pair, found: Measured, *, is_problem: bool) -> TensorError:
    return TensorError(
        name=pair.name,
        reference=pair.reference_name,
        part=pair.part,
        layer=pair.layer,
        shape=pair.tensor.info.shape,
        encoding=str(pair.tensor.info.encoding),
        reference_encoding=str(pair.reference.info.encoding),
        relative_rmse=found.relative_rmse,
        max_error=found.max_error,
        cosine=found.cosine,
        expected=found.expected,
        worst=found.worst,
        is_problem=is_problem,
    )


# A model needs at least this number of matrices for a statement about all of them.
_FEWEST = 4
# The fraction of the matrices that must differ, the fraction of these that must differ by similar
# amounts, and the largest factor between similar amounts.
_MOST, _SIMILAR = 0.9, 0.8
_SPREAD = 5.0
# Training changes a matrix by less than this relative RMSE (the second value is for quantized
# models), and by more than this multiple of the encodings' error.
_TRAINED = 0.5
_TRAINED_QUANTIZED = 0.1
_ABOVE_COST = 3.0
# Unrelated matrices have a larger relative RMSE than this, and a smaller cosine.
_UNRELATED, _UNRELATED_COSINE = 0.75, 0.5


def _find_explanation(
    errors: Sequence[TensorError], explained: int, *, is_quantized: bool
) -> Problem | None:
    """Return a single problem that explains the differences of nearly all tensors, or None.

    `explained` is the number of tensors whose difference already has a cause.
    """
    matrices = [error for error in errors if len(error.shape) > 1]
    if len(matrices) < _FEWEST or explained > (1 - _MOST) * len(errors):
        return None
    unequal = list_unequal(matrices)
    if len(unequal) < _MOST * len(matrices):
        return None
    if _are_unrelated(unequal):
        cause = Explanation("different_models", "B is not the original of A")
        text = (
            "A and B are different models: their values have no relation, "
            f"{describe_range(unequal)}"
        )
        return Problem(where="", text=text, cause=cause)
    if _are_trained(unequal, _TRAINED_QUANTIZED if is_quantized else _TRAINED):
        cause = Explanation("training_steps", "A and B were trained for different numbers of steps")
        text = (
            "A and B look like two training steps of one model, or a model and its fine-tune: "
            f"{describe_differences(errors)}"
        )
        return Problem(where="", text=text, cause=cause)
    return None


def _list_outliers(errors: Sequence[TensorError]) -> set[str]:
    """Return the names of tensors whose relative RMSE is more than 5 times the median."""
    limit = _SPREAD * median(error.relative_rmse for error in errors)
    return {error.name for error in errors if error.relative_rmse > limit}


def _list_differences(errors: Sequence[TensorError]) -> list[Problem]:
    """Return a problem for each tensor that differs from the reference, largest error first."""
    unequal = sorted(list_unequal(errors), key=lambda each: each.relative_rmse, reverse=True)
    return [Problem(where=error.name, text=_describe_difference(error)) for error in unequal]


def _describe_difference(error: TensorError) -> str:
    rmse, most = percent(error.relative_rmse), number(error.max_error)
    return f"relative RMSE {rmse}, largest difference {most}"


def _are_unrelated(errors: Sequence[TensorError]) -> bool:
    are_far = [error.relative_rmse > _UNRELATED for error in errors]
    are_apart = [abs(error.cosine) < _UNRELATED_COSINE for error in errors]
    return sum(map(all, zip(are_far, are_apart, strict=True))) >= _MOST * len(errors)


def _are_trained(errors: Sequence[TensorError], limit: float) -> bool:
    """Whether most tensors differ by similar, small amounts that the encodings do not explain."""
    middle = median(error.relative_rmse for error in errors)
    similar = [
        error for error in errors if middle / _SPREAD <= error.relative_rmse <= middle * _SPREAD
    ]
    times = median(error.relative_rmse / max(error.expected, 1e-12) for error in errors)
    return len(similar) >= _SIMILAR * len(errors) and times >= _ABOVE_COST and middle < limit


# Sentences about tensors that differ from their references, for one tensor or several.


# If at most this fraction of the runs exceed their limit, the runs are described, not the error of
# the whole tensor.
_FEW_RUNS = 0.05
_NOTHING = 1e-5
_MOST_PARTS = 3


def describe_unlike(pair: Pair) -> str:
    """Describe how two tensors that are not comparable differ; empty if they do not.

    If their shapes and encodings are equal, their bytes are compared.
    """
    mine, theirs = pair.tensor.info, pair.reference.info
    if mine.shape != theirs.shape:
        return f"has shape {list(mine.shape)}, and the reference {list(theirs.shape)}"
    if mine.encoding != theirs.encoding:
        if is_of_numbers(mine) or is_of_numbers(theirs):
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
    return one == other and one.encoding.block == 1 and not one.is_apart


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
    side = min(pair.sides, key=lambda side: side.bits)
    return f"{side.bits:.3g} bits per value" if side.is_apart else str(side.encoding)


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
