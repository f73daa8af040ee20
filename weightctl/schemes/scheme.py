"""The record of a scheme: names, shape rule, decoding, and how its tensors are cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from weightctl.schemes.candidate import Candidate, LogicalWeight
    from weightctl.schemes.cutting import Axes
    from weightctl.schemes.decoding.tensors import Decoding, SchemeTensors
    from weightctl.schemes.names import NameEndings

__all__ = ["Scheme"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Scheme:
    """A way to store a weight in several tensors.

    `label` is what people read, with the `{bits}` of a number, or what its `{element}` is called.
    Nothing decides on it.

    `names` are how tools name the tensors, the usual way first.

    `infer` returns the weight that tensors of these names represent, by their shapes. It returns
    None if they do not fit together: then they are something else, and stay what they are.

    `decode` returns how the values of a weight follow from its tensors, and raises
    `ConversionError` if one cannot be decoded; None if none can.

    `cut` returns, for each tensor of a weight, what of it belongs to each axis of the weight, and
    raises `ConversionError` if one cannot be cut; None if none can.
    """

    label: str
    names: tuple[NameEndings, ...]
    infer: Callable[[Candidate], LogicalWeight | None]
    decode: Callable[[SchemeTensors], Decoding] | None = None
    cut: Callable[[SchemeTensors], Sequence[Axes]] | None = None
