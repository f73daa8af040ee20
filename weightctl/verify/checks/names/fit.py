"""The fit of a checkpoint's tensors to the modules that its config asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from weightctl.families.matching import OF_TOKENS
from weightctl.families.parts import shape_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weightctl.families import RecognizedModel
    from weightctl.families.family import TensorNames
    from weightctl.weights.info import TensorInfo

__all__ = ["Fit", "Misfit", "Wanted", "measure_fit"]


class Wanted(NamedTuple):
    """A missing tensor that the config asks for; `name` is its name in the checkpoint's convention.

    `shape` is the shape of its weight.
    """

    name: str
    names: TensorNames
    shape: tuple[int, ...]


class Misfit(NamedTuple):
    """A tensor of an unexpected shape or type; `name` is the stored tensor's.

    `info` describes the tensor, or its part of a stored tensor. `shape` is the expected shape.
    """

    name: str
    names: TensorNames
    info: TensorInfo
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The tensors that a checkpoint lacks, has in addition, or has with other shapes or types.

    `expected` is the number of tensors that the config asks for, as our modules count them.
    `padded` are stored tensors that have additional rows after those of all tokens.
    """

    expected: int
    missing: list[Wanted]
    misshaped: list[Misfit]
    no_numbers: list[Misfit]
    unexpected: list[str]
    padded: list[TensorInfo]

    @property
    def is_whole(self) -> bool:
        """Whether nothing is wrong."""
        is_wrong = self.missing or self.misshaped or self.no_numbers or self.unexpected
        return not is_wrong and not self.padded


def measure_fit(checkpoint: RecognizedModel) -> Fit:
    """Compare a checkpoint with what its config asks for; no tensor is read."""
    missing: dict[str, Wanted] = {}
    misshaped: list[Misfit] = []
    no_numbers: list[Misfit] = []
    expected = 0
    for names in checkpoint.family.tensors(checkpoint.config):
        expected += 1
        shape = shape_of(names, checkpoint.config)
        tensor = checkpoint.tensors.get(names.module)
        if tensor is None:
            name = names.name(checkpoint.convention) or names.module
            missing.setdefault(name, Wanted(name, names, shape))
            continue
        info = tensor.info
        name = ", ".join(source.name for source in tensor.origin.sources)
        if shape != info.shape:
            misshaped.append(Misfit(name, names, info, shape))
        if not info.encoding.is_real:
            no_numbers.append(Misfit(name, names, info, shape))
    return Fit(
        expected=expected,
        missing=[*missing.values()],
        misshaped=misshaped,
        no_numbers=no_numbers,
        unexpected=checkpoint.unexpected,
        padded=[*_list_padded(checkpoint)],
    )


def _list_padded(checkpoint: RecognizedModel) -> Iterator[TensorInfo]:
    for module in OF_TOKENS:
        tensor = checkpoint.tensors.get(module)
        for stored in () if tensor is None else tensor.origin.sources:
            if len(stored.shape) == 2 and stored.shape[0] > checkpoint.config.vocabulary:
                yield stored
