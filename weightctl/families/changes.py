"""The changes of tensors between the two naming conventions, besides their names.

Tensors that hold several parts are `families/fusions.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from weightctl.families.row_orders import half_split_order, interleaved_order, invert

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from weightctl.families.keys import Config, Fields, NamingConvention
    from weightctl.weights.derived import Step

__all__ = [
    "MINUS_EXP",
    "PLUS_ONE",
    "TRANSPOSED",
    "Change",
    "LeadingRows",
    "RopeRows",
    "Rows",
    "ScaledQueries",
    "Squeezed",
    "TurnedHeads",
]


class Change(Protocol):
    """How a tensor of one convention becomes that of the other; `config` is that of the family."""

    @property
    def is_of_rows(self) -> bool:
        """Whether whole rows change places, so that it can be done to blocks and biases too."""
        ...

    @property
    def runs_as(self) -> NamingConvention | None:
        """The convention whose form our modules have.

        None if they compute with either, as a checkpoint has it.
        """
        ...

    def fields(self, convention: NamingConvention) -> Mapping[str, Any]:
        """Return the fields of a config that say which form its tensors have."""
        ...

    def to_gguf(self, config: Config) -> Step | None:
        """Return the step that makes GGUF's tensor from Hugging Face's; None if they are equal."""
        ...

    def to_hugging_face(self, config: Config) -> Step | None:
        """Return the step that makes Hugging Face's tensor from GGUF's; None if they are equal."""
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

    @property
    def runs_as(self) -> None:
        """None: attention rotates either pairs or halves."""
        return None

    def fields(self, convention: NamingConvention) -> Mapping[str, Any]:
        """Return whether pairs stand together."""
        return {"rope_interleaved": convention == "gguf"}

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
class Rows:
    """The rows stand in another order in Hugging Face's convention: `order` of those of GGUF.

    Modules have them as GGUF does. `text` describes the order to users.
    """

    order: Callable[[Any], Sequence[int]]
    text: str = "rows in another order"

    @property
    def is_of_rows(self) -> bool:
        """True."""
        return True

    @property
    def runs_as(self) -> NamingConvention:
        """GGUF's."""
        return "gguf"

    def fields(self, convention: NamingConvention) -> Mapping[str, Any]:  # noqa: ARG002
        """Return nothing."""
        return {}

    def to_gguf(self, config: Config) -> Step:
        """Return the step that undoes the order."""
        from weightctl.weights.steps.rows import RowOrder

        return RowOrder(invert(self.order(config)), self.text)

    def to_hugging_face(self, config: Config) -> Step:
        """Return the step that puts the rows into the order."""
        from weightctl.weights.steps.rows import RowOrder

        return RowOrder(tuple(self.order(config)), self.text)


class _OfValues:
    """What the changes have in common that change values or shapes, and are run as they are."""

    __slots__ = ()

    @property
    def is_of_rows(self) -> bool:
        """False."""
        return False

    @property
    def runs_as(self) -> NamingConvention | None:
        """Hugging Face's convention."""
        return "hugging_face"

    def fields(self, convention: NamingConvention) -> Mapping[str, Any]:  # noqa: ARG002
        """Return nothing."""
        return {}


@dataclass(frozen=True, slots=True)
class _Transposed(_OfValues):
    """A matrix that stands (inputs, outputs) with Hugging Face's names, as GPT-2's `Conv1D` does.

    In GGUF it is (outputs, inputs). A vector is the same in both.
    """

    @property
    def runs_as(self) -> None:
        """None: a `Linear` multiplies by either."""
        return None

    def fields(self, convention: NamingConvention) -> Mapping[str, Any]:
        """Return whether matrices stand (inputs, outputs)."""
        return {"transposed": convention == "hugging_face"}

    def to_gguf(self, config: Config) -> Step:  # noqa: ARG002  # as a `Change` has it
        """Return the step that turns the matrix."""
        from weightctl.weights.steps.transposed import Transposed

        return Transposed()

    def to_hugging_face(self, config: Config) -> Step:
        """Return the same step, which is its own inverse."""
        return self.to_gguf(config)


@dataclass(frozen=True, slots=True)
class _PlusOne(_OfValues):
    """The weight of a norm that GGUF has as it multiplies, and Hugging Face's convention less 1."""

    @property
    def runs_as(self) -> None:
        """None: norms add what is missing."""
        return None

    def fields(self, convention: NamingConvention) -> Mapping[str, Any]:
        """Return what the weights of norms are stored less."""
        return {"norm_offset": 1.0 if convention == "hugging_face" else 0.0}

    def to_gguf(self, config: Config) -> Step:  # noqa: ARG002  # as a `Change` has it
        """Return the step that adds 1."""
        from weightctl.weights.steps.numbers import Plus

        return Plus(1.0)

    def to_hugging_face(self, config: Config) -> Step:  # noqa: ARG002
        """Return the step that takes 1 away."""
        from weightctl.weights.steps.numbers import Plus

        return Plus(-1.0)


@dataclass(frozen=True, slots=True)
class ScaledQueries(_OfValues):
    """A weight that multiplies queries, with their scale in GGUF, which has no key for it.

    The root of a config's `query_scalar` divides the scores; in llama.cpp, the root of what
    `llama_cpp` returns from the fields of the config. If the weight is that of a norm (`is_norm`),
    Hugging Face's convention stores it minus 1.
    """

    llama_cpp: Callable[[Fields], int]
    is_norm: bool = False

    @property
    def runs_as(self) -> None:
        """None: the scale in a config is the one that belongs to its weights."""
        return None

    def fields(self, convention: NamingConvention) -> Mapping[str, Any]:
        """Return what the weights of norms are stored less."""
        return PLUS_ONE.fields(convention) if self.is_norm else {}

    def to_gguf(self, config: Config) -> Step | None:
        """Return the step that multiplies by the scale, None if llama.cpp takes the same."""
        from weightctl.weights.steps.numbers import Scaled

        given: Any = config
        fields = {name: getattr(given, name) for name in given.__dataclass_fields__}
        scalar = self.llama_cpp(fields)
        if scalar == given.query_scalar:
            return PLUS_ONE.to_gguf(config) if self.is_norm else None
        return Scaled(math.sqrt(scalar / given.query_scalar), 1.0 if self.is_norm else 0.0)

    def to_hugging_face(self, config: Config) -> Step | None:
        """Return the step that takes 1 away from a norm; the scale is then llama.cpp's."""
        return PLUS_ONE.to_hugging_face(config) if self.is_norm else None


@dataclass(frozen=True, slots=True)
class _MinusExp(_OfValues):
    """The rates of a state space, `-exp(x)` in GGUF and `x` in Hugging Face's convention."""

    def to_gguf(self, config: Config) -> Step:  # noqa: ARG002
        """Return the step that takes the exponential."""
        from weightctl.weights.steps.numbers import MinusExp

        return MinusExp()

    def to_hugging_face(self, config: Config) -> Step:  # noqa: ARG002
        """Return the step that takes the logarithm."""
        from weightctl.weights.steps.numbers import LogOfMinus

        return LogOfMinus()


@dataclass(frozen=True, slots=True)
class Squeezed(_OfValues):
    """A tensor with a dimension of 1, `axis` of Hugging Face's shape, that GGUF leaves out.

    Modules have it as Hugging Face does, or as GGUF does if `is_run_without`.
    """

    axis: int
    is_run_without: bool = False

    @property
    def runs_as(self) -> NamingConvention:
        """Hugging Face's convention, or GGUF's."""
        return "gguf" if self.is_run_without else "hugging_face"

    def to_gguf(self, config: Config) -> Step:  # noqa: ARG002
        """Return the step that leaves it out."""
        from weightctl.weights.steps.reshaped import WithoutAxis

        return WithoutAxis(self.axis)

    def to_hugging_face(self, config: Config) -> Step:  # noqa: ARG002
        """Return the step that puts it in."""
        from weightctl.weights.steps.reshaped import WithAxis

        return WithAxis(self.axis)


@dataclass(frozen=True, slots=True)
class LeadingRows:
    """A table whose first rows nothing looks up: GGUF leaves out `count` of them.

    Hugging Face's convention has them, as zeros where they are made again. Modules are without.
    """

    count: Callable[[Any], int]

    @property
    def is_of_rows(self) -> bool:
        """False: rows are made, too."""
        return False

    @property
    def runs_as(self) -> NamingConvention:
        """GGUF's."""
        return "gguf"

    def fields(self, convention: NamingConvention) -> Mapping[str, Any]:  # noqa: ARG002
        """Return nothing."""
        return {}

    def to_gguf(self, config: Config) -> Step:
        """Return the step that leaves them out."""
        from weightctl.weights.steps.rows import RowsFrom

        return RowsFrom(self.count(config))

    def to_hugging_face(self, config: Config) -> Step:
        """Return the step that puts zeros there."""
        from weightctl.weights.steps.rows import ZerosBefore

        return ZerosBefore(self.count(config))


@dataclass(frozen=True, slots=True)
class TurnedHeads(_OfValues):
    """A projection of each head by itself, which GGUF has as one tensor for each head.

    Hugging Face's convention has the rows of all heads, one after the other, of one matrix; GGUF
    has `[heads, rows, inputs]`, or `[heads, inputs, rows]` where `is_transposed`. `heads` is the
    field of the config that counts them.
    """

    heads: str = "heads"
    is_transposed: bool = False

    def to_gguf(self, config: Config) -> Step:
        """Return the step that takes the heads apart."""
        from weightctl.weights.steps.reshaped import SplitHeads

        return SplitHeads(getattr(config, self.heads), self.is_transposed)

    def to_hugging_face(self, config: Config) -> Step:  # noqa: ARG002
        """Return the step that puts the heads together."""
        from weightctl.weights.steps.reshaped import JoinedHeads

        return JoinedHeads(self.is_transposed)


TRANSPOSED: Change = _Transposed()
PLUS_ONE: Change = _PlusOne()
MINUS_EXP: Change = _MinusExp()
