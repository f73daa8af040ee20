"""The pairing of a checkpoint's tensors with the parts of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import ArchitectureError, ConversionError
from weightctl.schemes.buffers import is_buffer
from weightctl.weights.derived import DerivedTensor, tensor_of
from weightctl.weights.steps.rows import RowRange, StackedEntry
from weightctl.weights.tree import info_of, source_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from weightctl.families.family import Family, Fusion, TensorNames
    from weightctl.families.keys import Config, NamingConvention
    from weightctl.weights.derived import ReadableTensor
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
    fusions = list(_list_fused_parts(family, convention))
    tensors: dict[str, ReadableTensor] = {}
    missing: list[str] = []
    stored_as: dict[str, str] = {}
    for tensor in family.tensors(config):
        wanted = tensor.name(convention)
        found = None if wanted is None else names.find(wanted)
        try:
            if found is not None:
                stored: ReadableTensor = tensor_of(source_of(weights), found)
                if tensor.is_stacked(convention):
                    stored = DerivedTensor(tensor.module, StackedEntry(tensor.expert), [stored])
                tensors[tensor.module] = _without_padding(tensor, stored, config)
                stored_as[tensor.module] = found
                continue
            fused = _part_of(tensor, names, fusions, config)
        except ConversionError as error:
            raise ArchitectureError(f"{where}: {error.message}", hint=error.hint) from error
        if fused is None:
            missing.append(wanted or tensor.module)
            continue
        tensors[tensor.module], stored_as[tensor.module] = fused
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


def _list_fused_parts(
    family: Family, convention: NamingConvention
) -> Iterator[tuple[Fusion, int, str]]:
    """Yield the parts of all fusions, each with its number and name."""
    for fusion in family.fusions:
        if fusion.convention == convention:
            for number, part in enumerate(fusion.parts):
                yield fusion, number, part


def _part_of(
    tensor: TensorNames,
    names: _Names,
    fusions: list[tuple[Fusion, int, str]],
    config: Config,
) -> tuple[ReadableTensor, str] | None:
    """Return a part of a tensor that holds several, and that one's name; None if none does."""
    for fusion, number, part in fusions:
        if part != tensor.line.module:
            continue
        found = names.find(fusion.name.format(tensor.layer, kind=tensor.kind, expert=tensor.expert))
        if found is None:
            continue
        whole: ReadableTensor = tensor_of(source_of(names.weights), found)
        if fusion.of_experts:
            whole = DerivedTensor(tensor.module, StackedEntry(tensor.expert), [whole])
        rows = list(fusion.rows(config))
        first = sum(rows[:number])
        rest = whole.info.shape[0] if whole.info.shape else 0
        if sum(rows) != rest:
            raise ConversionError(
                f"`{found}` has {rest} rows, but its parts need {' + '.join(map(str, rows))}",
                hint="check that the config belongs to this checkpoint",
            )
        return DerivedTensor(tensor.module, RowRange(first, first + rows[number]), [whole]), found
    return None
