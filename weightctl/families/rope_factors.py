"""Factors of RoPE scaling that GGUF stores as tensors, and config.json as values.

llama.cpp's `convert_hf_to_gguf.py` computes these tensors from `rope_parameters`:
`rope_freqs.weight` for llama3, by which the frequency of each pair is divided, and
`rope_factors_short.weight` and `rope_factors_long.weight` for longrope.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from weightctl.errors import ArchitectureError
from weightctl.families.configs import shortest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from weightctl.families.keys import Config, Fields
    from weightctl.families.rope_scaling import RopeScaling

# The relative error of a value that was computed in float32 in a few steps.
_ROUNDING = 2e-6
# Usual lengths of contexts: powers of 2, in the order in which they are tried.
_CONTEXTS = [1 << bits for bits in range(13, 21)] + [1 << bits for bits in range(12, 3, -1)]
_USUAL_LOW, _USUAL_HIGH = 1.0, 4.0


def rope_factors(config: Config) -> NDArray[Any] | None:
    """Return the divisors of the frequencies with llama3 scaling, float32[rope_dimensions / 2].

    None for other scaling.
    """
    stretched, dimensions, base = _rotation(config)
    if stretched is None or stretched.kind != "llama3":
        return None
    return _llama3(
        _turns(base, dimensions),
        stretched.factor,
        stretched.original_context,
        stretched.low_frequency_factor,
        stretched.high_frequency_factor,
    )


def short_factors(config: Config) -> NDArray[Any] | None:
    """Return longrope's divisors up to the original context, float32[rope_dimensions / 2].

    None for other scaling.
    """
    import numpy as np

    stretched = _longrope(config)
    return None if stretched is None else np.array(stretched.short_factors, np.float32)


def long_factors(config: Config) -> NDArray[Any] | None:
    """Return longrope's divisors beyond the original context, float32[rope_dimensions / 2].

    None for other scaling.
    """
    import numpy as np

    stretched = _longrope(config)
    return None if stretched is None else np.array(stretched.long_factors, np.float32)


def with_llama3(fields: Fields, factors: NDArray[Any]) -> Fields:
    """Return the fields from GGUF's keys with the scaling that `rope_freqs.weight` states.

    Raises `ArchitectureError` if config.json cannot express the scaling.
    """
    if fields["scaling.kind"] is not None and fields["scaling.factor"] not in {0, 1, None}:
        raise _cannot_express("both `rope_freqs.weight` and a metadata key scale its RoPE")
    try:
        scaled = llama3_scaling(
            factors,
            fields["rope_base"],
            fields["rope_dimensions"],
            fields["context"],
            fields["scaling.original_context"],
        )
    except ValueError as error:
        raise _cannot_express(str(error)) from error
    # `scaling.linear` would mean that the RoPE fields are those of GGUF.
    kept = {name: value for name, value in fields.items() if name != "scaling.linear"}
    return kept | scaled | {"has_rope_factors": False}


def with_short_factors(fields: Fields, factors: NDArray[Any]) -> Fields:
    """Return the fields from GGUF's keys with the values of `rope_factors_short.weight`."""
    return _with_factors(fields, "scaling.short_factors", factors)


def with_long_factors(fields: Fields, factors: NDArray[Any]) -> Fields:
    """Return the fields from GGUF's keys with the values of `rope_factors_long.weight`."""
    return _with_factors(fields, "scaling.long_factors", factors)


def _with_factors(fields: Fields, name: str, factors: NDArray[Any]) -> Fields:
    numbers = tuple(shortest(number) for number in factors.ravel().tolist())
    return {**fields, name: numbers, "has_rope_factors": False}


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
    turns = _turns(rope_base, dimensions)
    known = original_context if original_context not in {None, context} else None
    for original, low, high in _candidates(found, factor, turns, known):
        if not (original >= 1 and 0 < low <= high):
            continue
        made = _llama3(turns, factor, original, low, high)
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


def _llama3(
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


def _turns(base: float, dimensions: int) -> NDArray[Any]:
    """Return the number of turns of each pair per position without RoPE scaling."""
    import numpy as np

    from weightctl.families.rope_scaling import inverse_frequencies

    turns: NDArray[Any] = inverse_frequencies(dimensions, base) / np.float32(2 * math.pi)
    return turns


def _rotation(config: Any) -> tuple[RopeScaling | None, int, float]:
    return config.rope_scaling, config.rope_dimensions, config.rope_base


def _longrope(config: Config) -> RopeScaling | None:
    stretched = _rotation(config)[0]
    return stretched if stretched is not None and stretched.kind == "longrope" else None


def _round(number: float) -> float:
    """Return the number rounded to 4 digits."""
    return float(f"{number:.4g}")


# The line of the factors for families with llama3 scaling.
LLAMA3_LINES: Mapping[str, Mapping[str, Any]] = {
    "rope_factors": {"made": rope_factors, "add_fields": with_llama3},
}
