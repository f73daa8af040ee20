"""Finds the tensors and config keys that cause parts of a model to differ from the reference."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import isfinite
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import ConversionError, EngineError, WeightctlError
from weightctl.families.steps import convert_form, module_form
from weightctl.text.folding import group_alike
from weightctl.text.wording import join_names, percent
from weightctl.verify.compare.configs import ConfigDifference, correct
from weightctl.verify.compare.distance import is_within
from weightctl.verify.compare.explaining import computes_the_same, explain_each
from weightctl.verify.compare.measure import measure_pair
from weightctl.verify.results import LISTED_APART, MOST_NAMED, Explanation, Problem, keep_first
from weightctl.verify.run.parts import OUTPUT, Running

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weightctl.device import DeviceRef
    from weightctl.families import RecognizedModel
    from weightctl.families.family import TensorNames
    from weightctl.verify.checks.forward.walk import ComparedPart
    from weightctl.verify.compare.pairing import Pair, Pairing
    from weightctl.weights.derived import ReadableTensor


# If more tensors than this differ, they are not tried separately: the whole layer is different.
_MOST_APART = 4


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
    """Return the key by which faults are joined into one problem."""
    kind = _name_kind(fault.part) if fault.is_of_part else fault.where
    return "" if fault.cause else kind, fault.cause, isfinite(fault.part.found.all)


def _fold(same: list[_Fault]) -> Problem:
    first, text = same[0], same[0].text
    others = list(dict.fromkeys(each.part.name for each in same))[1:]
    if others:
        text += f"; the same is true of {join_names(others, MOST_NAMED)}"
    return Problem(where=first.where, text=text, cause=first.cause)
