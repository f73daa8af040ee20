"""How fast a checkpoint's rotary embeddings turn, whichever way it is said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weightctl.archs.configs import Read
from weightctl.errors import GraphError, WeightctlError
from weightctl.nn.rope_scaling import inverse_frequencies
from weightctl.steps.numbers import numbers_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from weightctl.archs import RecognizedModel
    from weightctl.archs.keys import Fields

__all__ = ["plain", "rotates_alike"]

# A few roundings of float32, in which GGUF has factors.
_ROUNDING = 1e-5
_LONGEST = 1 << 30


def plain(checkpoint: RecognizedModel) -> Read:
    """Return what a config says, with what GGUF has small tensors for said in words.

    As it is where config.json had no words for that.
    """
    fields: Fields = checkpoint.fields
    try:
        for names in checkpoint.arch.tensors(checkpoint.config):
            told, tensor = names.line.told, checkpoint.tensors.get(names.module)
            if told is not None and tensor is not None:
                fields = told(fields, numbers_of(tensor))
        if fields is checkpoint.fields:
            return Read(fields, checkpoint.config)
        return Read(fields, checkpoint.arch.make_config(checkpoint.arch.checked(fields)))
    except (KeyError, ValueError, WeightctlError):
        return Read(checkpoint.fields, checkpoint.config)


def rotates_alike(one: Read, other: Read) -> bool:
    """Whether two configs turn pairs of numbers by the same angles; True where neither turns any.

    Speeds of a checkpoint's own tensors that no config has words for are not compared.
    """
    if any(getattr(each.config, "has_rope_factors", False) for each in (one, other)):
        return True
    found, wanted = (_speeds(each.config) for each in (one, other))
    return len(found) == len(wanted) and all(
        a.shape == b.shape and np.allclose(a, b, rtol=_ROUNDING, atol=0)
        for a, b in zip(found, wanted, strict=True)
    )


def _speeds(config: Any) -> Sequence[NDArray[Any]]:
    """Return the speeds of near and far positions, and what cosines are multiplied by."""
    base, scaling = getattr(config, "rope_base", None), getattr(config, "rope_scaling", None)
    if base is None:
        return ()
    amplitude = np.array(1.0 if scaling is None else scaling.amplitude)
    try:
        return (
            inverse_frequencies(config.rope_dimensions, base, scaling),
            inverse_frequencies(config.rope_dimensions, base, scaling, _LONGEST),
            amplitude,
        )
    except GraphError:
        return (amplitude,)
