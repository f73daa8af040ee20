"""Quantization to a budget: finds the types of a GGUF file, and measures the result."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.budget.assignment import choose_types, find_cheapest, sum_bytes
from weightctl.budget.certificate import Certificate, SourceJudge
from weightctl.budget.found import ChosenType, FoundTypes, make_metadata
from weightctl.budget.tensors import estimate_costs, group_choices, list_candidates
from weightctl.budget.texts import make_calibration, make_held_out
from weightctl.budget.view import view_plan
from weightctl.dtype import ENCODINGS
from weightctl.errors import ConversionError
from weightctl.families.memory.caches import MemoryOptions
from weightctl.families.memory.estimate import estimate_memory
from weightctl.families.model import ARCHITECTURE
from weightctl.plan.metadata import Setting
from weightctl.plan.recipe_lines import Recipe
from weightctl.plan.type_names import type_named
from weightctl.system.phases import begin_phase
from weightctl.text.patterns import regular_expression
from weightctl.text.sizes import format_size, parse_size
from weightctl.text.wording import number
from weightctl.verify.request import Subject
from weightctl.verify.run.parts import Running
from weightctl.write.convert import convert
from weightctl.write.targets import target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.budget.assignment import TypeChoice
    from weightctl.budget.tensors import SearchedTensor
    from weightctl.dtype import Encoding
    from weightctl.plan.plan import Plan
    from weightctl.verify.run.prompt import Prompt
    from weightctl.weights.metadata import MetadataValue
    from weightctl.write.conversion import Conversion

__all__ = ["DEFAULT_TYPES", "QuantizationBudget", "quantize"]

DEFAULT_TYPES = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_0")
# The default types for rows that are not multiples of 256. llama.cpp's substitutes for K-quants do
# not include IQ4_NL, which has a smaller error than Q4_0 in as many bytes, and Q4_1.
_IN_PLACE = ("IQ4_NL", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
# The type that tensors have before the search; like most types, it uses an importance matrix.
_FIRST_TYPE = "Q4_K"
# The bits per weight of the types that are measured if the budget does not imply them.
_USUAL_BITS = 4.5
# The search for a divergence ends when the measured one is at least this fraction of the limit, or
# after so many measurements. It aims at a little less than the limit.
_CLOSE, _MOST_MEASUREMENTS, _AIM = 0.93, 8, 0.98
_ALIGNMENT = 32


@dataclass(frozen=True, kw_only=True)
class QuantizationBudget:
    """What a quantized model may have.

    Exactly one limit is given: `bits` per weight, `size` in bytes of the files, `divergence` in
    nats, or the `memory` in which llama.cpp runs the model. The latter is for a `context` in tokens
    (None for the context length of the model) and a KV cache of the type `kv_type` (None for F16).
    `types` are the types to choose from; by default, K-quants, and types with smaller blocks for
    rows that are not multiples of 256. Tensors of one layer whose names contain the regular
    expression `same_type` get the same type. Sensitivities are measured on `calibration`, and the
    result on `text`; by default, these are two built-in texts.
    """

    bits: float | None = None
    size: int | str | None = None
    divergence: float | None = None
    memory: int | str | None = None
    context: int | None = None
    kv_type: str | None = None
    types: Sequence[str] | None = None
    same_type: str | None = None
    text: str | None = None
    calibration: str | None = None

    @property
    def option(self) -> str:
        """The budget as an option of `weightctl convert`."""
        given = {
            "--bpw": self.bits, "--size": self.size, "--max-kld": self.divergence,
            "--fit": self.memory, "--context": self.context, "--kv-type": self.kv_type,
        }  # fmt: skip
        return " ".join(f"{name} {each}" for name, each in given.items() if each is not None)

    def check(self) -> None:
        """Raise `ConversionError` if not one positive limit is given, or for an invalid pattern."""
        limits = (self.bits, self.size, self.divergence, self.memory)
        if sum(each is not None for each in limits) != 1:
            raise ConversionError(
                "a budget has exactly one limit",
                hint="use one of --bpw, --size, --max-kld and --fit (bits, size, divergence and "
                "memory in Python)",
            )
        if self.memory is None and (self.context is not None or self.kv_type is not None):
            raise ConversionError(
                "--context and --kv-type apply only to --fit", hint="leave them out, or use --fit"
            )
        self.make_options(1)
        for each in (self.bits, self.divergence, self.nbytes, self.memory_bytes):
            if each is not None and not 0 < each < float("inf"):
                raise ConversionError(
                    f"`{self.option}` is not a positive number",
                    hint="use a number above 0, such as --bpw 4.5 or --max-kld 0.02",
                )
        if self.same_type is not None:
            regular_expression(self.same_type)

    @property
    def nbytes(self) -> int | None:
        """The size in bytes; raises `WeightctlError` if it is not a size."""
        return parse_size(self.size) if isinstance(self.size, str) else self.size

    @property
    def memory_bytes(self) -> int | None:
        """The memory in bytes; raises `WeightctlError` if it is not a size."""
        return parse_size(self.memory) if isinstance(self.memory, str) else self.memory

    def make_options(self, context: int) -> MemoryOptions:
        """Return how the model is run in the memory; `context` is the context length of the model.

        Raises `WeightctlError` if the context or the type of the KV cache is invalid.
        """
        return MemoryOptions.of(self.context or context, self.kv_type or "F16")

    @property
    def encodings(self) -> list[Encoding]:
        """The types to choose from; raises `ConversionError` if one is not a type for GGUF."""
        found: list[Encoding] = []
        for name in DEFAULT_TYPES if self.types is None else self.types:
            each = type_named(name)
            if each is None or "gguf" not in each.ids:
                raise ConversionError(
                    f"`{name}` of --types is not a type that GGUF can store",
                    hint=f"for example --types {','.join(DEFAULT_TYPES)}",
                )
            found.append(each)
        if not found:
            raise ConversionError("--types is empty", hint="for example --types Q3_K,Q4_K,Q6_K")
        return list(dict.fromkeys(found))


def quantize(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str] | None,
    budget: QuantizationBudget,
    **options: Any,
) -> tuple[Conversion, FoundTypes]:
    """Plan a GGUF file within a budget whose predictions differ least from those of the source.

    `source`, `out` and `options` are those of `convert`; `quant` and `dtype` do not apply, and
    `metadata` is a list of settings. The conversion that is returned writes the file. Its metadata
    have the certificate, which is measured before. Raises `ConversionError` if the budget cannot be
    met, and the errors of `convert`, of recognizing the model, and of running it.
    """
    budget.check()
    encodings = budget.encodings
    if out is not None and target(os.fspath(out), options.get("to")).format != "gguf":
        raise _explain_output()
    settings: Sequence[Setting] = options.pop("metadata", ())
    given: dict[str, Any] = {**options, "dry_run": True}
    first = convert(
        source, out, quant=Recipe("budget", _FIRST_TYPE, ()),
        metadata=settings, **given,
    )  # fmt: skip
    plan = first.plan
    if ARCHITECTURE not in plan.metadata:
        raise _explain_output()
    search = _TypeSearch(plan, budget, Subject(source), encodings)
    # The certificate has the same size whatever its numbers are.
    draft = make_metadata(budget.option, search.make_draft(), 0.0)
    found = search.find(_count_beside(first, draft))
    measured = make_metadata(budget.option, found.certificate, found.bits)
    made = convert(
        source, out, quant=found.recipe,
        metadata=[*(Setting.of(key, each) for key, each in measured.items()), *settings],
        **given,
    )  # fmt: skip
    return made, found


def _explain_output() -> ConversionError:
    return ConversionError(
        "a budget needs a GGUF file of a model as the output",
        hint="use an output name that ends in .gguf, and do not use --names keep; for other "
        "outputs, use --quant (quant in Python)",
    )


def _count_beside(conversion: Conversion, draft: dict[str, MetadataValue]) -> int:
    """Return the bytes of the files that are not those of tensors, with a draft of the metadata."""
    plan = conversion.plan
    files = replace(conversion, plan=replace(plan, metadata={**plan.metadata, **draft}))
    padded = sum(-(-item.info.nbytes // _ALIGNMENT) * _ALIGNMENT for item in plan.items)
    return files.outcome.nbytes - padded


class _Assignment(NamedTuple):
    """Types by the names of tensors, with the bytes and the predicted divergence of the model."""

    types: dict[str, Encoding]
    nbytes: int
    predicted: float


class _TypeSearch:
    """The search for the types of a plan."""

    def __init__(
        self,
        plan: Plan,
        budget: QuantizationBudget,
        subject: Subject,
        encodings: Sequence[Encoding],
    ) -> None:
        self._plan, self._budget, self._encodings = plan, budget, encodings
        self._held_out = make_held_out(subject, budget.text)
        self._calibration: Prompt = make_calibration(subject, budget.calibration)
        self._running = Running(view_plan(plan))
        if not self._running.has_logits:
            raise ConversionError(
                "a budget needs a model that predicts tokens, and this one is an encoder",
                hint="use --quant (quant in Python)",
            )
        self._judge: SourceJudge | None = None
        self._weights = sum(item.info.size for item in plan.items)
        self._groups: list[list[SearchedTensor]] = []
        self._choices: list[list[TypeChoice]] = []
        self._costs: dict[tuple[str, str], float] = {}
        self._fixed = 0

    def make_draft(self) -> Certificate:
        """Return a certificate of the final size, without the numbers."""
        has_perplexity = self._held_out.is_text and self._held_out.count > 1
        perplexity = 1.0 if has_perplexity else None
        return Certificate(0, 0, 0, perplexity, perplexity, 0, self._held_out.source)

    def find(self, beside: int) -> FoundTypes:
        """Return the types; `beside` are the bytes of the files that are not those of tensors."""
        plan, budget = self._plan, self._budget
        alignment = 1 if budget.bits is not None else _ALIGNMENT
        in_place = [ENCODINGS[each] for each in _IN_PLACE] if budget.types is None else []
        candidates = list_candidates(plan, self._encodings, in_place)
        limit = self._find_limit(beside)
        bits = _USUAL_BITS if limit is None else 8 * limit / self._weights
        self._costs = estimate_costs(plan, candidates, self._running, self._calibration, bits)
        together = budget.same_type and regular_expression(budget.same_type)
        self._groups, self._choices = group_choices(
            candidates, self._costs, together or None, alignment
        )
        names = {each.name for each in candidates}
        self._fixed = sum(
            -(-item.info.nbytes // alignment) * alignment
            for item in plan.items
            if item.info.name not in names
        )
        if limit is not None:
            chosen, certificate = self._assign(limit), None
        else:
            chosen, certificate = self._find_divergence()
        certificate = certificate or self._measure(chosen)
        return self._describe(chosen, certificate)

    def _find_limit(self, beside: int) -> int | None:
        """Return the bytes that all tensors may take; None if the divergence is limited."""
        if self._budget.bits is not None:
            return int(self._budget.bits * self._weights / 8)
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
            bits = 8 * least / self._weights
            raise ConversionError(
                f"{self._budget.option} is too little: with the smallest types, the tensors take "
                f"{format_size(least)}, {bits:.3f} bits per weight",
                hint="use a larger budget, or add smaller types with --types",
            )
        return self._gather(chosen)

    def _gather(self, chosen: Sequence[int]) -> _Assignment:
        types = {
            each.name: ENCODINGS[choices[at].type]
            for group, choices, at in zip(self._groups, self._choices, chosen, strict=True)
            for each in group
        }
        predicted = sum(c[at].cost for c, at in zip(self._choices, chosen, strict=True))
        return _Assignment(types, self._fixed + sum_bytes(self._choices, chosen), predicted)

    def _measure(self, given: _Assignment) -> Certificate:
        if self._judge is None:
            begin_phase("running the source on the text for the certificate")
            self._judge = SourceJudge(self._plan, self._running, self._held_out)
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
        while high - low > max(_ALIGNMENT, high // 2000):
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
                chosen.types[each.name].name,
                {kind.name: self._costs[each.name, kind.name] for kind in each.types},
                {kind.name: kind.nbytes(each.item.info.shape) for kind in each.types},
            )
            for each in candidates
        )
        nbytes = sum(
            chosen.types.get(item.info.name, item.info.encoding).nbytes(item.info.shape)
            for item in self._plan.items
        )
        notes = dict.fromkeys([*self._calibration.notes, *self._held_out.notes])
        return FoundTypes(
            budget=self._budget.option,
            bits=8 * nbytes / self._weights,
            predicted=chosen.predicted,
            calibration=self._calibration.source,
            tensors=tensors,
            certificate=certificate,
            notes=tuple(notes),
        )
