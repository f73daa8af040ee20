"""RoPE and its scaling: the angle by which each pair of elements is rotated per position."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from weightctl.errors import GraphError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """The RoPE scaling of a model, to a context that is `factor` times the original one.

    - `kind`: `linear` (all pairs), `llama3` (only slow pairs), `yarn` (a ramp between fast and slow
      pairs), `longrope` (a factor for each pair) or `proportional` (the `share` of fastest pairs is
      rotated and scaled, and the others are not rotated).
    - `original_context`: the length of the context that the model was trained on first.
    - `low_frequency_factor`, `high_frequency_factor`: llama3 scales pairs with at most the low
      number of turns in the original context in full, and does not change those with at least the
      high number.
    - `beta_fast`, `beta_slow`: the ends of yarn's ramp, in turns; `truncate` rounds them to whole
      pairs.
    - `attention_factor`: the factor of cosines and sines of yarn and longrope; None for the value
      that the paper recommends.
    - `mscale`, `mscale_all_dim`: yarn's recommended factor is the ratio of the factors for these
      two scales, if both are given.
    - `short_factors`, `long_factors`: longrope's divisors of the frequencies, up to the original
      context and beyond it. They are empty if the checkpoint has them as tensors.
    """

    kind: Literal["linear", "llama3", "yarn", "longrope", "proportional"]
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
    share: float = 1.0

    def __post_init__(self) -> None:
        known = (*_STRETCHED, "longrope", "proportional")
        if self.kind not in known:
            raise GraphError(
                f"`{self.kind}` is not a supported RoPE scaling",
                hint=f"use one of {', '.join(known)}",
            )
        if not self.factor > 0:
            raise GraphError(
                f"a RoPE scaling factor of {self.factor:g} is not valid: it must be greater than 0"
            )
        if self.kind not in {"linear", "proportional"} and self.original_context <= 0:
            raise GraphError(
                f"{self.kind} scaling needs the original context length",
                hint="set `original_context`",
            )

    @property
    def amplitude(self) -> float:
        """The factor of cosines and sines; 1 except for yarn and longrope."""
        if self.kind not in {"yarn", "longrope"}:
            return 1.0
        return self.advised_amplitude if self.attention_factor is None else self.attention_factor

    def count_rotated(self, dimensions: int) -> int:
        """Return how many of the pairs of a head of `dimensions` elements are rotated."""
        return int(self.share * dimensions // 2)

    @property
    def advised_amplitude(self) -> float:
        """The factor that the papers of yarn (2309.00071) and longrope (2402.13753) recommend."""
        if self.kind == "longrope":
            # The logarithm of a context of 1 is 0, and cannot be divided by.
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
    """Return the radians per position of each rotated pair, float32[dimensions / 2].

    `length` is the number of positions, by which longrope selects its factors. The values are
    rounded to float32 after each step, as in transformers' `ROPE_INIT_FUNCTIONS`, so that the
    angles in long contexts are those that a model was trained with. Powers are computed in float64,
    because float32 powers differ between machines.
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
    if scaling.kind == "proportional":
        rotated = np.arange(len(periods)) < scaling.count_rotated(dimensions)
        return np.where(rotated, 1 / periods / np.float32(scaling.factor), np.float32(0))
    return _STRETCHED[scaling.kind](periods, base, scaling)


def _longrope(periods: NDArray[Any], factors: tuple[float, ...]) -> NDArray[Any]:
    """LongRoPE (arXiv 2402.13753): factors for each pair, found by a search."""
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
    """YaRN (arXiv 2309.00071), section 3.2: a ramp over the logarithms of the frequencies."""
    import numpy as np

    pairs = len(periods)

    def pair_that_turns(times: float) -> float:
        length = scaling.original_context / (times * 2 * math.pi)
        return pairs * math.log(length) / math.log(base)

    first, last = pair_that_turns(scaling.beta_fast), pair_that_turns(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    # The limit is the number of dimensions instead of pairs, as in transformers and llama.cpp.
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
