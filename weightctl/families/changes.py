"""The differences between the tensors of the two naming conventions, besides their names.

`families/fusions.py` defines the tensors that contain several parts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from weightctl.families.row_orders import (
    group_heads,
    half_split_order,
    interleaved_order,
    invert,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from weightctl.families.keys import Config, Fields, NamingConvention
    from weightctl.weights.derived import Step


class Change(Protocol):
    """How to convert a tensor between the naming conventions; `config` is that of the model."""

    @property
    def is_of_rows(self) -> bool:
        """Whether the change only reorders whole rows, so it also applies to biases and blocks."""
        ...

    @property
    def runs_as(self) -> NamingConvention | None:
        """The naming convention whose form of the tensor our modules compute with.

        None if they compute with both forms.
        """
        ...

    def fields(self, convention: NamingConvention) -> Mapping[str, Any]:
        """Return the fields of a config that state which form its tensors have."""
        ...

    def to_gguf(self, config: Config) -> Step | None:
        """Return the step from Hugging Face's tensor to GGUF's; None if they are equal."""
        ...

    def to_hugging_face(self, config: Config) -> Step | None:
        """Return the step from GGUF's tensor to Hugging Face's; None if they are equal."""
        ...


@dataclass(frozen=True, slots=True)
class RopeRows:
    """The order of the rows of a query or key projection that RoPE rotates in pairs.

    In GGUF the two rows of a pair are neighbors (interleaved). In Hugging Face's convention, the
    first rows of all pairs of a head precede the second ones (half-split). `heads` is the config
    field with the number of heads: `heads` or `kv_heads`. A bias is reordered as rows of one
    element.
    """

    heads: str

    @property
    def is_of_rows(self) -> bool:
        """True."""
        return True

    @property
    def runs_as(self) -> None:
        """None: attention rotates pairs in both orders."""
        return None

    def fields(self, convention: NamingConvention) -> Mapping[str, Any]:
        """Return whether the rows of a pair are neighbors."""
        return {"rope_interleaved": convention == "gguf"}

    def to_gguf(self, config: Config) -> Step:
        """Return the step from the half-split to the interleaved order."""
        from weightctl.weights.steps.rows import RowOrder

        heads, head_dim, rotated = self._sizes(config)
        return RowOrder(
            interleaved_order(heads, head_dim, rotated), _describe_rows(heads, "interleaved")
        )

    def to_hugging_face(self, config: Config) -> Step:
        """Return the step from the interleaved to the half-split order."""
        from weightctl.weights.steps.rows import RowOrder

        heads, head_dim, rotated = self._sizes(config)
        return RowOrder(
            half_split_order(heads, head_dim, rotated), _describe_rows(heads, "half-split")
        )

    def _sizes(self, config: Config) -> tuple[int, int, int]:
        # Only configs of families with RoPE get here, and they have these fields.
        given: Any = config
        return getattr(given, self.heads), given.head_dim, given.rope_dimensions


def _describe_rows(heads: int, how: str) -> str:
    return f"rows of {heads} {'heads' if heads > 1 else 'head'} reordered for {how} RoPE"


@dataclass(frozen=True, slots=True)
class Rows:
    """Another order of the rows: `order(config)` has GGUF's row for each of Hugging Face's rows.

    Our modules use GGUF's order. `text` describes the change to users.
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
        """Return no fields."""
        return {}

    def to_gguf(self, config: Config) -> Step:
        """Return the step that restores GGUF's order."""
        from weightctl.weights.steps.rows import RowOrder

        return RowOrder(invert(self.order(config)), self.text)

    def to_hugging_face(self, config: Config) -> Step:
        """Return the step that applies the order."""
        from weightctl.weights.steps.rows import RowOrder

        return RowOrder(tuple(self.order(config)), self.text)


class _OfValues:
    """The common base of changes of values or shapes; modules compute with Hugging Face's form."""

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
        """Return no fields."""
        return {}


@dataclass(frozen=True, slots=True)
class _Transposed(_OfValues):
    """A matrix that Hugging Face stores as (inputs, outputs), as GPT-2's `Conv1D` does.

    GGUF stores it as (outputs, inputs). A vector is the same in both conventions.
    """

    @property
    def runs_as(self) -> None:
        """None: a `Linear` computes with both forms."""
        return None

    def fields(self, convention: NamingConvention) -> Mapping[str, Any]:
        """Return whether matrices are stored as (inputs, outputs)."""
        return {"transposed": convention == "hugging_face"}

    def to_gguf(self, config: Config) -> Step:  # noqa: ARG002  # as a `Change` has it
        """Return the step that transposes the matrix."""
        from weightctl.weights.steps.transposed import Transposed

        return Transposed()

    def to_hugging_face(self, config: Config) -> Step:
        """Return the same step, which is its own inverse."""
        return self.to_gguf(config)


@dataclass(frozen=True, slots=True)
class PlusOffset(_OfValues):
    """The weight of a norm that Hugging Face's convention stores minus `value`, and GGUF as it is.

    `field` is the config field with the value that these norms add.
    """

    value: float
    field: str = "norm_offset"

    @property
    def runs_as(self) -> None:
        """None: norms add the offset that the config states."""
        return None

    def fields(self, convention: NamingConvention) -> Mapping[str, Any]:
        """Return the offset, which norms add to their weights."""
        return {self.field: self.value if convention == "hugging_face" else 0.0}

    def to_gguf(self, config: Config) -> Step:  # noqa: ARG002  # as a `Change` has it
        """Return the step that adds the value."""
        from weightctl.weights.steps.numbers import Plus

        return Plus(self.value)

    def to_hugging_face(self, config: Config) -> Step:
        """Return the step that subtracts the value."""
        return PlusOffset(-self.value).to_gguf(config)


@dataclass(frozen=True, slots=True)
class ScaledQueries(_OfValues):
    """A weight that multiplies queries, and that contains their scale in GGUF, which has no key.

    Attention scores are divided by the square root of `query_scalar` in the config, and in
    llama.cpp by the square root of `llama_cpp(fields)`. If the weight is that of a norm
    (`is_norm`), Hugging Face's convention stores it minus 1.
    """

    llama_cpp: Callable[[Fields], int]
    is_norm: bool = False

    @property
    def runs_as(self) -> None:
        """None: a config states the scale that belongs to its own weights."""
        return None

    def fields(self, convention: NamingConvention) -> Mapping[str, Any]:
        """Return the offset, which norms add to their weights."""
        return PLUS_ONE.fields(convention) if self.is_norm else {}

    def to_gguf(self, config: Config) -> Step | None:
        """Return the step that multiplies by the ratio of the scales, and adds 1 for a norm.

        None for other weights if both scales are equal.
        """
        from weightctl.weights.steps.numbers import Multiplied

        given: Any = config
        fields = {name: getattr(given, name) for name in given.__dataclass_fields__}
        scalar = self.llama_cpp(fields)
        if scalar == given.query_scalar:
            return PLUS_ONE.to_gguf(config) if self.is_norm else None
        return Multiplied(math.sqrt(scalar / given.query_scalar), 1.0 if self.is_norm else 0.0)

    def to_hugging_face(self, config: Config) -> Step | None:
        """Return the step that subtracts 1 for a norm; the config then has llama.cpp's scale."""
        return PLUS_ONE.to_hugging_face(config) if self.is_norm else None


@dataclass(frozen=True, slots=True)
class _MinusExp(_OfValues):
    """The rates of a state space model: `-exp(x)` in GGUF, `x` in Hugging Face's convention."""

    def to_gguf(self, config: Config) -> Step:  # noqa: ARG002
        """Return the step that computes `-exp(x)`."""
        from weightctl.weights.steps.numbers import MinusExp

        return MinusExp()

    def to_hugging_face(self, config: Config) -> Step:  # noqa: ARG002
        """Return the step that computes the logarithm of the negated values."""
        from weightctl.weights.steps.numbers import LogOfMinus

        return LogOfMinus()


@dataclass(frozen=True, slots=True)
class Squeezed(_OfValues):
    """A tensor in which GGUF leaves out a dimension of 1, `axis` of Hugging Face's shape.

    Our modules have the dimension, unless `is_run_without`.
    """

    axis: int
    is_run_without: bool = False

    @property
    def runs_as(self) -> NamingConvention:
        """Hugging Face's convention, or GGUF's."""
        return "gguf" if self.is_run_without else "hugging_face"

    def to_gguf(self, config: Config) -> Step:  # noqa: ARG002
        """Return the step that removes the dimension."""
        from weightctl.weights.steps.reshaped import WithoutAxis

        return WithoutAxis(self.axis)

    def to_hugging_face(self, config: Config) -> Step:  # noqa: ARG002
        """Return the step that inserts the dimension."""
        from weightctl.weights.steps.reshaped import WithAxis

        return WithAxis(self.axis)


@dataclass(frozen=True, slots=True)
class LeadingRows:
    """A table whose first `count(config)` rows are never looked up, so that GGUF leaves them out.

    Hugging Face's convention has them; they are written as zeros. Our modules do not have them.
    """

    count: Callable[[Any], int]

    @property
    def is_of_rows(self) -> bool:
        """False: rows are also added."""
        return False

    @property
    def runs_as(self) -> NamingConvention:
        """GGUF's."""
        return "gguf"

    def fields(self, convention: NamingConvention) -> Mapping[str, Any]:  # noqa: ARG002
        """Return no fields."""
        return {}

    def to_gguf(self, config: Config) -> Step:
        """Return the step that removes the rows."""
        from weightctl.weights.steps.rows import RowsFrom

        return RowsFrom(self.count(config))

    def to_hugging_face(self, config: Config) -> Step:
        """Return the step that inserts zeros in place of the rows."""
        from weightctl.weights.steps.rows import ZerosBefore

        return ZerosBefore(self.count(config))


@dataclass(frozen=True, slots=True)
class TurnedHeads(_OfValues):
    """A projection that GGUF stores head by head, along a new first dimension.

    Hugging Face's convention stores one matrix with the rows of all heads, one head after the
    other. GGUF stores `[heads, rows, inputs]`, or `[heads, inputs, rows]` if `is_transposed`.
    `heads` is the config field with the number of heads.
    """

    heads: str = "heads"
    is_transposed: bool = False

    def to_gguf(self, config: Config) -> Step:
        """Return the step that splits the matrix into heads."""
        from weightctl.weights.steps.reshaped import SplitHeads

        return SplitHeads(getattr(config, self.heads), self.is_transposed)

    def to_hugging_face(self, config: Config) -> Step:  # noqa: ARG002
        """Return the step that joins the heads into one matrix."""
        from weightctl.weights.steps.reshaped import JoinedHeads

        return JoinedHeads(self.is_transposed)


@dataclass(frozen=True, slots=True)
class _Int32(_OfValues):
    """A table of integers: 32-bit ones in GGUF, 64-bit ones in Hugging Face's convention."""

    def to_gguf(self, config: Config) -> Step:  # noqa: ARG002
        """Return the step that makes 32-bit integers."""
        from weightctl.weights.steps.integers import AsIntegers

        return AsIntegers("I32")

    def to_hugging_face(self, config: Config) -> Step:  # noqa: ARG002
        """Return the step that makes 64-bit integers."""
        from weightctl.weights.steps.integers import AsIntegers

        return AsIntegers("I64")


def _group_by_head(config: Any) -> Sequence[int]:
    return group_heads(config.heads, (config.head_dim,) * 3)


def _count_rows(config: Any) -> int:
    """Return how many rows precede that of the first position; the last of them is for padding."""
    return int(config.padding) + 1


def squeezed_everywhere(axis: int) -> Squeezed:
    """Return `Squeezed` for a tensor that our modules have without the dimension."""
    return Squeezed(axis, is_run_without=True)


def query_scalar(layers_of_27b: int) -> Callable[[Fields], int]:
    """Return the default of `query_scalar` in llama.cpp: its root divides the attention scores."""

    def scalar(fields: Fields) -> int:
        if fields["layers"] == layers_of_27b:
            return int(fields["hidden"] // fields["heads"])
        return int(fields["head_dim"])

    return scalar


def scaled_queries(layers_of_27b: int, part: str = "") -> ScaledQueries:
    """Return `ScaledQueries` for llama.cpp's default, of a norm if `part` is `norm`."""
    return ScaledQueries(query_scalar(layers_of_27b), is_norm=part == "norm")


ROWS_FOR_PADDING = LeadingRows(_count_rows)
# In Hugging Face's convention, each head has the rows of its queries, keys and values together.
BY_HEAD = Rows(_group_by_head, "queries, keys and values by head")
TRANSPOSED: Change = _Transposed()
PLUS_ONE: Change = PlusOffset(1.0)
MINUS_EXP: Change = _MinusExp()
INT32 = _Int32()
