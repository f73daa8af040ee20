"""Changes of a tensor's shape between the naming conventions, and several changes in turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.changes import Change
    from weightctl.families.keys import Config, NamingConvention
    from weightctl.weights.derived import Step


class _OfShape:
    """The common base of changes of shapes; modules compute with Hugging Face's shape."""

    __slots__ = ()

    @property
    def is_of_rows(self) -> bool:
        """False."""
        return False

    @property
    def runs_as(self) -> NamingConvention:
        """Hugging Face's convention."""
        return "hugging_face"

    def fields(self, convention: NamingConvention) -> Mapping[str, Any]:  # noqa: ARG002
        """Return no fields."""
        return {}


@dataclass(frozen=True, slots=True)
class AsColumn(_OfShape):
    """A vector that GGUF stores as a matrix with one column."""

    def to_gguf(self, config: Config) -> Step:  # noqa: ARG002  # as a `Change` has it
        """Return the step that adds a dimension of 1."""
        from weightctl.weights.steps.reshaped import WithAxis

        return WithAxis(1)

    def to_hugging_face(self, config: Config) -> Step:  # noqa: ARG002
        """Return the step that removes the dimension."""
        from weightctl.weights.steps.reshaped import WithoutAxis

        return WithoutAxis(1)


AS_COLUMN = AsColumn()


@dataclass(frozen=True, slots=True)
class GroupRows(_OfShape):
    """A vector that GGUF stores as a matrix with a row for each group of elements.

    `groups` is the config field with the number of groups.
    """

    groups: str

    def to_gguf(self, config: Config) -> Step:
        """Return the step that divides the vector into rows."""
        from weightctl.weights.steps.reshaped import SplitRows

        return SplitRows(getattr(config, self.groups))

    def to_hugging_face(self, config: Config) -> Step:  # noqa: ARG002
        """Return the step that joins the rows."""
        from weightctl.weights.steps.reshaped import JoinedRows

        return JoinedRows()


@dataclass(frozen=True, slots=True)
class RowsAsVector(_OfShape):
    """A matrix whose rows GGUF stores one after the other, as a vector.

    `rows` is the config field with the number of rows.
    """

    rows: str

    def to_gguf(self, config: Config) -> Step:  # noqa: ARG002
        """Return the step that joins the rows."""
        from weightctl.weights.steps.reshaped import JoinedRows

        return JoinedRows()

    def to_hugging_face(self, config: Config) -> Step:
        """Return the step that divides the vector into rows."""
        from weightctl.weights.steps.reshaped import SplitRows

        return SplitRows(getattr(config, self.rows))


class _OfGguf(_OfShape):
    """The common base of changes for tensors whose lines describe GGUF's shape."""

    __slots__ = ()

    @property
    def runs_as(self) -> NamingConvention:
        """GGUF's convention."""
        return "gguf"


@dataclass(frozen=True, slots=True)
class AsScalar(_OfGguf):
    """A scalar that GGUF stores as a vector of one element."""

    def to_gguf(self, config: Config) -> Step:  # noqa: ARG002
        """Return the step that adds a dimension."""
        from weightctl.weights.steps.reshaped import Reshaped

        return Reshaped((1,))

    def to_hugging_face(self, config: Config) -> Step:  # noqa: ARG002
        """Return the step that removes the dimension."""
        from weightctl.weights.steps.reshaped import Reshaped

        return Reshaped(())


AS_SCALAR = AsScalar()


@dataclass(frozen=True, slots=True)
class PatchRows(_OfGguf):
    """A projection of patches that Hugging Face's convention stores as a matrix.

    Its inputs are the pixels of a patch, each with its channels. GGUF stores it as a convolution,
    `[hidden, channels, patch_size, patch_size]`.
    """

    def to_gguf(self, config: Config) -> Step:
        """Return the step that puts the channels before the pixels."""
        from weightctl.weights.steps.reshaped import Chained, Reshaped, SplitHeads

        hidden, channels, side = _find_sizes(config)
        return Chained((
            Reshaped((hidden * side * side, channels)),
            SplitHeads(hidden, is_transposed=True),
            Reshaped((hidden, channels, side, side)),
        ))  # fmt: skip

    def to_hugging_face(self, config: Config) -> Step:
        """Return the step that puts the pixels before the channels."""
        from weightctl.weights.steps.reshaped import Chained, JoinedHeads, Reshaped

        hidden, channels, side = _find_sizes(config)
        return Chained((
            Reshaped((hidden, channels, side * side)),
            JoinedHeads(is_transposed=True),
            Reshaped((hidden, side * side * channels)),
        ))  # fmt: skip


def _find_sizes(config: Any) -> tuple[int, int, int]:
    return config.hidden, config.channels, config.patch_size


@dataclass(frozen=True, slots=True)
class Turned(_OfShape):
    """A matrix that Hugging Face stores as (inputs, outputs), and GGUF as (outputs, inputs).

    If `count` is given, it is the config field with the number of such matrices, which are stored
    one after the other along the first axis. Our modules use GGUF's form.
    """

    count: str = ""

    @property
    def runs_as(self) -> NamingConvention:
        """GGUF's convention."""
        return "gguf"

    def to_gguf(self, config: Config) -> Step:
        """Return the step that transposes each matrix."""
        from weightctl.weights.steps.reshaped import JoinedHeads, SplitHeads
        from weightctl.weights.steps.transposed import Transposed

        if not self.count:
            return Transposed()
        return _join(JoinedHeads(), SplitHeads(getattr(config, self.count), is_transposed=True))

    def to_hugging_face(self, config: Config) -> Step:
        """Return the same step, which is its own inverse."""
        return self.to_gguf(config)


@dataclass(frozen=True, slots=True)
class InTurn(_OfShape):
    """Two changes of values or shapes: GGUF's tensor has the first one, then the second one.

    Modules compute with Hugging Face's form.
    """

    first: Change
    second: Change

    def to_gguf(self, config: Config) -> Step:
        """Return the steps of both changes in this order."""
        return _join(self.first.to_gguf(config), self.second.to_gguf(config))

    def to_hugging_face(self, config: Config) -> Step:
        """Return the steps of both changes in the opposite order."""
        return _join(self.second.to_hugging_face(config), self.first.to_hugging_face(config))


def _join(first: Step | None, second: Step | None) -> Step:
    from weightctl.weights.steps.reshaped import Chained

    return Chained(tuple(each for each in (first, second) if each is not None))
