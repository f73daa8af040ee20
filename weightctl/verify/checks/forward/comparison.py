"""Compares two models on the same tokens: which parts differ, and why."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from weightctl.errors import ArchitectureError, TokenizerError
from weightctl.text.wording import number, percent, pluralize
from weightctl.verify.checks.forward.blame import Blame, Faults
from weightctl.verify.checks.forward.predictions import (
    check_divergence,
    check_perplexity,
    find_least_cosine,
    predict,
)
from weightctl.verify.checks.forward.walk import Walk
from weightctl.verify.compare.configs import find_differences
from weightctl.verify.figures import Divergence, LayerDivergence
from weightctl.verify.results import Problem, Result
from weightctl.verify.run.output import describe_run
from weightctl.verify.run.parts import Running, explain_unbuilt
from weightctl.verify.run.prompt import make_prompt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weightctl.families import RecognizedModel
    from weightctl.verify.checks.forward.walk import ComparedPart
    from weightctl.verify.figures import ForwardFigures
    from weightctl.verify.request import Request
    from weightctl.verify.run.prompt import Prompt


def compare(request: Request) -> Result:
    """Run a model and its reference, both of known families, layer by layer on the same tokens.

    Problems are config values that differ, layers that differ by more than the encodings explain,
    with the faulty tensor if it is found, and figures above their limits. The check is skipped if
    one of the models cannot run, or if they have layers of different sizes or numbers.
    """
    own = request.subject.checkpoint
    other = None if request.reference is None else request.reference.checkpoint
    if own is None or other is None or request.reference is None:
        return Result(skipped="the family of A or B is unknown")
    mismatch = request.mismatch
    if mismatch is not None and (mismatch.pairing is None or not mismatch.is_whole):
        return Result(problems=(mismatch.problem,), skipped=mismatch.short)
    given = request.prompt
    found = find_differences(own, other)
    problems = [each.problem for each in found]
    problems += _compare_tokens(request, given)
    try:
        subject = Running(own, request.device, request.subject.cut)
        reference = Running(other, request.device, request.reference.cut)
    except ArchitectureError as error:
        return Result(problems=tuple(problems), skipped=explain_unbuilt(error))
    if why := _explain_skip(own, other, given):
        return Result(problems=tuple(problems), skipped=why, notes=given.notes)
    pairing = request.pairing
    blame = Blame(subject, pairing, found, request.device)
    last = request.last_layer(reference.layers)
    with closing(Walk(subject, reference, pairing, given, last)) as walk:
        return _Comparison(request, given, walk, Faults(blame, pairing)).result(problems)


def _explain_skip(own: RecognizedModel, other: RecognizedModel, given: Prompt) -> str:
    for name in ("hidden", "layers"):
        one, two = getattr(own.config, name), getattr(other.config, name)
        if one != two:
            return (
                f"the models have different layers: `{name}` is {one} here and {two} in the "
                "reference"
            )
    known = min(own.config.vocabulary, other.config.vocabulary)
    if int(given.ids.max()) >= known:
        return (
            f"the text has tokens that one model does not have: the smaller vocabulary has {known}"
        )
    if given.ids.shape[1] > own.config.context:
        return f"the text is longer than the model's context of {own.config.context} tokens"
    return ""


def _compare_tokens(request: Request, given: Prompt) -> Iterator[Problem]:
    if request.tokens is not None or not given.is_text:
        return
    if request.reference is None or request.reference.encoder is None:
        return  # the text was encoded with the checkpoint's own tokenizer
    try:
        own = make_prompt(request, request.subject)
    except TokenizerError as error:
        yield Problem(where="tokenizer", text=f"cannot be used: {error.message}")
        return
    if not own.is_text:
        return
    ours, theirs = own.ids[own.mask].tolist(), given.ids[given.mask].tolist()
    if ours == theirs:
        return
    pairs = enumerate(zip(ours, theirs, strict=False))
    place = next((i for i, (a, b) in pairs if a != b), min(len(ours), len(theirs)))
    at = [f"{ids[place]}" if place < len(ids) else "nothing" for ids in (ours, theirs)]
    yield Problem(
        where="tokenizer",
        text=f"splits {given.source} differently from the tokenizer of the reference: token "
        f"{place + 1} is {at[0]} here and {at[1]} there (both models ran on the tokens of the "
        "reference)",
    )


class _Comparison:
    """Runs two models part by part, and collects their differences."""

    def __init__(
        self,
        request: Request,
        given: Prompt,
        walk: Walk,
        faults: Faults,
    ) -> None:
        self._request, self._given = request, given
        self._walk, self._faults = walk, faults
        self._layers: list[LayerDivergence] = []
        self._beyond: list[ComparedPart] = []
        # If one cause already explains all tensors, it is not reported for each layer.
        self._judges = not request.compare and not request.pairing.is_of_other_models

    def result(self, problems: list[Problem]) -> Result:
        """Run the models, and return `problems` together with those that were found."""
        request, walk = self._request, self._walk
        last = request.last_layer(walk.reference.layers)
        if request.layers is None:
            self._look_at(walk.embedding())
        for layer in range(last + 1):
            request.tell(f"comparing layer {layer}", layer / (last + 2))
            part = walk.layer(layer)
            if request.has_layer(layer):
                self._look_at(part)
        is_whole = last == walk.reference.layers - 1
        figures = describe_run(walk.subject, request.device, self._given)
        divergence = Divergence(layers=())
        if is_whole and walk.subject.has_logits and walk.reference.has_logits:
            request.tell("comparing the output", (last + 1) / (last + 2))
            if request.layers is None:
                self._look_at(walk.output())
            found = predict(walk.subject, walk.reference, walk.own, walk.wanted, self._given)
            walk.activations.append(found.activation)
            divergence = found.divergence
            figures = replace(figures, perplexity=found.perplexity, next_tokens=found.next_tokens)
        elif is_whole:
            mask = self._given.mask
            cosine = find_least_cosine(walk.wanted[mask], walk.own[mask])
            divergence = Divergence(layers=(), cosine=cosine)
        figures = replace(
            figures,
            activations=tuple(
                each for layer, each in enumerate(walk.activations, -1) if request.has_layer(layer)
            ),
            divergence=replace(divergence, layers=tuple(self._layers)),
        )
        problems = [*problems, *self._faults.problems(), *self._check_limits(figures)]
        if self._request.compare and self._beyond:
            problems.append(self._describe_difference(figures))
        notes = (*self._given.notes, *self._walk.subject.notes, *self._walk.reference.notes)
        return Result(problems=tuple(problems), figures=figures, notes=notes)

    def _look_at(self, part: ComparedPart) -> None:
        self._layers.append(
            LayerDivergence(
                name=part.name,
                divergence=part.found.all,
                expected=part.expected.all,
                is_problem=part.is_beyond and self._judges,
            )
        )
        if not part.is_beyond:
            return
        self._beyond.append(part)
        if self._judges:
            self._faults.add(part)

    def _describe_difference(self, figures: ForwardFigures) -> Problem:
        """Describe how many parts differ, and how much the predictions diverge."""
        most = max(self._beyond, key=lambda part: part.found.all)
        count = f"{len(self._beyond)} of {pluralize(len(self._layers), 'part')}"
        differ = "differs" if len(self._beyond) == 1 else "differ"
        text = (
            f"{count} of the model {differ} from the reference, most of all {most.name}, by "
            f"{percent(most.found.all)}"
        )
        divergence = figures.divergence
        if divergence is not None and divergence.mean is not None:
            text += f"; mean KL divergence {number(divergence.mean)} nats"
        return Problem(where="", text=text)

    def _check_limits(self, figures: ForwardFigures) -> Iterator[Problem]:
        request, has_logits = self._request, self._walk.subject.has_logits
        yield from check_perplexity(request, self._given, figures.perplexity, has_logits=has_logits)
        yield from check_divergence(request, figures.divergence, has_logits=has_logits)
