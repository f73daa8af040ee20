"""The search for types: measures what each would cost, chooses, and measures the result."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.util import find_spec
from math import exp, log
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightctl.budget.assignment import TypeChoice, choose_types, find_cheapest, sum_bytes
from weightctl.budget.found import (
    Certificate,
    ChosenType,
    FoundTypes,
    MeasuredType,
    SourceJudge,
)
from weightctl.calibrate.chunks import read_texts
from weightctl.errors import ConversionError
from weightctl.families.memory.estimate import estimate_memory
from weightctl.system.phases import begin_phase
from weightctl.text.patterns import regular_expression
from weightctl.text.sizes import format_size
from weightctl.text.wording import number
from weightctl.verify.request import Request
from weightctl.verify.run.output import Agreement, count_positions
from weightctl.verify.run.parts import EMBEDDING, OUTPUT, Running, name_layer

if TYPE_CHECKING:
    import re
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from weightctl.budget.limits import QuantizationBudget
    from weightctl.budget.space import SearchedTensor, SearchSpace
    from weightctl.codecs.base import F32
    from weightctl.verify.run.parts import Replaced
    from weightctl.verify.run.prompt import Prompt
    from weightctl.verify.subject import Subject
    from weightctl.weights.buffer import Buffer
    from weightctl.weights.derived import ReadableTensor

# The tokens at the start of the built-in text that a model runs on: prose, dialogue, and code.
_BUILT_IN_TOKENS = 1024
# The number of positions that go through a layer together.
_AT_ONCE = 4096
_IN_LAYERS = "layers."
# The operations that measuring sensitivities may take: one to two minutes on two cores. Reading
# and decoding the weights of each layer for each of its tensors takes about as long.
_WORK = 5e12
# The most types of a tensor that are measured by running the model, and the tokens it needs for
# more than one.
_MOST_MEASURED, _MANY_TOKENS = 2, 512
_LEAST_TOKENS = 32
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
            self._held_out.source, self._held_out.count,
            value, value, value, perplexity, perplexity,
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
        if not certificate.divergence <= wanted:
            raise ConversionError(
                f"{self._budget.option} cannot be reached: with the largest types, the measured "
                f"divergence is {number(certificate.divergence)} nats",
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
                ratio = found.divergence / made.predicted
            if found.divergence <= wanted:
                best, certificate = made, found
                if found.divergence >= _CLOSE * wanted:
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
                tuple(
                    MeasuredType(kind, nbytes, self._costs[each.name, kind])
                    for kind, nbytes in each.nbytes.items()
                ),
            )
            for each in candidates
        )
        nbytes = sum(self._space.others)
        nbytes += sum(each.nbytes[chosen.types[each.name]] for each in candidates)
        notes = dict.fromkeys([*self._calibration.notes, *self._held_out.notes])
        return FoundTypes(
            limit=self._budget.option,
            bits_per_weight=8 * nbytes / self._space.size,
            predicted_divergence=chosen.predicted,
            calibration=self._calibration.source,
            certificate=certificate,
            tensors=tensors,
            notes=tuple(notes),
        )


# What each type of each tensor would cost, and which tensors get one type together.


def estimate_costs(
    space: SearchSpace, running: Running, prompt: Prompt, bits: float
) -> dict[tuple[str, str], float]:
    """Return the divergence that each type of each tensor causes alone, in nats.

    The keys are names of tensors and types. The model runs with each tensor in one or two types of
    about `bits` bits. The divergence of a small error is proportional to the squared error, so that
    the errors of the other types give their divergences. Tensors that the model does not use get
    the median of the others.
    """
    count, tokens = _share_work(space, running)
    variants = _list_variants(space, running, bits, count)
    measured = measure_divergences(running, shorten(prompt, tokens), variants)
    begin_phase("measuring the errors of types")
    errors = {each.name: space.measure_errors(each) for each in space.tensors}
    factors: dict[str, float] = {}
    for each in space.tensors:
        pairs = [
            (measured[each.name, kind], error)
            for kind, error in errors[each.name].items()
            if (each.name, kind) in measured
        ]
        logs = [log(divergence / error) for divergence, error in pairs if divergence and error]
        if logs:
            factors[each.name] = exp(sum(logs) / len(logs))
    usual = median(factors.values()) if factors else 1.0
    return {
        # Rounding hides differences between machines, so that they choose the same types.
        (name, kind): float(f"{factors.get(name, usual) * error:.4g}")
        for name, by_type in errors.items()
        for kind, error in by_type.items()
    }


def _share_work(space: SearchSpace, running: Running) -> tuple[int, int]:
    """Return how many types of each tensor to measure, and on how many tokens."""
    inside = sum(
        tensor.info.size
        for module, tensor in running.checkpoint.tensors.items()
        if module.startswith(_IN_LAYERS)
    )
    outside = running.vocabulary * running.width
    # On average, half of the layers run for a tensor.
    for_token = 2 * (inside / 2 + outside) * len(space.tensors)
    tokens = int(_WORK / for_token / _MOST_MEASURED)
    if tokens >= _MANY_TOKENS:
        return _MOST_MEASURED, tokens
    return 1, max(_LEAST_TOKENS, int(_WORK / for_token))


def _list_variants(space: SearchSpace, running: Running, bits: float, count: int) -> list[Variant]:
    """Return a variant for each tensor and each type that is measured."""
    modules: dict[str, list[str]] = {}
    for module, stored in running.checkpoint.stored.items():
        modules.setdefault(stored, []).append(module)
    wanted = {
        each.name: [kind for kind in each.list_nearest(bits) if kind != each.stored]
        for each in space.tensors
    }
    found: list[Variant] = []
    for kind in dict.fromkeys(kind for kinds in wanted.values() for kind in kinds[:count]):
        names = [name for name, kinds in wanted.items() if kind in kinds[:count]]
        view = space.view(dict.fromkeys(names, kind))
        for name in names:
            changed = {
                module: view.tensors[module]
                for module in modules.get(name, ())
                if module in view.tensors
            }
            if changed:
                found.append(Variant((name, kind), changed))
    return found


def group_choices(
    space: SearchSpace,
    costs: Mapping[tuple[str, str], float],
    together: re.Pattern[str] | None,
    alignment: int,
) -> tuple[list[list[SearchedTensor]], list[list[TypeChoice]]]:
    """Return groups of tensors that get one type, and the choices of each group.

    Tensors of one layer whose names contain the pattern `together` are a group, and so are those
    that the output joins; every other tensor is a group of its own. Bytes are rounded up to
    multiples of the alignment. Raises `ConversionError` if tensors of a group have no type in
    common.
    """
    groups: dict[object, list[SearchedTensor]] = {}
    for each in space.tensors:
        is_joined = together is not None and together.search(each.name) is not None
        number, joined = space.join(each.name)
        key = number if is_joined and number is not None else joined
        groups.setdefault(key, []).append(each)
    choices: list[list[TypeChoice]] = []
    for group in groups.values():
        names = [kind for kind in group[0].nbytes if all(kind in each.nbytes for each in group[1:])]
        if not names:
            first, second = group[0].name, group[1].name
            raise ConversionError(
                f"`{first}` and `{second}` must have the same type, but no type fits both",
                hint="change --same-type, or add types with --types",
            )
        choices.append([
            TypeChoice(
                name,
                sum(-(-each.nbytes[name] // alignment) * alignment for each in group),
                sum(costs[each.name, name] for each in group),
            )
            for name in names
        ])  # fmt: skip
    return list(groups.values()), choices


# How much the predictions change if one tensor of a model is quantized, measured by running it.


class Variant(NamedTuple):
    """A change of a model: the tensors that replace those of its modules, by their names."""

    key: tuple[str, str]
    replaced: Mapping[str, ReadableTensor]


@dataclass
class _Lane:
    """A variant whose changed tensor has run: the output of the last part, and its own inputs."""

    variant: Variant
    x: F32
    beside: Sequence[Buffer]


def measure_divergences(
    running: Running,
    prompt: Prompt,
    variants: Sequence[Variant],
) -> dict[tuple[str, str], float]:
    """Return the mean divergence, in nats, that each variant causes, by the key of the variant."""
    walk = _Lanes(running, prompt, variants)
    for layer in range(running.layers):
        begin_phase(f"measuring the sensitivity of tensors, layer {layer}")
        walk.run_layer(layer)
    begin_phase("measuring the sensitivity of tensors, output")
    return walk.measure()


class _Lanes:
    """The unchanged run, and those of the variants whose tensor is in a part that has run."""

    def __init__(self, running: Running, prompt: Prompt, variants: Sequence[Variant]) -> None:
        self._running, self._prompt, self._variants = running, prompt, variants
        flow = running.begin(prompt.ids, prompt.mask)
        self._x, self._beside = flow.x, flow.beside
        self._lanes: list[_Lane] = []
        for variant, changed in self._list_changed(EMBEDDING):
            own = running.begin(prompt.ids, prompt.mask, changed)
            beside = self._beside if _are_equal(own.beside, self._beside) else own.beside
            self._lanes.append(_Lane(variant, own.x, beside))

    def run_layer(self, number: int) -> None:
        """Run a layer for the unchanged model, and for each variant that has begun or begins."""
        changed = {variant.key: each for variant, each in self._list_changed(name_layer(number))}
        begun = {lane.variant.key for lane in self._lanes}
        for lane in self._lanes:
            if lane.variant.key in changed or lane.beside is not self._beside:
                given = changed.get(lane.variant.key, {})
                lane.x = self._running.layer(number, lane.x, lane.beside, given)
        new = [
            _Lane(variant, self._running.layer(number, self._x, self._beside, each), self._beside)
            for variant, each in self._list_changed(name_layer(number))
            if variant.key not in begun
        ]
        plain = [
            lane
            for lane in self._lanes
            if lane.variant.key not in changed and lane.beside is self._beside
        ]
        size = max(1, _AT_ONCE // self._x[..., 0].size)
        self._x = self._running.layer(number, self._x, self._beside)
        for start in range(0, len(plain), size):
            group = plain[start : start + size]
            made = self._running.layer(
                number, np.concatenate([lane.x for lane in group]), self._beside
            )
            for lane, x in zip(group, np.split(made, len(group)), strict=True):
                lane.x = x
        self._lanes += new

    def measure(self) -> dict[tuple[str, str], float]:
        """Return the mean divergence of each variant's predictions from the unchanged ones."""
        changed = {variant.key: each for variant, each in self._list_changed(OUTPUT)}
        begun = {lane.variant.key for lane in self._lanes}
        states = {lane.variant.key: lane.x for lane in self._lanes}
        states |= {key: self._x for key in changed if key not in begun}
        mask = self._choose_positions()
        wanted = self._run_output(self._x[mask], {})
        found = {
            key: _measure(wanted, self._run_output(states[key][mask], each))
            for key, each in changed.items()
        }
        # The weights of the output are read once for several variants.
        plain = [key for key in states if key not in changed]
        size = max(1, count_positions(self._running.vocabulary) // len(wanted))
        for start in range(0, len(plain), size):
            keys = plain[start : start + size]
            made = self._run_output(np.concatenate([states[key][mask] for key in keys]), {})
            for key, logits in zip(keys, np.split(made, len(keys)), strict=True):
                found[key] = _measure(wanted, logits)
        return found

    def _choose_positions(self) -> NDArray[np.bool_]:
        """Return a mask of evenly spaced positions whose logits fit in memory."""
        places = np.flatnonzero(self._prompt.mask)
        most = min(len(places), count_positions(self._running.vocabulary))
        kept = places[np.linspace(0, len(places) - 1, most).astype(np.int64)]
        mask = np.zeros(self._prompt.mask.size, np.bool_)
        mask[kept] = True
        return mask.reshape(self._prompt.mask.shape)

    def _run_output(self, states: F32, replaced: Replaced) -> F32:
        logits: F32 = self._running.end(states[None], replaced)[0]
        return logits

    def _list_changed(self, part: str) -> list[tuple[Variant, Replaced]]:
        """Return the variants that change a part, and the tensors that they replace in it."""
        names = set(self._running.weights_of(part))
        found = [
            (each, {name: made for name, made in each.replaced.items() if name in names})
            for each in self._variants
        ]
        return [(each, changed) for each, changed in found if changed]


def _are_equal(one: Sequence[Buffer], other: Sequence[Buffer]) -> bool:
    pairs = zip(one, other, strict=True)
    return all(np.array_equal(a.to_numpy(), b.to_numpy()) for a, b in pairs)


def _measure(wanted: F32, found: F32) -> float:
    agreement = Agreement()
    agreement.add(wanted, found)
    return float(agreement.divergences.mean())


# The texts that a search runs a model on: one to find types with, another one to judge them.


def make_calibration(subject: Subject, text: str | None = None) -> Prompt:
    """Return the tokens on which sensitivities are measured: those of `text`, or a built-in text.

    The built-in text is the start of that of `weightctl imatrix`. It shares no sentence with that
    of `weightctl verify`, which judges the result. Raises the errors of `make_prompt`.
    """
    if text is None and _can_encode(subject):
        made = shorten(_make(subject, read_texts(())[0].content), _BUILT_IN_TOKENS)
        return replace(made, source="the built-in calibration text", notes=())
    return _make(subject, text)


def make_held_out(subject: Subject, text: str | None = None) -> Prompt:
    """Return the tokens on which the result is judged: those of `text`, or verify's built-in text.

    Raises the errors of `make_prompt`.
    """
    return _make(subject, text)


def _make(subject: Subject, text: str | None) -> Prompt:
    return Request(subject=subject, text=text).prompt


def _can_encode(subject: Subject) -> bool:
    return find_spec("tokenizers") is not None and subject.encoder is not None


def shorten(prompt: Prompt, most: int) -> Prompt:
    """Return the first windows of a prompt, or a part of the first one: about `most` tokens."""
    windows, length = prompt.ids.shape
    kept, length = (1, max(1, most)) if most < length else (min(windows, most // length), length)
    return replace(prompt, ids=prompt.ids[:kept, :length], mask=prompt.mask[:kept, :length])
