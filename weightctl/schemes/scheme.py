"""The record of a scheme: how its tensors are named, matched, decoded, and cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from weightctl.schemes import SCHEMES
from weightctl.system.registry import load

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from weightctl.schemes.cutting import Axes
    from weightctl.schemes.decoding.tensors import Decoding, SchemeTensors
    from weightctl.schemes.naming import Candidate, LogicalWeight, NameEndings


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Scheme:
    """A way to store a weight in several tensors.

    `label` is the name for users; it can contain the `{bits}` of a value, or the name of an
    `{element}`. No code depends on it.

    `names` are the names that tools give the tensors, the usual ones first.

    `infer` returns the weight that tensors of these names represent, by their shapes. It returns
    None if they do not fit together; they are then unrelated, and stay as they are.

    `decode` returns how the values of a weight are computed from its tensors, and raises
    `ConversionError` if a weight cannot be decoded. It is None if no weight can be decoded.

    `cut` returns, for each tensor of a weight, how the axes of the weight map to its axes, and
    raises `ConversionError` if a weight cannot be split. It is None if no weight can be split.
    """

    label: str
    names: tuple[NameEndings, ...]
    infer: Callable[[Candidate], LogicalWeight | None]
    decode: Callable[[SchemeTensors], Decoding] | None = None
    cut: Callable[[SchemeTensors], Sequence[Axes]] | None = None


def load_scheme(name: str) -> Scheme:
    """Return the scheme with a name of `SCHEMES`."""
    return cast("Scheme", load(SCHEMES[name].record))
