"""RoPE and its scaling: the angle by which each pair of a head's numbers turns per position."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from weightctl.errors import GraphError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ["RopeScaling", "inverse_frequencies"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """The RoPE scaling of a model to a context that is `factor` times as long.

    `kind` is `linear` (all alike), `llama3` (slow ones only), `yarn` (by a ramp between fast and
    slow ones) or `longrope` (each by a number of its own). All other fields belong to one of them.
    `original_context` is the length trained on
    first. llama3 keeps what turns `high_frequency_factor` times or more within it, and stretches in
    full what turns `low_frequency_factor` times or less. yarn's ramp runs from `beta_fast` turns to
    `beta_slow`, between whole pairs where `truncate` is set. Its cosines and sines are multiplied
    by `attention_factor`; None is the value its paper advises, by the ratio that `mscale` and
    `mscale_all_dim` give where both are set. longrope divides the speed of each pair by its one of
    the `short_factors` up to the original context, and of the `long_factors` beyond it; without
    any a checkpoint has them as tensors. Its `attention_factor` is LongRoPE's where it is None.
    """

    kind: Literal["linear", "llama3", "yarn", "longrope"]
    factor: float
    original_context: int = 0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        known = (*_STRETCHED, "longrope")
        if self.kind not in known:
            raise GraphError(
                f"`{self.kind}` is not a supported RoPE scaling",
                hint=f"use one of {', '.join(known)}",
            )
        if not self.factor > 0:
            raise GraphError(
                f"a RoPE scaling factor of {self.factor:g} is not valid: it must be greater than 0"
            )
        if self.kind != "linear" and self.original_context <= 0:
            raise GraphError(
                f"{self.kind} scaling needs the original context length",
                hint="set `original_context`",
            )

    @property
    def amplitude(self) -> float:
        """What cosines and sines are multiplied by; 1 for all but yarn and longrope."""
        if self.kind not in {"yarn", "longrope"}:
            return 1.0
        return self.advised_amplitude if self.attention_factor is None else self.attention_factor

    @property
    def advised_amplitude(self) -> float:
        """What the papers of yarn (2309.00071) and longrope (2402.13753) advise for that."""
        if self.kind == "longrope":
            # Of a context of 1 the logarithm is 0.
            is_longer = self.factor > 1 and self.original_context > 1
            ratio = math.log(self.factor) / math.log(self.original_context) if is_longer else 0
            return math.sqrt(1 + ratio)
        if self.mscale and self.mscale_all_dim:
            return self._temperature(self.mscale) / self._temperature(self.mscale_all_dim)
        return self._temperature(1.0)

    def _temperature(self, scale: float) -> float:
        return 1.0 if self.factor <= 1 else 0.1 * scale * math.log(self.factor) + 1.0


def inverse_frequencies(
    dimensions: int, base: float, scaling: RopeScaling | None = None, length: int = 0
) -> NDArray[Any]:
    """Radians per position of each pair of `dimensions` rotated numbers, float32[dimensions / 2].

    `length` is how many positions there are, by which longrope chooses its factors.
    Rounded to float32 after each step of transformers' `ROPE_INIT_FUNCTIONS`, so that long contexts
    turn by the angles that a model was trained on. The same numbers on every machine: powers in
    float32 are not.
    """
    import numpy as np

    exponents = np.arange(0, dimensions, 2, dtype=np.float32) / np.float32(dimensions)
    periods = (np.float64(np.float32(base)) ** exponents.astype(np.float64)).astype(np.float32)
    if scaling is None:
        return np.float32(1) / periods
    if scaling.kind == "longrope":
        is_long = length > scaling.original_context
        factors = scaling.long_factors if is_long else scaling.short_factors
        return _longrope(periods, factors)
    return _STRETCHED[scaling.kind](periods, base, scaling)


def _longrope(periods: NDArray[Any], factors: tuple[float, ...]) -> NDArray[Any]:
    """LongRoPE (arXiv 2402.13753): what was searched for, pair by pair."""
    import numpy as np

    if factors and len(factors) != len(periods):
        raise GraphError(
            f"longrope has {len(factors)} factors for {len(periods)} pairs of rotary dimensions"
        )
    found = np.array(factors or (1.0,), np.float32)
    divided: NDArray[Any] = np.float32(1) / (found * periods)
    return divided


def _linear(periods: NDArray[Any], _base: float, scaling: RopeScaling) -> NDArray[Any]:
    return 1 / periods / scaling.factor


def _llama3(periods: NDArray[Any], _base: float, scaling: RopeScaling) -> NDArray[Any]:
    """Llama 3.1's own rule, as in `apply_scaling` of its reference code."""
    import numpy as np

    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    frequencies = 1 / periods
    wavelengths = 2 * math.pi / frequencies
    is_slow = wavelengths > scaling.original_context / low
    is_fast = wavelengths < scaling.original_context / high
    stretched = np.where(is_slow, frequencies / scaling.factor, frequencies)
    if low == high:
        return stretched
    share = (scaling.original_context / wavelengths - low) / (high - low)
    blended = (1 - share) * stretched / scaling.factor + share * stretched
    return np.where(is_slow | is_fast, stretched, blended)


def _yarn(periods: NDArray[Any], base: float, scaling: RopeScaling) -> NDArray[Any]:
    """YaRN (arXiv 2309.00071), section 3.2: a ramp over pairs by the logarithm of their speed."""
    import numpy as np

    pairs = len(periods)

    def pair_that_turns(times: float) -> float:
        length = scaling.original_context / (times * 2 * math.pi)
        return pairs * math.log(length) / math.log(base)

    first, last = pair_that_turns(scaling.beta_fast), pair_that_turns(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    # The bound is the number of dimensions, not of pairs: so transformers and llama.cpp have it.
    first, last = max(first, 0), min(last, 2 * pairs - 1)
    if first == last:
        last += 0.001
    ramp = (np.arange(pairs, dtype=np.float32) - np.float32(first)) / np.float32(last - first)
    kept = 1 - np.clip(ramp, 0, 1)
    blended: NDArray[Any] = 1 / (scaling.factor * periods) * (1 - kept) + 1 / periods * kept
    return blended


_STRETCHED: dict[str, Callable[[NDArray[Any], float, RopeScaling], NDArray[Any]]] = {
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}
