"""Pairs the tensors of two checkpoints that are the same weight of a model, across conventions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weightctl.errors import ArchitectureError, ConversionError
from weightctl.families.diffusion.matching import recognize_diffusion
from weightctl.families.diffusion.recognition import find_diffusion
from weightctl.families.family import OF_CONFIG
from weightctl.families.matching import EMBEDDING_WEIGHT, OUTPUT_WEIGHT, match
from weightctl.families.names import split_layer_number
from weightctl.schemes.buffers import is_buffer
from weightctl.verify.compare.distance import count_bits
from weightctl.verify.compare.pairing import Pair, Pairing, convert_convention
from weightctl.weights.derived import Derived, DerivedTensor, StoredTensor, tensor_of
from weightctl.weights.steps.numbers import Constant
from weightctl.weights.tree import Checkpoint, header_of, info_of, source_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families import RecognizedModel
    from weightctl.families.family import TensorNames
    from weightctl.families.keys import NamingConvention
    from weightctl.verify.request import Subject
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import TensorInfo

_CONVENTIONS: tuple[NamingConvention, ...] = ("gguf", "hugging_face")
_CONVENTION_NAMES: dict[NamingConvention, str] = {
    "gguf": "GGUF",
    "hugging_face": "Hugging Face",
}


def pair_tensors(subject: Subject, reference: Subject) -> Pairing:
    """Pair the tensors of two checkpoints, by the names of weightctl's modules if possible.

    If only one family is known, and most tensors of the other checkpoint have names of the same
    family, it is used for both. If that fails, or if the families differ, tensors with equal names
    are paired. Tensors are not read.
    """
    own, other = subject.checkpoint, reference.checkpoint
    if own is None and other is not None:
        own = _adopt(subject.weights, other)
    elif other is None and own is not None:
        other = _adopt(reference.weights, own)
    if own is None and other is None:
        found = _pair_diffusion(subject.weights, reference.weights)
        if found is not None:
            return found
    if own is None or other is None or own.family.name != other.family.name:
        return _pair_by_name(subject.weights, reference.weights)
    return _pair_by_module(own, other)


def _pair_diffusion(weights: Checkpoint, reference: Checkpoint) -> Pairing | None:
    """Pair the tensors of a diffusion transformer in both naming conventions.

    Return None for other models, for equal conventions, and if a checkpoint is not a whole model.
    """
    found = find_diffusion(header_of(weights)), find_diffusion(header_of(reference))
    if None in found or len({each.architecture for each in found if each}) > 1:
        return None
    try:
        own, other = recognize_diffusion(weights), recognize_diffusion(reference)
    except ArchitectureError:
        return None
    if own is None or other is None or own.convention == other.convention:
        return None
    if own.problems or other.problems:
        return None
    widths = count_bits(header_of(weights)), count_bits(header_of(reference))
    pairs: list[Pair] = []
    for name, tensor in own.tensors.items():
        counterpart = other.tensors.get(name)
        if counterpart is not None:
            layer, part = split_layer_number(name)
            pairs.append(
                Pair(
                    name, part, layer, _name_stored(tensor), _name_stored(counterpart), tensor,
                    counterpart, None, widths[0](tensor), widths[1](counterpart),
                )
            )  # fmt: skip
    missing = [name for name in other.tensors if name not in own.tensors]
    alone = [tensor for name, tensor in own.tensors.items() if name not in other.tensors]
    return Pairing(
        pairs=pairs,
        missing=missing,
        unexpected=[*map(_name_stored, alone), *own.unexpected],
        how=f"by the tensor names of {own.family.name} in diffusers and in original files",
    )


def pair_renamed(subject: Subject, reference: Subject, names: Mapping[str, str]) -> Pairing:
    """Pair the tensors of two checkpoints as if some tensors of the first were renamed.

    `names` maps names of the first checkpoint to new names; other tensors keep their names.
    """
    source = source_of(subject.weights)
    tensors = {
        names.get(name, name): tensor_of(source, name) for name in list_trained(subject.weights)
    }
    renamed = Checkpoint(Derived(source, tensors, source.header.metadata))
    other = reference.checkpoint
    own = None if other is None else _adopt(renamed, other)
    if own is not None and other is not None:
        return _pair_by_module(own, other)
    found, old = (
        _pair_by_name(renamed, reference.weights),
        {new: name for name, new in names.items()},
    )
    return replace(
        found,
        pairs=[pair._replace(name=old.get(pair.name, pair.name)) for pair in found.pairs],
        unexpected=[old.get(name, name) for name in found.unexpected],
    )


def _adopt(weights: Checkpoint, known: RecognizedModel) -> RecognizedModel | None:
    """Return a tree as a model with the family and config of a known model.

    The naming convention with the most matching tensors is used. Return None if fewer tensors match
    than are missing.
    """
    best: RecognizedModel | None = None
    for convention in _CONVENTIONS:
        try:
            found = match(weights, known.family, convention, known.config, known.where)
        except ArchitectureError:
            continue
        is_most = len(found.tensors) > len(found.missing)
        if is_most and (best is None or len(found.tensors) > len(best.tensors)):
            best = replace(
                known, tree=weights, convention=convention, tensors=found.tensors,
                beside=found.beside, missing=found.missing, unexpected=found.unexpected,
                stored=found.stored,
            )  # fmt: skip
    return best


def _pair_by_module(own: RecognizedModel, other: RecognizedModel) -> Pairing:
    lines = {each.module: each for each in own.family.tensors(own.config)}
    lines |= {each.module: each for each in other.family.tensors(other.config)}
    mine, theirs = _complete(own, other, lines), _complete(other, own, lines)
    # The reference determines which rows are pairs, since the number of heads may be wrong.
    own = replace(own, config=other.config)
    widths = count_bits(header_of(own.tree)), count_bits(header_of(other.tree))
    pairs: list[Pair] = []
    for module, tensor in mine.items():
        counterpart, names = theirs.get(module), lines[module]
        if counterpart is None:
            continue
        bits, reference_bits = widths[0](tensor), widths[1](counterpart)
        is_finer = bits > reference_bits
        made, reference = _convert_both(names, own, tensor, other, counterpart, is_finer=is_finer)
        layer = names.layer if "{}" in names.line.module else None
        pairs.append(
            Pair(
                module, _name_part(names), layer, _name_stored(tensor), _name_stored(counterpart),
                made, reference, names, bits, reference_bits,
            )
        )  # fmt: skip
    missing = [lines[each].name(own.convention) or each for each in theirs if each not in mine]
    unexpected = [_name_stored(mine[each]) for each in mine if each not in theirs]
    left, rest = _list_beside_model(own), _list_beside_model(other)
    pairs += [
        pair_named(left[each], rest[each], own.tree, other.tree) for each in left if each in rest
    ]
    missing += [rest[each] for each in rest if each not in left]
    unexpected += [left[each] for each in left if each not in rest]
    how = f"by the tensor names of {other.family.name}"
    if own.convention != other.convention:
        how += (
            f" in {_CONVENTION_NAMES[own.convention]} and in {_CONVENTION_NAMES[other.convention]}"
        )
    return Pairing(
        pairs=pairs,
        missing=list(dict.fromkeys(missing)),
        unexpected=list(dict.fromkeys(unexpected)),
        how=how,
        checkpoint=own,
        reference=other,
    )


def _complete(
    own: RecognizedModel, other: RecognizedModel, lines: dict[str, TensorNames]
) -> Mapping[str, ReadableTensor]:
    """Return a model's tensors, and tensors that only the other model stores separately.

    These are the output of a model that ties it to the embedding, and tensors that the other naming
    convention has for values of the config. Names of the latter are added to `lines`.
    """
    tensors = dict(own.tensors)
    if own.convention != other.convention:
        for names, numbers in own.family.list_made(own.config, other.convention):
            if names.line.unread:
                continue
            lines.setdefault(names.module, names)
            name = names.name(other.convention) or names.module
            tensors[names.module] = DerivedTensor(name, Constant(numbers, OF_CONFIG), [])
    output = lines.get(OUTPUT_WEIGHT)
    is_tied = (
        OUTPUT_WEIGHT not in tensors
        and OUTPUT_WEIGHT in other.tensors
        and EMBEDDING_WEIGHT in tensors
    )
    if is_tied and output is not None and output.name(own.convention) not in own.missing:
        tensors[OUTPUT_WEIGHT] = tensors[EMBEDDING_WEIGHT]
    return tensors


def _convert_both(
    names: TensorNames,
    own: RecognizedModel,
    tensor: ReadableTensor,
    other: RecognizedModel,
    reference: ReadableTensor,
    *,
    is_finer: bool,
) -> tuple[ReadableTensor, ReadableTensor]:
    """Return both tensors in one naming convention, or unchanged if their shapes do not allow it.

    If the conversion changes values, and not only the order of rows, the convention is that of the
    side with fewer bits, so that its values stay as stored. `is_finer` says whether the checkpoint
    has more bits than the reference.
    """
    convention: NamingConvention = "gguf"
    if names.change is not None and not names.change.is_of_rows:
        convention = other.convention if is_finer else own.convention
    try:
        return convert_convention(names, tensor, own, convention), convert_convention(
            names, reference, other, convention
        )
    except ConversionError:
        return tensor, reference


def _name_part(names: TensorNames) -> str:
    part = names.line.module.replace(".{expert}", "")
    return f"{part.rpartition('{}.')[2]}.{names.kind}"


def _name_stored(tensor: ReadableTensor) -> str:
    """Return the name of the stored tensor, or the names of those that it is derived from."""
    if isinstance(tensor, StoredTensor):
        return tensor.name
    return ", ".join(source.name for source in tensor.origin.sources) or tensor.info.name


def _list_beside_model(model: RecognizedModel) -> dict[str, str]:
    """Map names without a prefix to the names of the tensors that are not part of the model."""
    return {
        model.family.plain(name) if model.convention == "hugging_face" else name: name
        for name in model.unexpected
    }


def _pair_by_name(weights: Checkpoint, reference: Checkpoint) -> Pairing:
    left, rest = list_trained(weights), list_trained(reference)
    return Pairing(
        pairs=[pair_named(name, name, weights, reference) for name in left if name in rest],
        missing=[name for name in rest if name not in left],
        unexpected=[name for name in left if name not in rest],
        how="by equal names",
    )


def list_trained(weights: Checkpoint) -> dict[str, TensorInfo]:
    """Map names to the tensors of a tree, without buffers, which the config determines."""
    return {name: info_of(node) for name, node in weights.items() if not is_buffer(info_of(node))}


def pair_named(name: str, reference_name: str, weights: Checkpoint, reference: Checkpoint) -> Pair:
    """Return the pair of two tensors with these names, without a change of naming convention."""
    tensor = tensor_of(source_of(weights), name)
    counterpart = tensor_of(source_of(reference), reference_name)
    layer, part = split_layer_number(name)
    return Pair(
        module=name,
        part=part,
        layer=layer,
        name=name,
        reference_name=reference_name,
        tensor=tensor,
        reference=counterpart,
        bits=count_bits(source_of(weights).header)(tensor),
        reference_bits=count_bits(source_of(reference).header)(counterpart),
    )
