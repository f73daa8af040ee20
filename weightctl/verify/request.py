"""What is to be verified, and how."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from weightctl.device import CPU

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightctl.device import DeviceRef
    from weightctl.verify.compare.pairs import Pairing
    from weightctl.verify.run.prompt import Prompt
    from weightctl.verify.subject import Subject

__all__ = ["Request"]


@dataclass(frozen=True, kw_only=True)
class Request:
    """A checkpoint to verify, alone or against a `reference`, and the bars that it has to pass.

    The model runs on `device`, on `tokens`, else on `text`, else on the built-in text. `layers` are
    the numbers that alone are looked at, all where None. A perplexity above `max_perplexity`, a
    mean Kullback-Leibler divergence above `max_divergence` and a relative RMSE of a tensor above
    `max_rmse` are problems; without the last the bar is what the encodings should cost. `progress`
    is told what is being done, and how much of it is done, from 0 to 1.
    """

    subject: Subject
    reference: Subject | None = None
    device: DeviceRef = CPU
    text: str | None = None
    tokens: tuple[int, ...] | None = None
    layers: range | None = None
    max_perplexity: float | None = None
    max_divergence: float | None = None
    max_rmse: float | None = None
    progress: Callable[[str, float], object] | None = None

    @cached_property
    def prompt(self) -> Prompt:
        """The tokens that those run on that are known, one at least; the reference is asked first.

        Raises what `run.prompt` does.
        """
        from weightctl.verify.run.prompt import prompt

        subjects = (self.reference, self.subject)
        return prompt(self, *(each for each in subjects if each and each.checkpoint))

    @cached_property
    def pairing(self) -> Pairing:
        """The tensors of both, paired, and what the checks have found out of them.

        Raises `ValueError` where there is no reference.
        """
        from weightctl.verify.compare.pairing import paired

        if self.reference is None:
            raise ValueError("there is nothing to compare with")
        return paired(self.subject, self.reference)

    def tell(self, doing: str, done: float) -> None:
        """Tell whoever wants to know."""
        if self.progress is not None:
            self.progress(doing, done)

    def has_layer(self, number: int | None) -> bool:
        """Whether a layer is looked at; what is of no layer is only where all are."""
        return self.layers is None or (number is not None and number in self.layers)

    def last_layer(self, layers: int) -> int:
        """Return the last layer, of so many, that has to run; -1 where none was asked for.

        The numbers that are asked for may go on far beyond those that there are.
        """
        return max(filter(self.has_layer, range(layers)), default=-1)
