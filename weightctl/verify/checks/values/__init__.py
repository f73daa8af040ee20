"""The check `values`: each tensor is the reference's, but for what its encoding costs."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from weightctl.families.matching import OUTPUT_WEIGHT
from weightctl.verify.checks.values.sentences import (
    describe_fault,
    describe_unlike,
    fold_problems,
    is_comparable,
    note_alike,
)
from weightctl.verify.compare.causes import CAUSES
from weightctl.verify.compare.causes.mistakes import TRANSPOSED
from weightctl.verify.compare.distance import is_within, run_limit
from weightctl.verify.compare.explaining import PATIENCE, explain
from weightctl.verify.compare.measure import measure_pairs
from weightctl.verify.compare.pairs import explain_different_models
from weightctl.verify.figures import TensorError, ValuesFigures
from weightctl.verify.results import Explanation, Problem, Result

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weightctl.verify.compare.distance import Measured
    from weightctl.verify.compare.pairs import Pair, Pairing
    from weightctl.verify.request import Request

__all__ = ["check"]

_BIAS_DROPPED = Explanation("bias_dropped", "biases were left out when the checkpoint was written")
_FORGOTTEN = Explanation(
    "output_forgotten",
    "the output was left out when the checkpoint was written, and is not a copy of the embedding",
)
_OTHER_MODEL = Explanation("different_models", "the reference is not the original of this model")
_OUTPUTS = {OUTPUT_WEIGHT, "lm_head.weight"}


def check(request: Request) -> Result:
    """Compare all tensors with the reference's, streamed.

    Those that are further from it than their encodings cost, or than the limit that the request
    sets, are problems, and so are those that only one side has. Those that differ and compute the
    same are noted. Of different models none is compared.
    """
    if request.reference is None:
        return Result(skipped="there is nothing to compare with: --against PATH")
    if text := explain_different_models(request.subject.checkpoint, request.reference.checkpoint):
        problem = Problem(where="", text=text, cause=_OTHER_MODEL)
        return Result(problems=(problem,))
    pairing = request.pairing
    pairs = [pair for pair in pairing.pairs if request.has_layer(pair.layer)]
    if not pairs and pairing.pairs and request.layers is not None:
        layers = {pair.layer for pair in pairing.pairs} - {None}
        return Result(skipped=f"no tensor is of these layers: there are {len(layers)}, from 0 on")
    if not pairs and not pairing.missing and not pairing.unexpected:
        return Result(skipped="no tensor of one has a name that the other has")
    alone = [] if request.layers is not None else list(_report_unpaired(pairing))
    fit = [pair for pair in pairs if is_comparable(pair)]
    wrong = _Wrong(request)
    errors: list[TensorError] = []
    with closing(measure_pairs(fit, run_limit, lambda done: request.tell("values", done))) as found:
        for pair in pairs:
            if not is_comparable(pair):
                text = describe_unlike(pair)
                if text:
                    wrong.problems.append((pair, _make_problem(pair, text, _explain_shape(pair))))
                continue
            measured = next(found)
            pairing.within[pair.module] = is_within(pair, measured)
            if _is_forgotten(pair, pairing) and not pairing.within[pair.module]:
                alone.append(_report_missing(_name_output(pair, pairing)))
                continue
            is_problem = wrong.add(pair, measured)
            errors.append(_make_figures(pair, measured, is_problem=is_problem))
    return Result(
        problems=(*alone, *fold_problems(wrong.problems)),
        figures=ValuesFigures(tensors=tuple(errors), pairing=pairing.how),
        notes=tuple(note_alike(wrong.alike)),
    )


class _Wrong:
    """The tensors that are not their references: `problems`, and those that compute the same."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._unexplained = 0
        self.problems: list[tuple[Pair, Problem]] = []
        self.alike: list[tuple[Pair, Explanation]] = []

    def add(self, pair: Pair, found: Measured) -> bool:
        """Say whether a tensor is a problem; keep it, with its cause, where it differs."""
        request, pairing = self._request, self._request.pairing
        text = describe_fault(pair, found, request.max_rmse)
        if not text:
            return False
        cause = explain(pair, pairing, found) if self._unexplained < PATIENCE else None
        self._unexplained = 0 if cause is not None else self._unexplained + 1
        # A limit that the request sets holds for all tensors.
        is_same = cause is not None and CAUSES[cause.name].computes_the_same
        if cause is not None and is_same and request.max_rmse is None:
            pairing.within[pair.module] = True
            self.alike.append((pair, cause))
            return False
        self.problems.append((pair, _make_problem(pair, text, cause)))
        return True


def _report_unpaired(pairing: Pairing) -> Iterator[Problem]:
    """Yield the tensors that one side lacks."""
    yield from map(_report_missing, pairing.missing)
    for name in pairing.unexpected:
        yield Problem(where=name, text="is in no place of the reference")


def _report_missing(name: str) -> Problem:
    cause = _BIAS_DROPPED if name.endswith("bias") else None
    return Problem(
        where=name,
        text="is missing, and the reference has it",
        cause=_FORGOTTEN if name in _OUTPUTS else cause,
    )


def _is_forgotten(pair: Pair, pairing: Pairing) -> bool:
    """Whether the embedding stands for the output, which the reference has and the model lacks."""
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
