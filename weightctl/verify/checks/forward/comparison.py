"""Compares two models on the same tokens: which parts differ, and why."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import replace
from math import isfinite
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import (
    ArchitectureError,
    ConversionError,
    EngineError,
    TokenizerError,
    WeightctlError,
)
from weightctl.families.steps import convert_form, module_form
from weightctl.text.folding import group_alike
from weightctl.text.wording import join_names, number, percent, pluralize
from weightctl.verify.checks.forward.walk import Walk
from weightctl.verify.compare.configs import ConfigDifference, correct, find_differences
from weightctl.verify.compare.distance import is_within, measure_pair
from weightctl.verify.compare.explaining import computes_the_same, explain_each
from weightctl.verify.figures import Divergence, LayerDivergence
from weightctl.verify.results import (
    LISTED_APART,
    MOST_NAMED,
    Explanation,
    Problem,
    Result,
    keep_first,
)
from weightctl.verify.run.output import (
    check_divergence,
    check_perplexity,
    describe_run,
    find_least_cosine,
    predict,
)
from weightctl.verify.run.parts import OUTPUT, Running, explain_unbuilt
from weightctl.verify.run.prompt import make_prompt

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weightctl.device import DeviceRef
    from weightctl.families import RecognizedModel
    from weightctl.families.modules import TensorNames
    from weightctl.verify.checks.forward.walk import ComparedPart
    from weightctl.verify.compare.pairing import Pair, Pairing
    from weightctl.verify.figures import ForwardFigures
    from weightctl.verify.request import Request
    from weightctl.verify.run.prompt import Prompt
    from weightctl.weights.derived import ReadableTensor

# If more tensors than this differ, they are not tried separately: the whole layer is different.
_MOST_APART = 4


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
        own = make_prompt(request.tokens, request.text, request.subject)
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

    def __init__(self, request: Request, given: Prompt, walk: Walk, faults: Faults) -> None:
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
        has_logits = walk.subject.has_logits
        problems = [
            *problems,
            *self._faults.problems(),
            *check_perplexity(request, self._given, figures.perplexity, has_logits=has_logits),
            *check_divergence(request, figures.divergence, has_logits=has_logits),
        ]
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


# Finds the tensors and config keys that cause parts of a model to differ from the reference.


class Blame:
    """Finds the cause of differing parts, by trying which corrections remove the difference.

    `found` are the differences between the configs of the two models.
    """

    def __init__(
        self,
        running: Running,
        pairing: Pairing,
        found: Sequence[ConfigDifference],
        device: DeviceRef,
    ) -> None:
        self._running, self._pairing = running, pairing
        self._found = [*found, *_find_output_tied(running.checkpoint, pairing.reference)]
        self._corrected = _build_with_config(running.checkpoint, self._found, device)

    def of_config(self, part: ComparedPart) -> Explanation | None:
        """Return the config difference that explains a part; None if correcting it does not help.

        The config is the cause if the part matches once the config has the reference's values.
        """
        running = self._corrected
        if running is None or not _Trial(part, running, self._lend_tensors(part, running)).is_well(
            {}
        ):
            return None
        causes = [each.problem.cause for each in self._found if each.problem.cause is not None]
        if len(causes) == 1:
            return causes[0]
        keys = ", ".join(f"`{each.problem.where}`" for each in self._found)
        return Explanation(
            "config",
            f"{keys} of the config {'differ' if ',' in keys else 'differs'} from the reference",
        )

    def of_tensors(
        self, part: ComparedPart, first: Sequence[str] = (), *, is_searched: bool = True
    ) -> list[Pair]:
        """Return a small set of tensors whose replacement makes a part match the reference.

        The weights named in `first` are tried first, and the others only if `is_searched` is set.
        Return none if no replacement helps.
        """
        running = self._corrected or self._running
        trial = _Trial(part, running, self._lend_tensors(part, running))
        groups = self._list_pairs(part, running)
        suspects = [groups[name] for name in first if name in groups]
        if suspects and self._is_well_without(trial, suspects):
            return self._find_guilty(suspects)
        if not is_searched:
            return []
        off = [group for group in groups.values() if any(map(self._is_off, group))]
        if not (off and self._is_well_without(trial, off)):
            # Tensors within their limits may still have an effect together.
            off = list(groups.values())
            if not self._is_well_without(trial, off):
                return []
        return self._find_guilty(self._find_needed(trial, off))

    def _find_needed(self, trial: _Trial, groups: Sequence[list[Pair]]) -> Sequence[list[Pair]]:
        """Return the groups of tensors that remain after removing those that need no replacement.

        If there are more than four groups, all of them are returned.
        """
        if len(groups) > _MOST_APART:
            return groups
        for group in groups:
            rest = [each for each in groups if each is not group]
            if rest and self._is_well_without(trial, rest):
                return self._find_needed(trial, rest)
        return groups

    def _find_guilty(self, groups: Sequence[Sequence[Pair]]) -> list[Pair]:
        """Return the tensors of some groups that differ by more than their encodings explain.

        In a group of experts, this may be a single one. If none differs that much by itself, all
        tensors are returned.
        """
        pairs = [pair for group in groups for pair in group]
        return [pair for pair in pairs if len(pairs) > 1 and self._is_off(pair)] or pairs

    def _is_off(self, pair: Pair) -> bool:
        """Whether a tensor differs by more than its encodings explain, and changes the results.

        The answer is cached in the pairing, where the check `values` may already have stored it.
        """
        within = self._pairing.within
        if pair.module not in within:
            within[pair.module] = _is_within(pair, self._pairing)
        return not within[pair.module]

    def _is_well_without(self, trial: _Trial, groups: Sequence[Sequence[Pair]]) -> bool:
        return trial.is_well(self._stand_ins([pair for group in groups for pair in group]))

    def _list_pairs(self, part: ComparedPart, running: Running) -> dict[str, list[Pair]]:
        """Return the pairs of a part, grouped by the weight's name; experts are in one group."""
        modules = set(running.weights_of(part.name))
        groups: dict[str, list[Pair]] = {}
        for pair in self._pairing.pairs:
            if pair.module in modules and pair.tensor.info.shape == pair.reference.info.shape:
                groups.setdefault(pair.part, []).append(pair)
        return groups

    def _stand_ins(self, pairs: Sequence[Pair]) -> dict[str, ReadableTensor]:
        own, other = self._running.checkpoint, self._pairing.reference
        made: dict[str, ReadableTensor] = {}
        for pair in pairs:
            tensor = None if other is None else other.tensors.get(pair.module)
            if tensor is None or other is None or pair.names is None:
                made[pair.module] = pair.reference
                continue
            try:
                made[pair.module] = _convert_for(own, pair.names, tensor, other)
            except ConversionError:
                continue
        return made

    def _lend_tensors(self, part: ComparedPart, running: Running) -> dict[str, ReadableTensor]:
        """Return the reference's tensors for weights that only the corrected config requires."""
        own, other = self._running.checkpoint, self._pairing.reference
        if other is None:
            return {}
        names = {each.module: each for each in other.family.tensors(other.config)}
        lacking = [name for name in running.weights_of(part.name) if name not in own.tensors]
        return {
            name: _convert_for(own, names[name], other.tensors[name], other)
            for name in lacking
            if name in names and name in other.tensors
        }


def _convert_for(
    model: RecognizedModel, names: TensorNames, tensor: ReadableTensor, other: RecognizedModel
) -> ReadableTensor:
    """Return a tensor of the model `other` in the form that the modules of `model` use."""
    form = module_form(names, other.convention)
    wanted = module_form(names, model.convention)
    return convert_form(names, tensor, other.config, form, wanted)


class _Trial(NamedTuple):
    """A part of a model to run again with replaced tensors.

    `lent` are tensors of the reference that the part needs and the checkpoint does not have.
    """

    part: ComparedPart
    running: Running
    lent: dict[str, ReadableTensor]

    def is_well(self, replaced: dict[str, ReadableTensor]) -> bool:
        """Whether the part matches the reference if some tensors are replaced."""
        try:
            return self.part.is_well(self.running, self.lent | replaced)
        except EngineError:
            # The part cannot run with tensors of other shapes.
            return False


def _find_output_tied(
    own: RecognizedModel, other: RecognizedModel | None
) -> Iterator[ConfigDifference]:
    """Yield a difference if the output is tied here, and not in the reference."""
    is_tied, was_tied = (getattr(each and each.config, "tied", None) for each in (own, other))
    if is_tied and was_tied is False:
        cause = Explanation(
            "output_forgotten",
            "the output of the reference was left out, and the embedding is used instead",
        )
        text = "is used as the output, and the reference has its own output"
        problem = Problem(where=OUTPUT, text=text, cause=cause)
        yield ConfigDifference(problem, {"tied": False})


def _build_with_config(
    own: RecognizedModel, found: list[ConfigDifference], device: DeviceRef
) -> Running | None:
    """Return the model with the reference's values in its config; None if it cannot be built."""
    model = correct(own, found) if found else None
    try:
        return None if model is None else Running(replace(model, missing=[]), device)
    except WeightctlError:
        return None


def _is_within(pair: Pair, pairing: Pairing) -> bool:
    """Whether a tensor matches the reference's, or differs without changing the results.

    A tensor that cannot be measured counts as matching.
    """
    try:
        if is_within(pair, measure_pair(pair)):
            return True
        return computes_the_same(pair, pairing) is not None
    except WeightctlError:
        return True


# Faulty tensors are searched for in this number of layers. In further layers, only the weights that
# were faulty before are tried.
_MOST_SEARCHED = 4
# If more tensors than this have one cause, they are reported as one problem of the layer.
_FEW = 4


class _Fault(NamedTuple):
    """A problem of a part: `where` is a faulty tensor, or the part itself if none was found."""

    part: ComparedPart
    where: str
    text: str
    cause: Explanation | None

    @property
    def is_of_part(self) -> bool:
        """Whether the problem is reported at the part itself."""
        return self.where == self.part.name


class Faults:
    """Collects the parts that differ by more than their encodings explain, with their causes."""

    def __init__(self, blame: Blame, pairing: Pairing) -> None:
        self._blame, self._pairing = blame, pairing
        self._faults: list[_Fault] = []
        self._searched: Counter[str] = Counter()
        self._before: list[str] = []

    def add(self, part: ComparedPart) -> None:
        """Find the cause of a part's difference, and keep it."""
        distance, cause = _say_distance(part), self._blame.of_config(part)
        guilty = [] if cause is not None else self._find_guilty(part)
        if not guilty:
            self._faults.append(_Fault(part, part.name, distance, cause))
            return
        causes = explain_each(guilty, self._pairing)
        if len(guilty) > _FEW and len(set(causes)) == 1:
            text = f"{distance}; {_say_remedy(f'{len(guilty)} tensors')}"
            self._faults.append(_Fault(part, part.name, text, causes[0]))
            return
        text = f"the output of {part.name} {distance}; {_say_remedy(_name_all(guilty))}"
        for pair, cause in zip(guilty, causes, strict=True):
            self._faults.append(_Fault(part, pair.name, text, cause))

    def _find_guilty(self, part: ComparedPart) -> list[Pair]:
        is_searched = self._searched[_name_kind(part)] < _MOST_SEARCHED
        if not (self._before or is_searched):
            return []
        self._searched[_name_kind(part)] += 1
        guilty = self._blame.of_tensors(part, self._before, is_searched=is_searched)
        self._before = [pair.part for pair in guilty] or self._before
        return guilty

    def problems(self) -> Sequence[Problem]:
        """Return the problems in the order of the layers, with similar problems joined.

        As in the check `values`, a few tensors with the same cause are listed one by one.
        """
        made: list[Problem] = []
        for same in group_alike(self._faults, _kind_of):
            is_apart = len(same) <= LISTED_APART and not any(each.is_of_part for each in same)
            made += [_fold([each]) for each in same] if is_apart else [_fold(same)]
        return keep_first(made, "{} more parts that differ are not listed")


def _name_kind(part: ComparedPart) -> str:
    return part.name.split(".")[0]


def _say_distance(part: ComparedPart) -> str:
    found, expected = part.found.all, part.expected.all
    if not isfinite(found):
        return "has NaN or infinite values where the reference does not"
    off = f"differs from the reference by {percent(found)}"
    if expected > 0:
        return f"{off} ({percent(expected)} is expected for its encodings)"
    return f"{off} (0 is expected)"


def _name_all(pairs: Sequence[Pair]) -> str:
    """Join the names of several tensors; empty for a single tensor."""
    names = [f"`{pair.name}`" for pair in pairs]
    if len(names) > _FEW:
        return join_names(names, _FEW)
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else ""


def _say_remedy(names: str) -> str:
    """Say that a part matches if the tensors `names` are replaced; empty names mean one tensor."""
    if not names:
        return "it matches if this tensor is replaced by that of the reference"
    return f"it matches if {names} are replaced by those of the reference"


def _kind_of(fault: _Fault) -> tuple[str, Explanation | None, bool]:
    kind = _name_kind(fault.part) if fault.is_of_part else fault.where
    return "" if fault.cause else kind, fault.cause, isfinite(fault.part.found.all)


def _fold(same: list[_Fault]) -> Problem:
    first, text = same[0], same[0].text
    others = list(dict.fromkeys(each.part.name for each in same))[1:]
    if others:
        text += f"; the same is true of {join_names(others, MOST_NAMED)}"
    return Problem(where=first.where, text=text, cause=first.cause)
