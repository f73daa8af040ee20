"""Weights that contain factors of the model in GGUF, where the config states them for transformers.

A GGUF file then has no factors. Modules compute with both forms: a config states the factors that
belong to its own weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from weightctl.families.keys import Config, NamingConvention
    from weightctl.weights.derived import Step


class _Scaled:
    """The common base of changes by factors that the config of Hugging Face's convention states."""

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


@dataclass(frozen=True, slots=True)
class HalvedByLayer(_Scaled):
    """A weight that GGUF stores halved once more after each run of layers, for RWKV.

    `every` is the config field with the number of layers in a run, 0 for none. Both conventions
    state it. Our modules use GGUF's form.
    """

    every: str
    layer: int = 0

    @property
    def runs_as(self) -> NamingConvention:
        """GGUF's convention."""
        return "gguf"

    def at(self, layer: int) -> HalvedByLayer:
        """Return the change of the weight of a layer."""
        return replace(self, layer=layer)

    def to_gguf(self, config: Config) -> Step | None:
        """Return the step that multiplies by a power of 1/2, None in the first layers."""
        return self._double(config, -1)

    def to_hugging_face(self, config: Config) -> Step | None:
        """Return the step that multiplies by a power of 2, None in the first layers."""
        return self._double(config, 1)

    def _double(self, config: Config, sign: int) -> Step | None:
        from weightctl.weights.steps.numbers import Doubled

        every = getattr(config, self.every)
        times = self.layer // every if every else 0
        return Doubled(sign * times) if times else None
