"""Weights that contain factors of the model in GGUF, where the config states them for transformers.

A GGUF file then has no factors. Modules compute with both forms: a config states the factors that
belong to its own weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from weightctl.families.keys import Config, NamingConvention
    from weightctl.weights.derived import Step

__all__ = ["ScaledBy", "ScaledRuns"]


class _Scaled:
    """The common base of both changes."""

    __slots__ = ()

    @property
    def is_of_rows(self) -> bool:
        """False."""
        return False

    @property
    def runs_as(self) -> NamingConvention | None:
        """None: a config states the factors that belong to its own weights."""
        return None

    def fields(self, convention: NamingConvention) -> Mapping[str, Any]:  # noqa: ARG002
        """Return no fields."""
        return {}

    def to_hugging_face(self, config: Config) -> Step | None:  # noqa: ARG002
        """Return None: the config then has factors of 1."""
        return None


@dataclass(frozen=True, slots=True)
class ScaledBy(_Scaled):
    """A weight that GGUF stores multiplied by `factor(config)`."""

    factor: Callable[[Any], float]

    def to_gguf(self, config: Config) -> Step | None:
        """Return the step that multiplies, None for a factor of 1."""
        from weightctl.weights.steps.numbers import Multiplied

        factor = self.factor(config)
        return None if factor == 1 else Multiplied(factor)


@dataclass(frozen=True, slots=True)
class ScaledRuns(_Scaled):
    """A matrix whose runs of rows GGUF stores multiplied by factors.

    `runs(config)` has the number of rows and the factor of each run.
    """

    runs: Callable[[Any], Sequence[tuple[int, float]]]

    def to_gguf(self, config: Config) -> Step | None:
        """Return the step that multiplies, None if all factors are 1."""
        from weightctl.weights.steps.numbers import MultipliedRows

        runs = tuple(self.runs(config))
        return None if all(factor == 1 for _, factor in runs) else MultipliedRows(runs)
