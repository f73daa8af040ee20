"""A tensor of a checkpoint and the same part of another model, and all such pairs of the two."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import ConversionError
from weightctl.steps.numbers import AsFloat32
from weightctl.verify.compare.cost import Side
from weightctl.verify.compare.once_quantized import OnceQuantized, once_quantized
from weightctl.verify.compare.samples import Samples
from weightctl.weights.derived import Made

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from weightctl.archs import RecognizedModel
    from weightctl.archs.arch import TensorNames
    from weightctl.archs.keys import Dialect
    from weightctl.verify.problem import Cause
    from weightctl.weights.derived import Tensor

    # The module, the axis, and the steps that made the tensor what it is compared as.
    OrderKey = tuple[str, int, tuple[str, ...]]
    Places = tuple[int, ...]

__all__ = ["Pair", "Pairing", "in_dialect"]


class Pair(NamedTuple):
    """One tensor of a checkpoint and the same one of the reference, both in one dialect.

    `module` is what our modules call it, `part` that without layer and expert, and `layer` its
    layer's number, None where it is of none. `name` and `reference_name` are what the checkpoints
    call what they store it in. `names` are None where the family is unknown. `bits` and
    `reference_bits` say how many bits either spends on a number.
    """

    module: str
    part: str
    layer: int | None
    name: str
    reference_name: str
    tensor: Tensor
    reference: Tensor
    names: TensorNames | None = None
    bits: float = 32
    reference_bits: float = 32

    @property
    def expert(self) -> int | None:
        """The number of the expert that it is of, None where it is of none."""
        is_of_one = self.names is not None and "{expert}" in self.names.line.module
        return self.names.expert if self.names is not None and is_of_one else None

    @property
    def sides(self) -> tuple[Side, Side]:
        """How either is stored."""
        return (
            Side(self.tensor.info.encoding, self.bits),
            Side(self.reference.info.encoding, self.reference_bits),
        )


@dataclass(frozen=True, kw_only=True)
class Pairing:
    """The tensors of two checkpoints, paired.

    `missing` are what the checkpoint would call those that only the reference has, `unexpected`
    what it calls those that only it has. `how` tells people by which names they were paired.
    `checkpoint` and `reference` are the models, None where the family is unknown.

    What was found out of a pair is kept, by its module, for the check that asks next: `within` says
    whether it is off by no more than its encodings cost, and `causes` why it is off, None where
    nothing is known. `orders` are those in which a tensor has the rows or columns of its reference,
    and `alike` says of parts of the model whether they compute what the reference's do though their
    tensors differ. `samples` are of tensors that are compared with many others.
    """

    pairs: Sequence[Pair]
    missing: list[str]
    unexpected: list[str]
    how: str
    checkpoint: RecognizedModel | None = None
    reference: RecognizedModel | None = None
    within: dict[str, bool] = field(default_factory=dict[str, bool])
    causes: dict[str, Cause | None] = field(default_factory=dict[str, "Cause | None"])
    orders: dict[OrderKey, Places | None] = field(default_factory=dict["OrderKey", "Places | None"])
    alike: dict[str, Cause | None] = field(default_factory=dict[str, "Cause | None"])
    samples: Samples = field(default_factory=Samples)

    @cached_property
    def by_module(self) -> Mapping[str, Pair]:
        """The pairs by what our modules call them."""
        return {pair.module: pair for pair in self.pairs}

    @cached_property
    def once_quantized(self) -> OnceQuantized:
        """What the tensors of either side were in before they were made full precision."""
        views = [view for pair in self.pairs if (view := self.seen_in("gguf", pair)) is not None]
        return once_quantized(views)

    @cached_property
    def by_part(self) -> Mapping[tuple[str, int | None], Sequence[Pair]]:
        """The pairs that are one part of several layers, by the part and the expert."""
        return _grouped(self.pairs, lambda pair: (pair.part, pair.expert))

    @cached_property
    def by_layer(self) -> Mapping[tuple[str, int | None], Sequence[Pair]]:
        """The pairs that are one part of several experts, by the part and the layer."""
        return _grouped(self.pairs, lambda pair: (pair.part, pair.layer))

    def seen_in(self, dialect: Dialect, pair: Pair) -> Pair | None:
        """Return a pair of this pairing as a dialect has it, None where that cannot be."""
        own, other = self.checkpoint, self.reference
        if pair.names is None or own is None or other is None:
            return pair
        tensor, counterpart = own.tensors.get(pair.module), other.tensors.get(pair.module)
        if tensor is None or counterpart is None:
            return pair
        try:
            tensor = in_dialect(pair.names, tensor, own, dialect)
            counterpart = in_dialect(pair.names, counterpart, other, dialect)
        except ConversionError:
            return None
        return pair._replace(tensor=tensor, reference=counterpart)


def _grouped(
    pairs: Sequence[Pair], key: Callable[[Pair], tuple[str, int | None]]
) -> dict[tuple[str, int | None], list[Pair]]:
    found: dict[tuple[str, int | None], list[Pair]] = {}
    for pair in pairs:
        found.setdefault(key(pair), []).append(pair)
    return found


def in_dialect(
    names: TensorNames, tensor: Tensor, checkpoint: RecognizedModel, dialect: Dialect
) -> Tensor:
    """Return a tensor of a checkpoint as another dialect has it; itself where that is its own.

    Raises `ConversionError` where it is of another shape than the change between them can be done
    to.
    """
    change = names.change
    if change is None or checkpoint.dialect == dialect:
        return tensor
    if not change.is_of_rows and tensor.info.encoding.block > 1:
        tensor = Made(names.module, AsFloat32(), [tensor])
    config = checkpoint.config
    step = change.to_gguf(config) if dialect == "gguf" else change.to_hugging_face(config)
    return Made(names.module, step, [tensor])
