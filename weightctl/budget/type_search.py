"""The search for types: measures what each would cost, chooses, and measures the result."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from weightctl.budget.assignment import choose_types, find_cheapest, sum_bytes
from weightctl.budget.certificate import Certificate, SourceJudge
from weightctl.budget.found import ChosenType, FoundTypes
from weightctl.budget.tensors import estimate_costs, group_choices
from weightctl.budget.texts import make_calibration, make_held_out
from weightctl.errors import ConversionError
from weightctl.families.memory.estimate import estimate_memory
from weightctl.system.phases import begin_phase
from weightctl.text.patterns import regular_expression
from weightctl.text.sizes import format_size
from weightctl.text.wording import number
from weightctl.verify.run.parts import Running

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.budget.assignment import TypeChoice
    from weightctl.budget.limits import QuantizationBudget
    from weightctl.budget.space import SearchedTensor, SearchSpace
    from weightctl.verify.request import Subject
    from weightctl.verify.run.prompt import Prompt

# The bits per weight of the types that are measured if the budget does not imply them.
_USUAL_BITS = 4.5
# The search for a divergence ends when the measured one is at least this fraction of the limit, or
# after so many measurements. It aims at a little less than the limit.
_CLOSE, _MOST_MEASUREMENTS, _AIM = 0.93, 8, 0.98


class _Assignment(NamedTuple):
    """Types by the names of tensors, with the bytes and the predicted divergence of the model."""

    types: dict[str, str]
    nbytes: int
    predicted: float


class TypeSearch:
    """The search for the types of the tensors in a space."""

    def __init__(self, space: SearchSpace, budget: QuantizationBudget, subject: Subject) -> None:
        self._space, self._budget = space, budget
        self._held_out = make_held_out(subject, budget.text)
        self._calibration: Prompt = make_calibration(subject, budget.calibration)
        self._running = Running(space.view())
        if not self._running.has_logits:
            raise ConversionError(
                "a budget needs a model that predicts tokens, and this one is an encoder",
                hint="use --quant (quant in Python)",
            )
        self._judge: SourceJudge | None = None
        self._groups: list[list[SearchedTensor]] = []
        self._choices: list[list[TypeChoice]] = []
        self._costs: dict[tuple[str, str], float] = {}
        self._fixed = 0

    def make_draft(self, value: float = 0.0) -> Certificate:
        """Return a certificate of the final size, with one value for all numbers."""
        has_perplexity = self._held_out.is_text and self._held_out.count > 1
        perplexity = value if has_perplexity else None
        return Certificate(
            value, value, value, perplexity, perplexity,
            self._held_out.count, self._held_out.source,
        )  # fmt: skip

    def find(self, beside: int) -> FoundTypes:
        """Return the types; `beside` are the bytes of the files that are not those of tensors."""
        space, budget = self._space, self._budget
        alignment = 1 if budget.bits is not None else space.alignment
        limit = self._find_limit(beside)
        bits = _USUAL_BITS if limit is None else 8 * limit / space.size
        self._costs = estimate_costs(space, self._running, self._calibration, bits)
        together = budget.same_type and regular_expression(budget.same_type)
        self._groups, self._choices = group_choices(space, self._costs, together or None, alignment)
        self._fixed = sum(-(-each // alignment) * alignment for each in space.others)
        if limit is not None:
            chosen, certificate = self._assign(limit), None
        else:
            chosen, certificate = self._find_divergence()
        certificate = certificate or self._measure(chosen)
        return self._describe(chosen, certificate)

    def _find_limit(self, beside: int) -> int | None:
        """Return the bytes that all tensors may take; None if the divergence is limited."""
        if self._budget.bits is not None:
            return int(self._budget.bits * self._space.size / 8)
        if self._budget.memory is not None:
            return self._find_memory_limit()
        size = self._budget.nbytes
        return None if size is None else size - beside

    def _find_memory_limit(self) -> int:
        """Return the bytes of all tensors with which the model fits into the memory."""
        budget, model = self._budget, self._running.checkpoint
        options = budget.make_options(model.config.context)
        estimate = estimate_memory(model, options)
        limit = estimate.find_weights_limit(budget.memory_bytes or 0)
        if limit > 0:
            return limit
        raise ConversionError(
            f"{budget.option} is too little: with a context of {options.context:,} tokens, the KV "
            f"cache takes {format_size(estimate.cache)} and the compute buffers "
            f"{format_size(estimate.compute)}",
            hint="use a larger memory, a smaller --context, or --kv-type q8_0",
        )

    def _assign(self, limit: int) -> _Assignment:
        """Return the best types within `limit` bytes for all tensors."""
        chosen = choose_types(self._choices, limit - self._fixed)
        if chosen is None:
            least = self._fixed + sum(min(each.nbytes for each in g) for g in self._choices)
            bits = 8 * least / self._space.size
            raise ConversionError(
                f"{self._budget.option} is too little: with the smallest types, the tensors take "
                f"{format_size(least)}, {bits:.3f} bits per weight",
                hint="use a larger budget, or add smaller types with --types",
            )
        return self._gather(chosen)

    def _gather(self, chosen: Sequence[int]) -> _Assignment:
        types = {
            each.name: choices[at].type
            for group, choices, at in zip(self._groups, self._choices, chosen, strict=True)
            for each in group
        }
        predicted = sum(c[at].cost for c, at in zip(self._choices, chosen, strict=True))
        return _Assignment(types, self._fixed + sum_bytes(self._choices, chosen), predicted)

    def _measure(self, given: _Assignment) -> Certificate:
        if self._judge is None:
            begin_phase("running the source on the text for the certificate")
            self._judge = SourceJudge(self._space, self._running, self._held_out)
        begin_phase("running the quantized model")
        return self._judge.measure(given.types)

    def _find_divergence(self) -> tuple[_Assignment, Certificate]:
        """Return the smallest types whose measured divergence is within the limit."""
        wanted = self._budget.divergence or 0.0
        best = self._gather([*map(find_cheapest, self._choices)])
        certificate = self._measure(best)
        if not certificate.mean <= wanted:
            raise ConversionError(
                f"{self._budget.option} cannot be reached: with the largest types, the measured "
                f"divergence is {number(certificate.mean)} nats",
                hint="use a larger limit, or add larger types with --types, such as F16",
            )
        # What is measured differs from the sum of the predictions by a factor that changes slowly.
        ratio = 1.0
        tried: set[int] = set()
        for _ in range(_MOST_MEASUREMENTS):
            made = self._assign_for(_AIM * wanted / ratio)
            if made.nbytes in tried or made.nbytes >= best.nbytes:
                break
            tried.add(made.nbytes)
            found = self._measure(made)
            if made.predicted:
                ratio = found.mean / made.predicted
            if found.mean <= wanted:
                best, certificate = made, found
                if found.mean >= _CLOSE * wanted:
                    break
        return best, certificate

    def _assign_for(self, divergence: float) -> _Assignment:
        """Return the smallest types whose predicted divergence is at most `divergence`."""
        low = self._fixed + sum(min(each.nbytes for each in group) for group in self._choices)
        high = self._fixed + sum(max(each.nbytes for each in group) for group in self._choices)
        best = self._assign(high)
        while high - low > max(self._space.alignment, high // 2000):
            middle = (low + high) // 2
            made = self._assign(middle)
            if made.predicted <= divergence:
                best, high = made, middle
            else:
                low = middle
        return best

    def _describe(self, chosen: _Assignment, certificate: Certificate) -> FoundTypes:
        candidates = [each for group in self._groups for each in group]
        tensors = tuple(
            ChosenType(
                each.name,
                chosen.types[each.name],
                {kind: self._costs[each.name, kind] for kind in each.nbytes},
                each.nbytes,
            )
            for each in candidates
        )
        nbytes = sum(self._space.others) + sum(each.nbytes[each.type] for each in tensors)
        notes = dict.fromkeys([*self._calibration.notes, *self._held_out.notes])
        return FoundTypes(
            budget=self._budget.option,
            bits=8 * nbytes / self._space.size,
            predicted=chosen.predicted,
            calibration=self._calibration.source,
            tensors=tensors,
            certificate=certificate,
            notes=tuple(notes),
        )
