"""RoPE in numbers: the angle of each pair of elements per position, and tensors that state it.

GGUF stores factors as tensors, and config.json as values. llama.cpp's `convert_hf_to_gguf.py`
computes these tensors from `rope_parameters`: `rope_freqs.weight` for llama3 and proportional RoPE,
by which the frequency of each pair is divided, and `rope_factors_short.weight` and
`rope_factors_long.weight` for longrope.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from weightctl.errors import ArchitectureError, GraphError
from weightctl.families.configs import shortest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from weightctl.families.config_keys import Config, Fields

# The relative error of a value that was computed in float32 in a few steps.
_ROUNDING = 2e-6
# Usual lengths of contexts: powers of 2, in the order in which they are tried.
_CONTEXTS = [1 << bits for bits in range(13, 21)] + [1 << bits for bits in range(12, 3, -1)]
_USUAL_LOW, _USUAL_HIGH = 1.0, 4.0
# The divisor of pairs that proportional RoPE does not rotate, and the least that is read as one.
_UNROTATED, _LEAST_UNROTATED = 1e30, 1e15


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
        if self.kind not in _FREQUENCIES:
            raise GraphError(
                f"`{self.kind}` is not a supported RoPE scaling",
                hint=f"use one of {', '.join(_FREQUENCIES)}",
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
        return self._advised_amplitude if self.attention_factor is None else self.attention_factor

    def count_rotated(self, dimensions: int) -> int:
        """Return how many of the pairs of a head of `dimensions` elements are rotated."""
        return int(self.share * dimensions // 2)

    @property
    def _advised_amplitude(self) -> float:
        """The factor that the papers of yarn (2309.00071) and longrope (2402.13753) recommend."""
        if self.kind == "longrope":
            # The logarithm of a context of 1 is 0, and cannot be divided by.
            is_longer = self.factor > 1 and self.original_context > 1
            ratio = math.log(self.factor) / math.log(self.original_context) if is_longer else 0
            return math.sqrt(1 + ratio)
        if self.mscale and self.mscale_all_dim:
            amplitude = find_yarn_amplitude(self.factor, self.mscale)
            return amplitude / find_yarn_amplitude(self.factor, self.mscale_all_dim)
        return find_yarn_amplitude(self.factor)


def find_yarn_amplitude(factor: float, scale: float = 1.0) -> float:
    """Return the factor of cosines and sines that YaRN's paper recommends."""
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


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
    return _FREQUENCIES[scaling.kind](periods, scaling, base, length)


def _scale_all(periods: NDArray[Any], scaling: RopeScaling, *_: float) -> NDArray[Any]:
    return 1 / periods / scaling.factor


def _scale_slow_pairs(periods: NDArray[Any], scaling: RopeScaling, *_: float) -> NDArray[Any]:
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


def _scale_by_ramp(
    periods: NDArray[Any], scaling: RopeScaling, base: float, _length: int
) -> NDArray[Any]:
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


def _scale_each_pair(
    periods: NDArray[Any], scaling: RopeScaling, _base: float, length: int
) -> NDArray[Any]:
    """LongRoPE (arXiv 2402.13753): factors for each pair, found by a search."""
    import numpy as np

    is_long = length > scaling.original_context
    factors = scaling.long_factors if is_long else scaling.short_factors
    if factors and len(factors) != len(periods):
        raise GraphError(
            f"longrope has {len(factors)} factors for {len(periods)} pairs of rotary dimensions"
        )
    divided: NDArray[Any] = np.float32(1) / (np.array(factors or (1.0,), np.float32) * periods)
    return divided


def _rotate_share(periods: NDArray[Any], scaling: RopeScaling, *_: float) -> NDArray[Any]:
    import numpy as np

    rotated = np.arange(len(periods)) < scaling.count_rotated(2 * len(periods))
    return np.where(rotated, 1 / periods / np.float32(scaling.factor), np.float32(0))


_FREQUENCIES: Mapping[str, Callable[[NDArray[Any], RopeScaling, float, int], NDArray[Any]]] = {
    "linear": _scale_all,
    "llama3": _scale_slow_pairs,
    "yarn": _scale_by_ramp,
    "longrope": _scale_each_pair,
    "proportional": _rotate_share,
}


# Tensors from the config. Each function returns None for other scaling than its own.


def rope_factors(config: Config) -> NDArray[Any] | None:
    """Return the divisors of the frequencies with llama3 scaling, float32[rope_dimensions / 2]."""
    given: Any = config
    found: RopeScaling | None = given.rope_scaling
    if found is None or found.kind != "llama3":
        return None
    turns = _find_turns(given.rope_base, given.rope_dimensions)
    low, high = found.low_frequency_factor, found.high_frequency_factor
    return _compute_llama3(turns, found.factor, found.original_context, low, high)


def padded_factors(config: Config) -> NDArray[Any] | None:
    """Return the divisors of the frequencies, and 1 up to the most pairs that a layer rotates."""
    import numpy as np

    given: Any = config
    made = rope_factors(config)
    if made is None:
        return None
    return np.pad(made, (0, given.factor_pairs - len(made)), constant_values=1)


def _list_longrope(name: str, config: Config) -> NDArray[Any] | None:
    """Return longrope's divisors up to the original context or beyond it, as `rope_factors`."""
    import numpy as np

    given: Any = config
    found: RopeScaling | None = given.rope_scaling
    is_own = found is not None and found.kind == "longrope"
    return np.array(getattr(found, name), np.float32) if is_own else None


short_factors = partial(_list_longrope, "short_factors")
long_factors = partial(_list_longrope, "long_factors")


def _list_proportional(config: Config) -> NDArray[Any]:
    """Return the divisors of the frequencies with proportional RoPE, of which 1 means none.

    Those of pairs that are not rotated are so large that nothing is left. Source:
    `Gemma4Model.generate_extra_tensors` in llama.cpp's `conversion/gemma.py`.
    """
    import numpy as np

    given: Any = config
    found: RopeScaling | None = given.rope_scaling
    made = np.ones(given.rope_dimensions // 2, np.float32)
    if found is not None:
        made *= np.float32(found.factor)
        made[found.count_rotated(given.rope_dimensions) :] = _UNROTATED
    return made


def _compute_llama3(
    turns: NDArray[Any], factor: float, original: int, low: float, high: float
) -> NDArray[Any]:
    """Return the factors of pairs with these turns per position, in float32."""
    import numpy as np

    times = np.float32(original) * turns
    if low == high:
        return np.where(times < low, np.float32(factor), np.float32(1)).astype(np.float32)
    share = np.clip((times - np.float32(low)) / np.float32(high - low), 0, 1)
    blended = 1 / ((1 - share) / np.float32(factor) + share)
    return np.where(
        times > high, np.float32(1), np.where(times < low, np.float32(factor), blended)
    ).astype(np.float32)


def _find_turns(base: float, dimensions: int) -> NDArray[Any]:
    """Return the number of turns of each pair per position without RoPE scaling."""
    import numpy as np

    turns: NDArray[Any] = inverse_frequencies(dimensions, base) / np.float32(2 * math.pi)
    return turns


# Fields from the tensors. Each function returns those from GGUF's keys with the RoPE of its tensor,
# and raises `ArchitectureError` if config.json cannot express it.


def with_llama3(fields: Fields, factors: NDArray[Any]) -> Fields:
    """Return the fields with the llama3 scaling that `rope_freqs.weight` states."""
    if fields["scaling.kind"] is not None and fields["scaling.factor"] not in {0, 1, None}:
        raise _cannot_express("both `rope_freqs.weight` and a metadata key scale its RoPE")
    names = ("rope_base", "rope_dimensions", "context", "scaling.original_context")
    try:
        scaled = llama3_scaling(factors, *(fields[name] for name in names))
    except ValueError as error:
        raise _cannot_express(str(error)) from error
    # `scaling.linear` would mean that the RoPE fields are those of GGUF.
    kept = {name: value for name, value in fields.items() if name != "scaling.linear"}
    return kept | scaled | {"has_rope_factors": False}


def with_padded_llama3(fields: Fields, factors: NDArray[Any]) -> Fields:
    """Return the fields with the llama3 scaling that `rope_freqs.weight` states.

    llama.cpp's converter writes the factors of a RoPE with as many dimensions as the tensor has
    pairs; only the first of them are used.
    """
    pairs = fields["rope_dimensions"] // 2
    found = factors.ravel()
    if (found[pairs:] == 1).all():
        return with_llama3(fields, found[:pairs])
    made = with_llama3({**fields, "rope_dimensions": 2 * len(found)}, found)
    return {**made, "rope_dimensions": fields["rope_dimensions"]}


def _with_longrope(name: str, fields: Fields, factors: NDArray[Any]) -> Fields:
    """Return the fields with the factors of one of longrope's tensors."""
    numbers = tuple(shortest(number) for number in factors.ravel().tolist())
    return {**fields, name: numbers, "has_rope_factors": False}


with_short_factors = partial(_with_longrope, "scaling.short_factors")
with_long_factors = partial(_with_longrope, "scaling.long_factors")


def _with_proportional(fields: Fields, factors: NDArray[Any]) -> Fields:
    """Return the fields with the proportional RoPE that `rope_freqs.weight` states."""
    numbers = factors.ravel().tolist()
    rotated = [number for number in numbers if number < _LEAST_UNROTATED]
    is_known = numbers[: len(rotated)] == rotated and len(set(rotated)) == 1 and rotated[0] > 0
    if not is_known or len(numbers) != fields["rope_dimensions"] // 2:
        raise _cannot_express(
            "`rope_freqs.weight` does not have one value for the first pairs and a very large one "
            "for the others"
        )
    factor, share = shortest(rotated[0]), len(rotated) / len(numbers)
    made = {**fields, "has_rope_factors": False}
    if factor == 1 and share == 1:
        return {**made, "rope_kind": None}
    return {**made, "rope_kind": "proportional", "rope_factor": factor, "rotated_share": share}


# The line of the factors in families with llama3 scaling, and with proportional RoPE.
LLAMA3_LINES: Mapping[str, Mapping[str, Any]] = {
    "rope_factors": {"made": rope_factors, "add_fields": with_llama3},
}
PROPORTIONAL_LINES: Mapping[str, Mapping[str, Any]] = {
    "rope_factors": {"made": _list_proportional, "add_fields": _with_proportional},
}


def _cannot_express(message: str) -> ArchitectureError:
    return ArchitectureError(
        f"this model cannot be described in config.json: {message}",
        hint='to convert only its tensors, use --names keep (names="keep" in Python)',
    )


def llama3_scaling(
    factors: NDArray[Any],
    rope_base: float,
    dimensions: int,
    context: int,
    original_context: int | None = None,
) -> dict[str, Any]:
    """Return the fields of the llama3 scaling that has these factors, float32[dimensions / 2].

    `original_context` is the length that the file states, which may also be that of a model without
    scaling. The inverses of factors between 1 and the largest depend linearly on the frequency, so
    two of them determine the scaling except for a common factor of the original context and the
    frequency factors; with fewer, the usual values are tried. Raises `ValueError` if no scaling has
    these factors.
    """
    import numpy as np

    found = np.asarray(factors, np.float64).ravel()
    if len(found) != dimensions // 2:
        raise ValueError(
            f"`rope_freqs.weight` has {len(found)} values, but there are "
            f"{dimensions // 2} pairs of rotary dimensions"
        )
    if not (np.isfinite(found).all() and found.min() >= 1 - _ROUNDING):
        raise ValueError(
            "`rope_freqs.weight` has a value that is less than 1 or not finite, which llama3 "
            "scaling does not support"
        )
    factor = shortest(float(found.max()))
    if math.isclose(factor, 1, rel_tol=_ROUNDING):
        return {"scaling.kind": None, "scaling.factor": None}
    turns = _find_turns(rope_base, dimensions)
    known = original_context if original_context not in {None, context} else None
    for original, low, high in _candidates(found, factor, turns, known):
        if not (original >= 1 and 0 < low <= high):
            continue
        made = _compute_llama3(turns, factor, original, low, high)
        if np.allclose(made, found, rtol=_ROUNDING, atol=0):
            return {
                "scaling.kind": "llama3",
                "scaling.factor": factor,
                "scaling.original_context": original,
                "scaling.low_frequency_factor": low,
                "scaling.high_frequency_factor": high,
            }
    raise ValueError("`rope_freqs.weight` does not match llama3 scaling")


def _candidates(
    found: NDArray[Any], factor: float, turns: NDArray[Any], known: int | None
) -> Iterator[tuple[int, float, float]]:
    """Yield lengths of the original context, each with a low and a high frequency factor."""
    is_between = (found > 1 + _ROUNDING) & (found < factor * (1 - _ROUNDING))
    share = (1 / found[is_between] - 1 / factor) / (1 - 1 / factor)
    speed = turns[is_between].astype(float)
    if len(speed) > 1 and speed[0] > speed[-1]:
        # For each pair, `share = (original * turns - low) / (high - low)`.
        slope = (share[0] - share[-1]) / (speed[0] - speed[-1])
        begin = slope * speed[0] - share[0]
        if slope > 0 and begin > 0:
            for original in (known, round(slope / begin * _USUAL_LOW), *_CONTEXTS):
                if original:
                    width = original / slope
                    yield original, _round(begin * width), _round((begin + 1) * width)
    for original in (known, *_CONTEXTS):
        if original and len(speed):
            # One value determines the high factor if the low factor is the usual one.
            width = (original * speed[0] - _USUAL_LOW) / share[0]
            yield original, _USUAL_LOW, _round(_USUAL_LOW + width)
        if original:
            yield original, _USUAL_LOW, _USUAL_HIGH
            if not len(speed):
                yield original, _USUAL_LOW, _USUAL_LOW


def _round(number: float) -> float:
    """Return the number rounded to 4 digits."""
    return float(f"{number:.4g}")
