"""The pairing of a checkpoint's tensors with the parts of a model."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import ArchitectureError, ConversionError
from weightctl.families.conversions import convert_form, module_form
from weightctl.families.parts import shape_of
from weightctl.families.row_orders import invert
from weightctl.schemes.buffers import is_buffer
from weightctl.weights.derived import DerivedTensor, tensor_of
from weightctl.weights.steps.rows import RowOrder, RowRange, StackedEntry
from weightctl.weights.steps.transposed import Transposed
from weightctl.weights.tree import info_of, source_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.family import Family, Name, TensorNames
    from weightctl.families.fusions import Fusion
    from weightctl.families.keys import Config, NamingConvention
    from weightctl.weights.derived import ReadableTensor, Step
    from weightctl.weights.tree import Checkpoint

__all__ = ["EMBEDDING_WEIGHT", "OF_TOKENS", "OUTPUT_WEIGHT", "Match", "match"]

# What has a row for each token, and in some checkpoints more, for the speed of the training.
OF_TOKENS = EMBEDDING_WEIGHT, OUTPUT_WEIGHT = ("embedding.weight", "output.weight")


class Match(NamedTuple):
    """The tensors of a model by the names of our modules, as its checkpoint's convention has them.

    `missing` are those that the config asks for, as the checkpoint would call them, `unexpected`
    those that no part of the model is known to have, and `beside` those of heads for training.
    """

    tensors: Mapping[str, ReadableTensor]
    missing: list[str]
    unexpected: list[str]
    beside: list[str]
    stored: Mapping[str, str]


def match(
    weights: Checkpoint, family: Family, convention: NamingConvention, config: Config, where: str
) -> Match:
    """Match the tensors of a checkpoint with those that a model of this config has.

    Of tensors that hold several parts, each part is a tensor made of it; rows of an embedding
    without a token are left out. Raises `ArchitectureError` if one is too small for that.
    """
    names = _Names(weights, family, convention)
    fusions = [each for each in family.fusions if each.convention == convention]
    lines = {line.module: line for line in family.names}
    tensors: dict[str, ReadableTensor] = {}
    missing: list[str] = []
    stored_as: dict[str, str] = {}
    for tensor in family.tensors(config):
        wanted = tensor.name(convention)
        is_alone = wanted is not None and convention not in tensor.fusions
        found = names.find(wanted) if is_alone and wanted is not None else None
        try:
            if found is not None:
                stored: ReadableTensor = tensor_of(source_of(weights), found)
                if tensor.is_stacked(convention):
                    stored = DerivedTensor(tensor.module, StackedEntry(tensor.expert), [stored])
            else:
                fused = _part_of(tensor, names, fusions, lines, config)
                if fused is None:
                    missing.append(wanted or tensor.module)
                    continue
                stored, found = fused
        except ConversionError as error:
            raise ArchitectureError(f"{where}: {error.message}", hint=error.hint) from error
        form = module_form(tensor, convention)
        if form != convention:
            with suppress(ConversionError):  # it has not the shape of its module either
                stored = convert_form(tensor, stored, config, convention, form)
        tensors[tensor.module] = _without_padding(tensor, stored, config)
        stored_as[tensor.module] = found
    copies = {
        names.plain(each.name(convention) or ""): each.module for each in family.copies(config)
    }
    stored_as |= {module: name for plain, module in copies.items() if (name := names.find(plain))}
    used = set(stored_as.values())
    rest = [
        name
        for name in names.stored
        if name not in used
        and names.plain(name) not in copies
        and not is_buffer(info_of(names.stored[name]))
    ]
    beside = [name for name in rest if family.is_beside(names.plain(name))]
    unexpected = [name for name in rest if not family.is_beside(names.plain(name))]
    return Match(tensors, list(dict.fromkeys(missing)), unexpected, beside, stored_as)


def _without_padding(names: TensorNames, tensor: ReadableTensor, config: Config) -> ReadableTensor:
    """Return a tensor without the rows behind those of the vocabulary's tokens."""
    shape = tensor.info.shape
    if names.module not in OF_TOKENS or len(shape) != 2 or shape[0] <= config.vocabulary:
        return tensor
    return DerivedTensor(names.module, RowRange(0, config.vocabulary), [tensor])


class _Names:
    """The names of a checkpoint, found by how all checkpoints of the convention have them."""

    def __init__(self, weights: Checkpoint, family: Family, convention: NamingConvention) -> None:
        self.weights = weights
        self.stored = dict(weights.items())
        self._family = family
        self._convention = convention
        self._by_plain: dict[str, str] = {}
        for name in self.stored:
            self._by_plain.setdefault(self.plain(name), name)

    def plain(self, name: str) -> str:
        return self._family.plain(name) if self._convention == "hugging_face" else name

    def find(self, wanted: str) -> str | None:
        return wanted if wanted in self.stored else self._by_plain.get(self.plain(wanted))


def _part_of(
    tensor: TensorNames,
    names: _Names,
    fusions: list[Fusion],
    lines: Mapping[str, Name],
    config: Config,
) -> tuple[ReadableTensor, str] | None:
    """Return a part of a tensor that holds several, and that one's name; None if none does."""
    for fusion in fusions:
        if tensor.line.module not in fusion.parts:
            continue
        found = names.find(fusion.tensor(tensor.kind, tensor.layer, tensor.expert))
        if found is None:
            continue
        whole: ReadableTensor = tensor_of(source_of(names.weights), found)
        if fusion.of_experts:
            whole = DerivedTensor(tensor.module, StackedEntry(tensor.expert), [whole])
        if fusion.is_transposed(tensor.kind):
            whole = DerivedTensor(tensor.module, Transposed(), [whole])
        sizes = [shape_of(tensor._replace(line=lines[part]), config)[0] for part in fusion.parts]
        rest = whole.info.shape[0] if whole.info.shape else 0
        if sum(sizes) != rest:
            raise ConversionError(
                f"`{found}` has {rest} rows, but its parts need {' + '.join(map(str, sizes))}",
                hint="check that the config belongs to this checkpoint",
            )
        number = fusion.parts.index(tensor.line.module)
        first = sum(sizes[:number])
        rows: Step = RowRange(first, first + sizes[number])
        if fusion.order is not None:
            order = invert(fusion.order(config))[first : first + sizes[number]]
            rows = RowOrder(order, "rows of one part", rest)
        return DerivedTensor(tensor.module, rows, [whole]), found
    return None
