"""The changes of tensors between the two naming conventions, besides their names."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from weightctl.families.keys import Config
    from weightctl.weights.derived import Step

__all__ = [
    "PLUS_ONE",
    "TRANSPOSED",
    "Change",
    "RopeRows",
    "half_split_order",
    "interleaved_order",
]


@lru_cache(maxsize=64)  # a model has two, in all of its layers
def interleaved_order(heads: int, head_dim: int, rotated: int | None = None) -> tuple[int, ...]:
    """Return which half-split row each row of an interleaved projection is: `new = old[order]`.

    A rotary embedding turns numbers in pairs. In GGUF a pair's rows are neighbors; in Hugging
    Face's naming convention the first rows of all pairs of a head stand before all the second ones.
    Of each head the first `rotated` rows, all where not given, are in pairs; the others stay.
    """
    rotated = head_dim if rotated is None else rotated
    half = rotated // 2
    return tuple(
        head * head_dim + (row % 2 * half + row // 2 if row < rotated else row)
        for head in range(heads)
        for row in range(head_dim)
    )


@lru_cache(maxsize=64)
def half_split_order(heads: int, head_dim: int, rotated: int | None = None) -> tuple[int, ...]:
    """Return which interleaved row each row of a half-split projection is: `new = old[order]`.

    The inverse of `interleaved_order`.
    """
    rotated = head_dim if rotated is None else rotated
    half = rotated // 2
    return tuple(
        head * head_dim + (row % half * 2 + row // half if row < rotated else row)
        for head in range(heads)
        for row in range(head_dim)
    )


class Change(Protocol):
    """How a tensor of one convention becomes that of the other; `config` is that of the family."""

    @property
    def is_of_rows(self) -> bool:
        """Whether whole rows change places, so that it can be done to blocks and biases too."""
        ...

    def to_gguf(self, config: Config) -> Step:
        """Return the step that makes GGUF's tensor of Hugging Face's."""
        ...

    def to_hugging_face(self, config: Config) -> Step:
        """Return the step that makes Hugging Face's tensor of GGUF's."""
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

    def to_gguf(self, config: Config) -> Step:
        """Return the step that puts pairs together."""
        from weightctl.weights.steps.rows import RowOrder

        heads, head_dim, rotated = self._sizes(config)
        return RowOrder(
            interleaved_order(heads, head_dim, rotated), _describe_rows(heads, "interleaved")
        )

    def to_hugging_face(self, config: Config) -> Step:
        """Return the step that puts halves together."""
        from weightctl.weights.steps.rows import RowOrder

        heads, head_dim, rotated = self._sizes(config)
        return RowOrder(
            half_split_order(heads, head_dim, rotated), _describe_rows(heads, "half-split")
        )

    def _sizes(self, config: Config) -> tuple[int, int, int]:
        # Only configs of families with rotary embeddings get here, and those have these fields.
        given: Any = config
        return getattr(given, self.heads), given.head_dim, given.rope_dimensions


def _describe_rows(heads: int, how: str) -> str:
    return f"rows of {heads} {'heads' if heads > 1 else 'head'} reordered for {how} RoPE"


@dataclass(frozen=True, slots=True)
class _Transposed:
    """A matrix that stands (inputs, outputs) with Hugging Face's names, as GPT-2's `Conv1D` does.

    In GGUF it is (outputs, inputs). A vector is the same in both.
    """

    @property
    def is_of_rows(self) -> bool:
        """False."""
        return False

    def to_gguf(self, config: Config) -> Step:  # noqa: ARG002  # as a `Change` has it
        """Return the step that turns the matrix."""
        from weightctl.weights.steps.transposed import Transposed

        return Transposed()

    def to_hugging_face(self, config: Config) -> Step:
        """Return the same step, which is its own inverse."""
        return self.to_gguf(config)


@dataclass(frozen=True, slots=True)
class _PlusOne:
    """The weight of a norm that GGUF has as it multiplies, and Hugging Face's convention less 1."""

    @property
    def is_of_rows(self) -> bool:
        """False."""
        return False

    def to_gguf(self, config: Config) -> Step:  # noqa: ARG002  # as a `Change` has it
        """Return the step that adds 1."""
        from weightctl.weights.steps.numbers import Plus

        return Plus(1.0)

    def to_hugging_face(self, config: Config) -> Step:  # noqa: ARG002
        """Return the step that takes 1 away."""
        from weightctl.weights.steps.numbers import Plus

        return Plus(-1.0)


TRANSPOSED: Change = _Transposed()
PLUS_ONE: Change = _PlusOne()
