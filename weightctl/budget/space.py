"""What a search needs from an output: the tensors, the types they can get, and their values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weightctl.families import RecognizedModel


@dataclass(frozen=True)
class SearchedTensor:
    """A tensor that a type is chosen for.

    `size` is the number of its values. `nbytes` has its bytes in each type that it can get, by the
    name of the type. `stored` is the name of the type in which it keeps its values.
    """

    name: str
    size: int
    nbytes: Mapping[str, int]
    stored: str

    def list_nearest(self, bits: float) -> list[str]:
        """Return the types, those with about so many bits for each weight first."""
        return sorted(self.nbytes, key=lambda kind: abs(8 * self.nbytes[kind] / self.size - bits))


class SearchSpace(Protocol):
    """The tensors of an output whose types are searched for."""

    @property
    def tensors(self) -> Sequence[SearchedTensor]:
        """These tensors."""
        ...

    @property
    def others(self) -> Sequence[int]:
        """The bytes of each other tensor."""
        ...

    @property
    def size(self) -> int:
        """The number of values of all tensors."""
        ...

    @property
    def alignment(self) -> int:
        """The number whose multiples tensors take in a file, in bytes."""
        ...

    def view(self, types: Mapping[str, str] | None = None) -> RecognizedModel:
        """Return the model with some tensors in these types, by name; None for the source."""
        ...

    def measure_errors(self, tensor: SearchedTensor) -> dict[str, float]:
        """Return the mean squared error of each type in a tensor, by the name of the type."""
        ...

    def join(self, name: str) -> tuple[int | None, str]:
        """Return the layer of a tensor, and a name that it shares with those of the same type."""
        ...
