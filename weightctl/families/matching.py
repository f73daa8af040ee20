"""The matching of a checkpoint's tensors with the parts of a model."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import ArchitectureError, ConversionError
from weightctl.families.fusions import qkv_form
from weightctl.families.mlx import OUTER, MlxForm, is_mlx, list_fusions
from weightctl.families.modules import shape_of
from weightctl.families.steps import convert_form, invert, module_form
from weightctl.schemes.buffers import is_buffer
from weightctl.split import Cut
from weightctl.text.wording import pluralize
from weightctl.weights.derived import DerivedTensor, tensor_of
from weightctl.weights.steps.rows import RowOrder, RowRange, StackedEntry
from weightctl.weights.tree import header_of, info_of, source_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from weightctl.families.config_keys import Config, NamingConvention
    from weightctl.families.family import Family
    from weightctl.families.fusions import Fusion
    from weightctl.families.modules import Name, TensorNames
    from weightctl.weights.derived import ReadableTensor, Step
    from weightctl.weights.tree import Checkpoint

# The weights with a row for each token. In some checkpoints they have more rows, which made
# training faster.
OF_TOKENS = EMBEDDING_WEIGHT, OUTPUT_WEIGHT = ("embedding.weight", "output.weight")


class Match(NamedTuple):
    """The tensors of a model, by their names in our modules, and the tensors that do not match.

    - `tensors`: the tensors of the model, in the form that our modules compute with.
    - `missing`: tensors that the config requires, by their names in the checkpoint's convention.
    - `unexpected`: tensors that are not part of the model.
    - `beside`: tensors that the family allows but does not use, such as training heads.
    - `stored`: maps the names of tensors in our modules to the tensors of the checkpoint that
      contain them.
    - `outputs_first`: the tensors of transposed fusions that this checkpoint has as (outputs,
      inputs), by their names in the checkpoint.
    - `has_mlx_form`: whether tensors have the form of MLX.
    """

    tensors: Mapping[str, ReadableTensor]
    missing: list[str]
    unexpected: list[str]
    beside: list[str]
    stored: Mapping[str, str]
    outputs_first: frozenset[str]
    has_mlx_form: bool


def match(
    weights: Checkpoint, family: Family, convention: NamingConvention, config: Config, where: str
) -> Match:
    """Match the tensors of a checkpoint with the tensors of a model with this config.

    A part of a fused tensor becomes a derived tensor. Rows of an embedding or output after those of
    the vocabulary are left out. Raises `ArchitectureError` if a fused tensor does not have the rows
    of its parts, or if the config has more layers than the checkpoint has tensors.
    """
    names = _Names(weights, family, convention)
    count = len(names.stored)
    if config.layers > count:
        raise ArchitectureError(
            f"{where} states {pluralize(config.layers, 'layer')}, but the checkpoint has only "
            f"{pluralize(count, 'tensor')}",
            hint="check that the config belongs to this checkpoint",
        )
    fusions = [*_list_fusions(family, convention), *names.list_fusions()]
    mtp_fusions = fusions if family.mtp is None else [*map(family.mtp.adapt_fusion, fusions)]
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
                is_stacked = tensor.is_stacked(convention)
                stored = names.take(tensor, found, config, is_stacked=is_stacked)
            else:
                is_mtp = tensor.line.is_of_layers and tensor.layer >= config.layers
                given = mtp_fusions if is_mtp else fusions
                fused = _part_of(tensor, names, given, lines, config)
                if fused is None:
                    missing.append(wanted or tensor.module)
                    continue
                stored, found = fused
        except ConversionError as error:
            raise ArchitectureError(f"{where}: {error.message}", hint=error.hint) from error
        form = module_form(tensor, convention)
        if form != convention:
            with suppress(ConversionError):  # `check` reports the shape
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
    first = frozenset(name for name, is_first in names.outputs_first.items() if is_first)
    lost = list(dict.fromkeys(missing))
    return Match(tensors, lost, unexpected, beside, stored_as, first, names.has_mlx_form)


def _list_fusions(family: Family, convention: NamingConvention) -> list[Fusion]:
    """Return the fusions that checkpoints of a convention may have.

    llama.cpp's converter can join the queries, keys and values of a layer in every family
    (`--fuse-qkv`).
    """
    found = [each for each in family.fusions if each.convention == convention]
    usual = qkv_form()
    is_known = convention != "gguf" or any(each.name == usual.name for each in found)
    has_parts = set(usual.parts) <= {line.module for line in family.names}
    return [*found, usual] if has_parts and not is_known else found


def _without_padding(names: TensorNames, tensor: ReadableTensor, config: Config) -> ReadableTensor:
    """Return a tensor without rows after those of the vocabulary's tokens."""
    shape = tensor.info.shape
    if (
        names.line.axes.outputs != ("vocabulary",)
        or len(shape) != 2
        or shape[0] <= config.vocabulary
    ):
        return tensor
    return DerivedTensor(names.module, RowRange(0, config.vocabulary), [tensor])


class _Names:
    """The names in a checkpoint, which can also be found by their plain names."""

    def __init__(self, weights: Checkpoint, family: Family, convention: NamingConvention) -> None:
        self.weights = weights
        self.stored = dict(weights.items())
        self._family = family
        self._convention = convention
        self._by_plain: dict[str, str] = {}
        self._outer, self._mlx = "", None
        if convention == "hugging_face" and is_mlx(header_of(weights)):
            self._outer = OUTER if all(name.startswith(OUTER) for name in self.stored) else ""
            self._mlx = MlxForm(header_of(weights).tensors.values(), family)
        self.has_mlx_form = bool(self._outer)
        self.outputs_first: dict[str, bool] = {}
        for name in self.stored:
            self._by_plain.setdefault(self.plain(name), name)

    def list_fusions(self) -> Iterator[Fusion]:
        """Yield the tensors that MLX has under other names, if the checkpoint has its form."""
        if self._mlx is not None:
            yield from list_fusions(self._family)

    def plain(self, name: str) -> str:
        if self._convention != "hugging_face":
            return name
        return self._family.plain(name.removeprefix(self._outer))

    def find(self, wanted: str) -> str | None:
        return wanted if wanted in self.stored else self._by_plain.get(self.plain(wanted))

    def take(
        self, tensor: TensorNames, found: str, config: Config, *, is_stacked: bool
    ) -> ReadableTensor:
        """Return a stored tensor, or its part for one expert, without the form of MLX."""
        whole: ReadableTensor = tensor_of(source_of(self.weights), found)
        if is_stacked:
            whole = DerivedTensor(tensor.module, StackedEntry(tensor.expert), [whole])
        if self._mlx is None:
            return whole
        restored = self._mlx.undo(tensor, whole, config)
        self.has_mlx_form |= restored is not whole
        return restored


def _part_of(
    tensor: TensorNames,
    names: _Names,
    fusions: list[Fusion],
    lines: Mapping[str, Name],
    config: Config,
) -> tuple[ReadableTensor, str] | None:
    """Return a part of a fused tensor, and the name of that tensor; None if none contains it."""
    for fusion in fusions:
        if tensor.line.module not in fusion.parts:
            continue
        restarts = tensor.line.restarts and fusion.convention == "hugging_face"
        number = tensor.layer - config.layers if restarts else tensor.layer
        found = names.find(fusion.tensor(tensor.kind, number, tensor.expert))
        if found is None:
            continue
        names.has_mlx_form |= fusion.of_mlx
        whole = names.take(tensor, found, config, is_stacked=fusion.of_experts)
        if fusion.either_way and found not in names.outputs_first:
            given = [fusion, *(each for each in fusions if each.either_way)]
            names.outputs_first[found] = _has_outputs_first(tensor, names, given, lines, config)
        # Blocks run along the inputs, so a tensor that is stored in blocks has its outputs as rows.
        is_transposed = fusion.is_transposed(tensor.kind) and whole.info.encoding.block == 1
        if is_transposed and not names.outputs_first.get(found):
            from weightctl.weights.steps.transposed import Transposed

            whole = DerivedTensor(tensor.module, Transposed(), [whole])
        if fusion.axis:
            return _entry_of(tensor, whole, fusion), found
        sizes = _sizes(tensor, fusion, lines, config)
        rest = whole.info.shape[0] if whole.info.shape else 0
        if sum(sizes) != rest:
            raise ConversionError(
                f"`{found}` has {rest} rows, but its parts need {' + '.join(map(str, sizes))}",
                hint="check that the config belongs to this checkpoint",
            )
        place = fusion.parts.index(tensor.line.module)
        first = sum(sizes[:place])
        rows: Step = RowRange(first, first + sizes[place])
        if fusion.order is not None:
            order = invert(fusion.order(config))[first : first + sizes[place]]
            rows = RowOrder(order, "rows of one part", rest)
        return DerivedTensor(tensor.module, rows, [whole]), found
    return None


def _sizes(
    tensor: TensorNames, fusion: Fusion, lines: Mapping[str, Name], config: Config
) -> list[int]:
    """Return the number of rows of each part of a fusion in the layer of a tensor."""
    return [shape_of(tensor._replace(line=lines[part]), config)[0] for part in fusion.parts]


def _has_outputs_first(
    tensor: TensorNames,
    names: _Names,
    fusions: list[Fusion],
    lines: Mapping[str, Name],
    config: Config,
) -> bool:
    """Whether the tensor of the first of these fusions is stored as (outputs, inputs).

    The shape of a square matrix does not tell. Then the first of the other fusions decides whose
    tensor in this layer is not square: a checkpoint has all of them in the same form. An MLP's gate
    and up together, and its down, are not both square. If all are, (inputs, outputs) is assumed.
    """
    for fusion in fusions:
        found = names.find(fusion.tensor(tensor.kind, tensor.layer, tensor.expert))
        if found is None:
            continue
        part = tensor._replace(line=lines[fusion.parts[0]])
        wanted = (sum(_sizes(tensor, fusion, lines, config)), shape_of(part, config)[1])
        if wanted[0] != wanted[1]:
            return info_of(names.stored[found]).shape[-2:] == wanted
    return False


def _entry_of(tensor: TensorNames, whole: ReadableTensor, fusion: Fusion) -> ReadableTensor:
    """Return a part of a fused tensor that has an axis with an entry for each part."""
    axis, count, shape = fusion.axis, len(fusion.parts), whole.info.shape
    if len(shape) <= axis or shape[axis] != count:
        raise ConversionError(
            f"`{whole.info.name}` has shape {list(shape)}, but axis {axis} must have {count} "
            "entries",
            hint="check that the config belongs to this checkpoint",
        )
    place = fusion.parts.index(tensor.line.module)
    from weightctl.weights.steps.reshaped import WithoutAxis
    from weightctl.weights.steps.sliced import Sliced

    entry = DerivedTensor(tensor.module, Sliced((Cut(axis, ((place, place + 1),)),)), [whole])
    return DerivedTensor(tensor.module, WithoutAxis(axis), [entry])
