"""What differs between the tensors of the two dialects, besides their names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.archs.keys import Config

__all__ = ["TRANSPOSED", "RopeRows", "Step", "Transposed", "half_split_order", "interleaved_order"]


def interleaved_order(heads: int, head_dim: int, rotated: int | None = None) -> list[int]:
    """Return which half-split row each row of an interleaved projection is: `new = old[order]`.

    A rotary embedding turns numbers in pairs. In GGUF a pair's rows are neighbours; in Hugging
    Face's dialect the first rows of all pairs of a head stand before all the second ones. Of each
    head the first `rotated` rows, all where not given, are in pairs; the others stay.
    """
    rotated = head_dim if rotated is None else rotated
    half = rotated // 2
    return [
        head * head_dim + (row % 2 * half + row // 2 if row < rotated else row)
        for head in range(heads)
        for row in range(head_dim)
    ]


def half_split_order(heads: int, head_dim: int, rotated: int | None = None) -> list[int]:
    """Return which interleaved row each row of a half-split projection is: `new = old[order]`.

    The inverse of `interleaved_order`.
    """
    rotated = head_dim if rotated is None else rotated
    half = rotated // 2
    return [
        head * head_dim + (row % half * 2 + row // half if row < rotated else row)
        for head in range(heads)
        for row in range(head_dim)
    ]


class Step(Protocol):
    """How a tensor of one dialect becomes that of the other; `config` is that of the family."""

    @property
    def is_of_rows(self) -> bool:
        """Whether whole rows change places, so that it can be done to the bytes of blocks too."""
        ...

    def to_gguf(self, array: NDArray[Any], config: Config) -> NDArray[Any]:
        """Return GGUF's array for Hugging Face's."""
        ...

    def to_hugging_face(self, array: NDArray[Any], config: Config) -> NDArray[Any]:
        """Return Hugging Face's array for GGUF's."""
        ...


@dataclass(frozen=True, slots=True)
class RopeRows:
    """The rows of a query or key projection stand in GGUF pair by pair, elsewhere half by half.

    `heads` is the field of the config that counts the heads: `heads` or `kv_heads`. A bias is of
    rows of one number.
    """

    heads: str

    @property
    def is_of_rows(self) -> bool:
        """True."""
        return True

    def gguf_order(self, config: Config) -> list[int]:
        """Return which of Hugging Face's rows each of GGUF's is."""
        return interleaved_order(*self._sizes(config))

    def hugging_face_order(self, config: Config) -> list[int]:
        """Return which of GGUF's rows each of Hugging Face's is."""
        return half_split_order(*self._sizes(config))

    def to_gguf(self, array: NDArray[Any], config: Config) -> NDArray[Any]:
        """Return the rows of numbers or blocks in GGUF's order."""
        return array[self.gguf_order(config)]

    def to_hugging_face(self, array: NDArray[Any], config: Config) -> NDArray[Any]:
        """Return the rows of numbers or blocks in Hugging Face's order."""
        return array[self.hugging_face_order(config)]

    def _sizes(self, config: Config) -> tuple[int, int, int]:
        # Only configs of families with rotary embeddings get here, and those have these fields.
        given: Any = config
        return getattr(given, self.heads), given.head_dim, given.rope_dimensions


@dataclass(frozen=True, slots=True)
class Transposed:
    """A matrix that stands (inputs, outputs) in Hugging Face's dialect, as GPT-2's `Conv1D` does.

    In GGUF it is (outputs, inputs). A vector is the same in both.
    """

    @property
    def is_of_rows(self) -> bool:
        """False."""
        return False

    def to_gguf(self, array: NDArray[Any], config: Config) -> NDArray[Any]:  # noqa: ARG002  # a step's
        """Return the matrix as (outputs, inputs)."""
        return array.T

    def to_hugging_face(self, array: NDArray[Any], config: Config) -> NDArray[Any]:  # noqa: ARG002
        """Return the matrix as (inputs, outputs)."""
        return array.T


TRANSPOSED = Transposed()
