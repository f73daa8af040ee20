"""Finds the tensor or config key that makes a part of the model differ from the reference."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import ConversionError, EngineError, WeightctlError
from weightctl.verify.compare.configs import ConfigDifference, correct
from weightctl.verify.compare.distance import is_within, run_limit
from weightctl.verify.compare.explaining import computes_the_same
from weightctl.verify.compare.measure import measure_pair
from weightctl.verify.compare.pairs import convert_convention
from weightctl.verify.results import Explanation, Problem
from weightctl.verify.run.parts import OUTPUT, Running

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weightctl.device import DeviceRef
    from weightctl.families import RecognizedModel
    from weightctl.verify.checks.forward.walk import ComparedPart
    from weightctl.verify.compare.pairs import Pair, Pairing
    from weightctl.weights.derived import ReadableTensor

__all__ = ["Blame"]

# With more tensors than this, the whole block is a different one. Otherwise each is tried by
# itself.
_MOST_APART = 4


class Blame:
    """Finds the cause of differing parts, by trying which correction removes the difference.

    `found` are the differences between the configs.
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

        The config is to blame if the part matches with the reference's values in it.
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
        """Return the fewest tensors that must be replaced for a part to match; possibly none.

        Tensors whose names are in `first` are tried first, the others only if `is_searched`.
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
            # A tensor within the limit may still have an effect.
            off = list(groups.values())
            if not self._is_well_without(trial, off):
                return []
        return self._find_guilty(self._find_needed(trial, off))

    def _find_needed(self, trial: _Trial, groups: Sequence[list[Pair]]) -> Sequence[list[Pair]]:
        """Return the groups of tensors that must be replaced for a part to match."""
        if len(groups) > _MOST_APART:
            return groups
        for group in groups:
            rest = [each for each in groups if each is not group]
            if rest and self._is_well_without(trial, rest):
                return self._find_needed(trial, rest)
        return groups

    def _find_guilty(self, groups: Sequence[Sequence[Pair]]) -> list[Pair]:
        """Return the tensors of some groups that differ: perhaps a single expert of a layer.

        All tensors are returned if each is within the error of its encoding, but together they are
        not.
        """
        pairs = [pair for group in groups for pair in group]
        return [pair for pair in pairs if len(pairs) > 1 and self._is_off(pair)] or pairs

    def _is_off(self, pair: Pair) -> bool:
        """Whether a tensor differs by more than its encodings explain, and computes other values.

        The result is kept; the check `values` may have stored it before.
        """
        within = self._pairing.within
        if pair.module not in within:
            within[pair.module] = _is_within(pair, self._pairing)
        return not within[pair.module]

    def _is_well_without(self, trial: _Trial, groups: Sequence[Sequence[Pair]]) -> bool:
        return trial.is_well(self._stand_ins([pair for group in groups for pair in group]))

    def _list_pairs(self, part: ComparedPart, running: Running) -> dict[str, list[Pair]]:
        """Return the pairs of a part by name; the experts of a layer share an entry."""
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
                made[pair.module] = convert_convention(pair.names, tensor, other, own.convention)
            except ConversionError:
                continue
        return made

    def _lend_tensors(self, part: ComparedPart, running: Running) -> dict[str, ReadableTensor]:
        """Return the reference's tensors that only a corrected config requires."""
        own, other = self._running.checkpoint, self._pairing.reference
        if other is None:
            return {}
        names = {each.module: each for each in other.family.tensors(other.config)}
        lacking = [name for name in running.weights_of(part.name) if name not in own.tensors]
        return {
            name: convert_convention(names[name], other.tensors[name], other, own.convention)
            for name in lacking
            if name in names and name in other.tensors
        }


class _Trial(NamedTuple):
    """A part of a model to run again; it may use the `lent` tensors of the reference."""

    part: ComparedPart
    running: Running
    lent: dict[str, ReadableTensor]

    def is_well(self, replaced: dict[str, ReadableTensor]) -> bool:
        """Whether the part matches the reference if some tensors are replaced."""
        try:
            return self.part.is_well(self.running, self.lent | replaced)
        except EngineError:
            # With shapes unlike the model's, it cannot run at all.
            return False


def _find_output_tied(
    own: RecognizedModel, other: RecognizedModel | None
) -> Iterator[ConfigDifference]:
    """Yield a difference if only the reference has an output apart from the embedding."""
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
    """Whether a tensor matches the reference's, or computes the same."""
    try:
        if is_within(pair, measure_pair(pair, run_limit(pair))):
            return True
        return computes_the_same(pair, pairing) is not None
    except WeightctlError:
        return True
