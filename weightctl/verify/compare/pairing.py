"""The paired tensors of two checkpoints, and what the checks have found of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import ConversionError
from weightctl.families.steps import convert_form, module_form
from weightctl.verify.compare.causes import is_of_both
from weightctl.verify.compare.causes.dequantized import OnceQuantized, find_once_quantized
from weightctl.verify.compare.distance import PairSide
from weightctl.verify.compare.measure import Samples

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from weightctl.families import RecognizedModel
    from weightctl.families.family import TensorNames
    from weightctl.families.keys import NamingConvention
    from weightctl.verify.results import Explanation
    from weightctl.weights.derived import ReadableTensor

    # The module, the axis, and the steps that were applied to the tensor.
    OrderKey = tuple[str, int, tuple[str, ...]]
    Places = tuple[int, ...]


class Pair(NamedTuple):
    """A tensor of a checkpoint and the reference's counterpart, both in one naming convention.

    `module` is the parameter's name in weightctl's modules, `part` that name without layer and
    expert, and `layer` the number of the layer, or None. `name` and `reference_name` are the names
    of the stored tensors. `names` has the parameter's names in both naming conventions; it is None
    if the family is unknown. `bits` and `reference_bits` are the bits per value in the files.
    """

    module: str
    part: str
    layer: int | None
    name: str
    reference_name: str
    tensor: ReadableTensor
    reference: ReadableTensor
    names: TensorNames | None = None
    bits: float = 32
    reference_bits: float = 32

    @property
    def expert(self) -> int | None:
        """The number of the expert that the tensor is part of, or None."""
        is_of_one = self.names is not None and "{expert}" in self.names.line.module
        return self.names.expert if self.names is not None and is_of_one else None

    @property
    def sides(self) -> tuple[PairSide, PairSide]:
        """How the two tensors are stored."""
        return (
            PairSide(self.tensor.info.encoding, self.bits),
            PairSide(self.reference.info.encoding, self.reference_bits),
        )


@dataclass(frozen=True, kw_only=True)
class Pairing:
    """The paired tensors of two checkpoints.

    `missing` are the tensors that only the reference has, by their names in the checkpoint's naming
    convention; `unexpected` are those that only the checkpoint has. `how` says, for messages, by
    which names the tensors were paired. `checkpoint` and `reference` are the models, None if the
    family is unknown.

    Results are kept for later checks, by module. `within` says whether the encodings explain the
    error of a pair, and `causes` what does if they do not; None if unknown. `orders` are the orders
    in which tensors have the rows or columns of their references. `alike` says why parts of the
    model compute the same results although their tensors differ. `samples` caches samples of
    tensors that are compared with many others.
    """

    pairs: Sequence[Pair]
    missing: list[str]
    unexpected: list[str]
    how: str
    checkpoint: RecognizedModel | None = None
    reference: RecognizedModel | None = None
    within: dict[str, bool] = field(default_factory=dict[str, bool])
    causes: dict[str, Explanation | None] = field(default_factory=dict[str, "Explanation | None"])
    orders: dict[OrderKey, Places | None] = field(default_factory=dict["OrderKey", "Places | None"])
    alike: dict[str, Explanation | None] = field(default_factory=dict[str, "Explanation | None"])
    samples: Samples = field(default_factory=Samples)

    @property
    def is_of_other_models(self) -> bool:
        """Whether the tensors were found to be from another model or another training step."""
        return any(cause is not None and is_of_both(cause.name) for cause in self.causes.values())

    @cached_property
    def by_module(self) -> Mapping[str, Pair]:
        """The pairs by their `module`."""
        return {pair.module: pair for pair in self.pairs}

    @cached_property
    def once_quantized(self) -> OnceQuantized:
        """The encodings in which the full-precision tensors of both sides were once quantized."""
        views = [view for pair in self.pairs if (view := self.seen_in("gguf", pair)) is not None]
        return find_once_quantized(views)

    @cached_property
    def by_part(self) -> Mapping[tuple[str, int | None], Sequence[Pair]]:
        """The pairs grouped by part and expert: each group has the same weight of all layers."""
        return _group(self.pairs, lambda pair: (pair.part, pair.expert))

    @cached_property
    def by_layer(self) -> Mapping[tuple[str, int | None], Sequence[Pair]]:
        """The pairs grouped by part and layer: each group has the same weight of all experts."""
        return _group(self.pairs, lambda pair: (pair.part, pair.layer))

    def seen_in(self, convention: NamingConvention, pair: Pair) -> Pair | None:
        """Return a pair of this pairing in a naming convention.

        The pair is returned unchanged if the family is unknown, or if a side does not store the
        tensor. Return None if the shapes do not fit the conversion.
        """
        own, other = self.checkpoint, self.reference
        if pair.names is None or own is None or other is None:
            return pair
        tensor, counterpart = own.tensors.get(pair.module), other.tensors.get(pair.module)
        if tensor is None or counterpart is None:
            return pair
        try:
            tensor = convert_convention(pair.names, tensor, own, convention)
            counterpart = convert_convention(pair.names, counterpart, other, convention)
        except ConversionError:
            return None
        return pair._replace(tensor=tensor, reference=counterpart)


def _group(
    pairs: Sequence[Pair], key: Callable[[Pair], tuple[str, int | None]]
) -> dict[tuple[str, int | None], list[Pair]]:
    found: dict[tuple[str, int | None], list[Pair]] = {}
    for pair in pairs:
        found.setdefault(key(pair), []).append(pair)
    return found


def convert_convention(
    names: TensorNames,
    tensor: ReadableTensor,
    checkpoint: RecognizedModel,
    convention: NamingConvention,
) -> ReadableTensor:
    """Return a tensor of a model as a naming convention stores it.

    The tensor is returned unchanged if weightctl's modules use the same form. Raises
    `ConversionError` if its shape does not fit the conversion.
    """
    form = module_form(names, checkpoint.convention)
    return convert_form(names, tensor, checkpoint.config, form, convention)
