"""RoPE that rotates a share of the pairs of a head: `proportional` of transformers.

GGUF has the tensor `rope_freqs.weight`, whose values divide the frequencies: those of pairs that
are not rotated are so large that nothing is left. Source: `Gemma4Model.generate_extra_tensors` in
llama.cpp's `conversion/gemma.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.errors import ArchitectureError
from weightctl.families.configs import shortest
from weightctl.families.keys import Key, Present
from weightctl.families.kinds import FLAG, Choice, Exactly, Real
from weightctl.families.windowed_layers import GLOBAL

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from weightctl.families.keys import Config, Fields
    from weightctl.families.rope_scaling import RopeScaling

_PROPORTIONAL = "proportional"
# The divisor of pairs that are not rotated, and the least of those that are read as one.
_UNROTATED, _LEAST = 1e30, 1e15
_ROPE = f"rope_parameters.{GLOBAL}."
_LARGE = Real(0, 1e9)
_UNSCALED = "llama.cpp scales the RoPE of Gemma 4 by a tensor only"

PROPORTIONAL_KEYS = (
    Key(field="rope_kind", default=None, hugging_face=_ROPE + "rope_type",
        kind=Choice({_PROPORTIONAL: _PROPORTIONAL, "default": None})),
    Key(field="rotated_share", kind=Real(0, 1), default=1.0,
        hugging_face=_ROPE + "partial_rotary_factor"),
    Key(field="rope_factor", kind=_LARGE, default=lambda _: 1.0,
        hugging_face=_ROPE + "factor"),
    Key(field="has_rope_factors", kind=FLAG, default=False, seen=Present("rope_freqs.weight")),
    Key(field="no_scaling", kind=Exactly("none", _UNSCALED), gguf_default="none",
        gguf="{arch}.rope.scaling.type", written=False),
    Key(field="no_factor", kind=Exactly(1.0, _UNSCALED), gguf_default=1.0,
        gguf="{arch}.rope.scaling.factor", written=False),
)  # fmt: skip


def make_proportional(fields: Fields) -> RopeScaling | None:
    """Return the RoPE scaling that the fields of `PROPORTIONAL_KEYS` state, None without one."""
    from weightctl.families.rope_scaling import RopeScaling

    if fields.get("rope_kind") is None:
        return None
    return RopeScaling(
        kind="proportional", factor=fields["rope_factor"], share=fields["rotated_share"]
    )


def _list_factors(config: Config) -> NDArray[Any]:
    """Return the divisors of the frequencies, float32[rope_dimensions / 2]."""
    import numpy as np

    given: Any = config
    pairs, scaled = given.rope_dimensions // 2, given.rope_scaling
    made = np.ones(pairs, np.float32)
    if scaled is not None:
        made *= np.float32(scaled.factor)
        made[scaled.count_rotated(given.rope_dimensions) :] = _UNROTATED
    return made


def _add_share(fields: Fields, factors: NDArray[Any]) -> Fields:
    """Return the fields from GGUF's keys with the RoPE that `rope_freqs.weight` states.

    Raises `ArchitectureError` if config.json cannot express it.
    """
    numbers = factors.ravel().tolist()
    rotated = [number for number in numbers if number < _LEAST]
    is_known = numbers[: len(rotated)] == rotated and len(set(rotated)) == 1 and rotated[0] > 0
    if not is_known or len(numbers) != fields["rope_dimensions"] // 2:
        raise ArchitectureError(
            "this model cannot be described in config.json: `rope_freqs.weight` does not have one "
            "value for the first pairs and a very large one for the others",
            hint='to convert only its tensors, use --names keep (names="keep" in Python)',
        )
    factor, share = shortest(rotated[0]), len(rotated) / len(numbers)
    made = {**fields, "has_rope_factors": False}
    if factor == 1 and share == 1:
        return {**made, "rope_kind": None}
    return {**made, "rope_kind": _PROPORTIONAL, "rope_factor": factor, "rotated_share": share}


# What the line of the tensor has in a family with this RoPE.
FACTORS_LINE: Mapping[str, Any] = {"made": _list_factors, "add_fields": _add_share}
