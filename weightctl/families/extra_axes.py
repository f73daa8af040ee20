"""Tensors that both naming conventions store with dimensions of 1 that our modules do not have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weightctl.families.keys import NamingConvention


@dataclass(frozen=True, slots=True)
class ExtraAxes:
    """Where dimensions of 1 are inserted into the shape of our modules, for each convention.

    GGUF files may have more or fewer dimensions of 1 before the others, which mean nothing to ggml.
    If `is_exponential`, GGUF has `-exp(x)` in place of the values.
    """

    gguf: tuple[int, ...]
    hugging_face: tuple[int, ...]
    is_exponential: bool = False

    @property
    def is_of_rows(self) -> bool:
        """False."""
        return False

    def fields(self, convention: NamingConvention) -> Mapping[str, Any]:  # noqa: ARG002
        """Return no fields."""
        return {}

    def shape(self, own: Sequence[int], convention: NamingConvention) -> tuple[int, ...]:
        """Return the shape in a naming convention of a tensor of the shape `own` in our modules."""
        found = list(own)
        for axis in self.gguf if convention == "gguf" else self.hugging_face:
            found.insert(axis, 1)
        return tuple(found)
