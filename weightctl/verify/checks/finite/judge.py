"""Decides from a survey of a tensor what is wrong with it."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING, NamedTuple

from weightctl.families.changes import PLUS_ONE
from weightctl.system.threads import Memory
from weightctl.text.wording import join_names
from weightctl.verify.checks.finite.empty_rows import UsedTokens, is_made, is_table, may_be_zero
from weightctl.verify.checks.finite.faults import (
    NONFINITE,
    find_bad_scales,
    find_nonfinite,
    has_swapped_bytes,
)
from weightctl.verify.results import MOST_NAMED, Explanation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weightctl.families import RecognizedModel
    from weightctl.verify.checks.finite.faults import ScaleFault
    from weightctl.verify.checks.finite.survey import Survey
    from weightctl.verify.subject import Subject
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import TensorInfo

__all__ = ["Finding", "Judge"]

_MOST_ROWS = 5
_MOST_IDLE = 4
# The square of such a value overflows float32, and so does any product of two of them.
_ABSURD = 1e18
# A matrix of fewer values may be constant by chance.
_LEAST_MATRIX = 32


_ZEROED = Explanation(
    "zeroed",
    "it was never written, or was lost in a conversion; take it from the original checkpoint",
)
_ROWS_LOST = Explanation(
    "rows_lost",
    "they were never written, or were lost; only rows of pruned neurons are zero on purpose",
)
_TOKENS_LOST = Explanation(
    "rows_lost", "they were never written, or were lost; take them from the original checkpoint"
)
_FLIPPED = Explanation(
    "flipped", "a bit of the file has changed; compare its hash with that of the original"
)
_SWAPPED = Explanation(
    "byte_order",
    "the byte order is swapped: with the bytes of each value reversed the weights are plausible",
)


class Finding(NamedTuple):
    """A fault of a tensor; findings with the same `kind` have the same fault."""

    name: str
    kind: str
    text: str
    cause: Explanation | None = None


class Judge:
    """Finds the faults of tensors: from a quick survey, then a closer look at unusual ones.

    `notes` describe tensors that are unusual but not wrong.
    """

    def __init__(self, subject: Subject) -> None:
        self._idle: list[str] = []
        self._unused: list[str] = []
        self._vocabulary = UsedTokens(subject)
        self._norms = _name_norm_gains(subject.checkpoint)
        self._memory = Memory()

    @property
    def notes(self) -> list[str]:
        """The notes on unusual tensors so far; only the first of many similar ones are named."""
        idle = join_names(self._idle, _MOST_IDLE)
        which = "is all zeros and has" if len(self._idle) == 1 else "are all zeros and have"
        notes = [f"{idle} {which} no effect, which is usual for such tensors"] if self._idle else []
        return [*notes, *self._unused[:MOST_NAMED]]

    def findings(self, tensor: ReadableTensor, survey: Survey) -> Iterator[Finding]:
        """Yield each fault of a tensor."""
        info = tensor.info
        damaged: list[Finding] = []
        if not all(each.are_usual for each in survey.extremes):
            damaged = list(self._judge_scales(tensor))
        if survey.has_nonfinite:
            text = self._find_nonfinite(tensor)
            # The values that a wrong scale makes wrong are not a second problem.
            cause = next((each.cause for each in damaged if each.kind == NONFINITE), None)
            if cause is None and has_swapped_bytes(tensor):
                cause = _SWAPPED
            if text:
                damaged = [each for each in damaged if each.kind != NONFINITE]
                yield Finding(info.name, NONFINITE, text, cause)
        yield from damaged
        if is_made(info.name):
            return
        if survey.greatest > _ABSURD and not damaged and not survey.has_nonfinite:
            text = f"the largest value is {survey.greatest:.3g}, which training does not produce"
            cause = _SWAPPED if has_swapped_bytes(tensor) else _FLIPPED
            yield Finding(info.name, "absurd", text, cause)
        is_matrix = sum(size > 1 for size in info.shape) > 1 and info.size >= _LEAST_MATRIX
        constant = survey.constant
        if survey.rows and survey.zeros == survey.rows:
            constant = 0.0
        if constant is not None and (is_matrix or (constant == 0 and info.name in self._norms)):
            yield from self._judge_constant(info, constant)
        elif survey.zeros:
            yield from self._judge_empty_rows(info, survey)

    def _find_nonfinite(self, tensor: ReadableTensor) -> str:
        info = tensor.info
        nan, infinite = find_nonfinite(tensor, self._memory)
        kinds = [("NaN", nan), ("infinite", infinite)]
        if is_made(info.name):
            kinds = kinds[:1]  # masks are made of infinities
        sentences = [
            f"{found.count:,} of {info.size:,} values {_say_are(found.count)} {kind}, the "
            f"first {_say_place(info, found.first)}"
            for kind, found in kinds
            if found.count
        ]
        return "; ".join(sentences)

    def _judge_scales(self, tensor: ReadableTensor) -> Iterator[Finding]:
        info = tensor.info
        kinds, spreads = find_bad_scales(tensor, self._memory)
        for kind in kinds:
            yield Finding(info.name, kind.text, _say_scales(info, kind), _blame_scale(info, kind))
        if any(spread.is_coarse for spread in spreads):
            yield Finding(
                info.name,
                "coarse",
                f"most block scales are too small for float16, about {spreads[0].usual:.1g}, "
                "so that values are wrong by 10 % or more",
                Explanation(
                    "scale",
                    f"the values are too small for {info.encoding}; keep this tensor in bf16",
                ),
            )

    def _judge_constant(self, info: TensorInfo, constant: float) -> Iterator[Finding]:
        if constant:
            text = f"all {info.size:,} values are {_say_number(constant)}"
            yield Finding(info.name, "constant", text, _ZEROED)
        elif may_be_zero(info.name):
            self._idle.append(f"`{info.name}`")
        else:
            text = f"all {info.size:,} values are 0"
            yield Finding(info.name, "zero", text, _ZEROED)

    def _judge_empty_rows(self, info: TensorInfo, survey: Survey) -> Iterator[Finding]:
        lost: Sequence[tuple[int, int]] = survey.zero_runs
        count, cause = survey.zeros, _ROWS_LOST
        if is_table(info.name) and len(info.shape) == 2:
            unused, lost = self._vocabulary.split_unused(info, lost)
            spared = sum(stop - start for start, stop in unused)
            count, cause = count - spared, _TOKENS_LOST
            if spared:
                self._unused.append(
                    f"`{info.name}` has {spared:,} {_say_rows(spared)} of zeros, for padding "
                    "or unused tokens"
                )
        if lost:
            named = ", ".join(_say_run(info, start, stop) for start, stop in lost[:_MOST_ROWS])
            more = ", ..." if len(lost) > _MOST_ROWS else ""
            text = (
                f"{count:,} of {survey.rows:,} rows {_say_are(count)} all zeros: "
                f"{_say_rows(count)} {named}{more}"
            )
            yield Finding(info.name, "empty rows", text, cause)


def _name_norm_gains(checkpoint: RecognizedModel | None) -> frozenset[str]:
    """Return the stored names of norm gains, which block all signal where they are zero.

    Gains that are stored minus one are left out.
    """
    if checkpoint is None:
        return frozenset()
    found: set[str] = set()
    for names in checkpoint.family.tensors(checkpoint.config):
        is_gain = names.module.endswith("norm.weight")
        is_less_one = names.change is PLUS_ONE and checkpoint.convention == "hugging_face"
        name = getattr(names, checkpoint.convention)
        if is_gain and not is_less_one and name is not None:
            found.add(name)
    return frozenset(found)


def _say_scales(info: TensorInfo, kind: ScaleFault) -> str:
    found, called = kind.found, kind.field.called
    plural = f"{called}s" if found.count > 1 else called
    usual = f"; about {kind.usual:.1g} is usual in this tensor" if kind.usual else ""
    return (
        f"the {plural} of {found.count:,} {'blocks are' if found.count > 1 else 'block is'} "
        f"{kind.text}: {_say_number(found.value)} {_say_place(info, found.first)}{usual}"
    )


def _blame_scale(info: TensorInfo, kind: ScaleFault) -> Explanation:
    return Explanation(
        "scale",
        f"the {kind.field.called} of {info.encoding} blocks is damaged: a bit of the file "
        "has changed, or values were not finite before quantization",
    )


def _say_place(info: TensorInfo, element: int) -> str:
    place: list[int] = []
    for size in reversed(info.shape):
        element, index = divmod(element, size)
        place.append(index)
    return f"at {place[::-1]}"


def _say_run(info: TensorInfo, start: int, stop: int) -> str:
    first, last = _say_row(info, start), _say_row(info, stop - 1)
    return first if stop - start == 1 else f"{first} to {last}"


def _say_row(info: TensorInfo, number: int) -> str:
    """Return the row's number; in a stack of matrices, the matrix's index and the row's."""
    if len(info.shape) == 2:
        return str(number)
    return str(list(divmod(number, info.shape[1])))


def _say_rows(count: int) -> str:
    return "row" if count == 1 else "rows"


def _say_are(count: int) -> str:
    return "is" if count == 1 else "are"


def _say_number(value: float) -> str:
    return "NaN" if isnan(value) else f"{value:g}"
