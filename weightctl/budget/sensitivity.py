"""How much the predictions change if one tensor of a model is quantized, measured by running it.

The model runs once, layer by layer. When a layer has a tensor to examine, the layer also runs with
this tensor quantized, and the changed output goes through the remaining layers together with the
unchanged one. So each layer is read once, and a tensor of a late layer costs little. At the end,
the Kullback-Leibler divergence of the predictions is known for each tensor.

This needs no gradients, which the engine does not compute, and it includes what the later layers
do with an error. A gradient estimate (Fisher information) would need one pass for all tensors, but
it holds only for small errors, and those of types with two or three bits are not small.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightctl.system.phases import begin_phase
from weightctl.verify.checks.forward.predictions import Agreement
from weightctl.verify.run.output import count_positions
from weightctl.verify.run.parts import EMBEDDING, OUTPUT, name_layer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from weightctl.codecs.base import F32
    from weightctl.verify.run.parts import Replaced, Running
    from weightctl.verify.run.prompt import Prompt
    from weightctl.weights.buffer import Buffer
    from weightctl.weights.derived import ReadableTensor

# The number of positions that go through a layer together.
_AT_ONCE = 4096


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
    for number in range(running.layers):
        begin_phase(f"measuring the sensitivity of tensors, layer {number}")
        walk.run_layer(number)
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
