"""The check `values`: each tensor matches the reference's within the error of its encoding."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

from weightctl.families.matching import OUTPUT_WEIGHT
from weightctl.families.mtp import names_by_mtp_layer
from weightctl.text.wording import number, percent, pluralize
from weightctl.verify.checks.values.sentences import (
    describe_fault,
    describe_unlike,
    fold_problems,
    is_comparable,
    note_alike,
)
from weightctl.verify.compare.causes import CAUSES
from weightctl.verify.compare.causes.mistakes import TRANSPOSED
from weightctl.verify.compare.distance import is_within
from weightctl.verify.compare.explaining import PATIENCE, explain
from weightctl.verify.compare.measure import measure_pairs
from weightctl.verify.compare.mismatch import explain_unpaired
from weightctl.verify.figures import (
    TensorError,
    ValuesFigures,
    describe_differences,
    describe_range,
    list_unequal,
)
from weightctl.verify.results import Explanation, Problem, Result

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from weightctl.verify.compare.distance import Measured
    from weightctl.verify.compare.pairing import Pair, Pairing
    from weightctl.verify.request import Request


__all__ = ["check"]


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
_OUTPUTS = {OUTPUT_WEIGHT, "lm_head.weight"}


def check(request: Request) -> Result:
    """Compare all tensors with the reference's, in chunks.

    A tensor is a problem if only one side has it, or if it differs by more than its encodings
    explain, or by more than the request's limit. Tensors that differ without changing the model's
    results are notes. If the two models are different, tensors are not compared.
    """
    if why := _explain_skip(request):
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
    fit = [pair for pair in pairs if is_comparable(pair)]
    if mismatch is not None and not fit:
        return Result(problems=(mismatch.problem,), skipped=mismatch.short)
    wrong = _Wrong(request)
    alone: list[Problem] = []
    if mismatch is not None:
        # The mismatch already reports the tensors that are cut, missing or renamed.
        alone = [mismatch.problem]
    else:
        alone = [] if request.layers is not None else list(_report_unpaired(pairing))
        wrong.problems += _list_unlike(pairs)
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
        notes=tuple(note_alike(wrong.alike)),
    )


def _explain_skip(request: Request) -> str:
    """Return the reason why tensors cannot be compared; empty if they can."""
    if request.reference is None:
        return "there is no reference: --against PATH"
    return explain_unpaired(request.subject, request.reference)


def _list_unlike(pairs: Sequence[Pair]) -> Iterator[tuple[Pair, Problem]]:
    """Yield the pairs whose values cannot be compared and that differ, with their problems.

    Either their shapes or encodings differ, or their bytes differ if they are not real numbers.
    """
    for pair in pairs:
        text = "" if is_comparable(pair) else describe_unlike(pair)
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
    with closing(measure_pairs(pairs, progress, request=request)) as made:
        for pair, measured in zip(pairs, made, strict=True):
            pairing.within[pair.module] = is_within(pair, measured)
            if _is_forgotten(pair, pairing) and not pairing.within[pair.module]:
                alone.append(_report_missing(_name_output(pair, pairing)))
                continue
            is_problem = not request.compare and wrong.add(pair, measured)
            errors[pair.module] = _make_figures(pair, measured, is_problem=is_problem)
    return errors


class _Wrong:
    """The tensors that differ from their references.

    `problems` has the tensors that are problems. `alike` has those whose difference does not change
    the model's results, with the cause. `has_damage` says whether a tensor has values that are
    finite on one side only.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self._unexplained = 0
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
        cause = explain(pair, pairing, found) if self._unexplained < PATIENCE else None
        self._unexplained = 0 if cause is not None else self._unexplained + 1
        # A limit that the request sets applies to these tensors too.
        is_same = cause is not None and CAUSES[cause.name].computes_the_same
        if cause is not None and is_same and request.max_rmse is None:
            pairing.within[pair.module] = True
            self.alike.append((pair, cause))
            return False
        self.problems.append((pair, _make_problem(pair, text, cause)))
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


def _report_unpaired(pairing: Pairing) -> Iterator[Problem]:
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


def _is_forgotten(pair: Pair, pairing: Pairing) -> bool:
    """Whether the pair is the output, and the checkpoint has only an embedding in its place."""
    own = pairing.checkpoint
    return pair.module == OUTPUT_WEIGHT and own is not None and OUTPUT_WEIGHT not in own.tensors


def _name_output(pair: Pair, pairing: Pairing) -> str:
    own = pairing.checkpoint
    name = None if own is None or pair.names is None else pair.names.name(own.convention)
    return name or pair.name


def _make_problem(pair: Pair, text: str, cause: Explanation | None) -> Problem:
    if pair.expert is not None:
        text = f"expert {pair.expert}: {text}"
    return Problem(where=pair.name, text=text, cause=cause)


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
    is_above_cost = median(_times_cost(error) for error in errors) >= _ABOVE_COST
    return len(similar) >= _SIMILAR * len(errors) and is_above_cost and middle < limit


def _times_cost(error: TensorError) -> float:
    return error.relative_rmse / max(error.expected, 1e-12)
