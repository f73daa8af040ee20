"""Which tensors of two checkpoints are the same part of a model, whatever either calls them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weightctl.archs.arch import TensorNames
from weightctl.archs.matching import EMBEDDING_WEIGHT, OUTPUT_WEIGHT, match
from weightctl.archs.names import numbered
from weightctl.errors import ArchitectureError, ConversionError
from weightctl.logical import is_buffer
from weightctl.steps.numbers import Constant
from weightctl.verify.compare.bits import bits_of
from weightctl.verify.compare.pairs import Pair, Pairing, in_dialect
from weightctl.weights.derived import Made, StoredTensor, tensor_of
from weightctl.weights.tree import header_of, info_of, source_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.archs import RecognizedModel
    from weightctl.archs.keys import Dialect
    from weightctl.verify.subject import Subject
    from weightctl.weights.derived import Tensor
    from weightctl.weights.info import TensorInfo
    from weightctl.weights.tree import Checkpoint

__all__ = ["paired"]

_DIALECTS: tuple[Dialect, ...] = ("gguf", "hugging_face")
_SAID: dict[Dialect, str] = {"gguf": "GGUF's", "hugging_face": "Hugging Face's"}


def paired(subject: Subject, reference: Subject) -> Pairing:
    """Pair the tensors of two checkpoints: by our modules' names where a family is known.

    Where one alone is of a known family the other is read as if it were of that one too. Else equal
    names are paired. No tensor is read.
    """
    own, other = subject.checkpoint, reference.checkpoint
    if own is None and other is not None:
        own = _adopted(subject.weights, other)
    elif other is None and own is not None:
        other = _adopted(reference.weights, own)
    if own is None or other is None or own.arch.name != other.arch.name:
        return _by_name(subject.weights, reference.weights)
    return _by_module(own, other)


def _adopted(weights: Checkpoint, known: RecognizedModel) -> RecognizedModel | None:
    """Return a tree as a model like a known one; None where most of that is not there."""
    best: RecognizedModel | None = None
    for dialect in _DIALECTS:
        try:
            found = match(weights, known.arch, dialect, known.config, known.where)
        except ArchitectureError:
            continue
        is_most = len(found.tensors) > len(found.missing)
        if is_most and (best is None or len(found.tensors) > len(best.tensors)):
            best = replace(
                known, tree=weights, dialect=dialect, tensors=found.tensors, beside=found.beside,
                missing=found.missing, unexpected=found.unexpected, stored=found.stored,
            )  # fmt: skip
    return best


def _by_module(own: RecognizedModel, other: RecognizedModel) -> Pairing:
    lines = {each.module: each for each in own.arch.tensors(own.config)}
    lines |= {each.module: each for each in other.arch.tensors(other.config)}
    mine, theirs = _completed(own, other, lines), _completed(other, own, lines)
    # Which rows are pairs is for the reference to say: the number of heads may be what is wrong.
    own = replace(own, config=other.config)
    widths = bits_of(header_of(own.tree)), bits_of(header_of(other.tree))
    pairs: list[Pair] = []
    for module, tensor in mine.items():
        counterpart, names = theirs.get(module), lines[module]
        if counterpart is None:
            continue
        bits, reference_bits = widths[0](tensor), widths[1](counterpart)
        is_finer = bits > reference_bits
        made, reference = _in_one(names, own, tensor, other, counterpart, is_finer=is_finer)
        layer = names.layer if "{}" in names.line.module else None
        pairs.append(
            Pair(
                module, _part(names), layer, _stored(tensor), _stored(counterpart), made, reference,
                names, bits, reference_bits,
            )
        )  # fmt: skip
    missing = [lines[each].name(own.dialect) or each for each in theirs if each not in mine]
    unexpected = [_stored(mine[each]) for each in mine if each not in theirs]
    left, rest = _left(own), _left(other)
    pairs += [_named(left[each], rest[each], own.tree, other.tree) for each in left if each in rest]
    missing += [rest[each] for each in rest if each not in left]
    unexpected += [left[each] for each in left if each not in rest]
    how = f"by the names of {other.arch.name}"
    if own.dialect != other.dialect:
        how += f", {_SAID[own.dialect]} against {_SAID[other.dialect]}"
    return Pairing(
        pairs=pairs,
        missing=list(dict.fromkeys(missing)),
        unexpected=list(dict.fromkeys(unexpected)),
        how=how,
        checkpoint=own,
        reference=other,
    )


def _completed(
    own: RecognizedModel, other: RecognizedModel, lines: dict[str, TensorNames]
) -> Mapping[str, Tensor]:
    """Return a model's tensors, with those that it alone has in another form.

    That is the embedding as output, and what its config says where the other dialect has numbers.
    """
    tensors = dict(own.tensors)
    if own.dialect == "hugging_face" and other.dialect == "gguf":
        for line in own.arch.names:
            numbers = None if line.made is None else line.made(own.config)
            if numbers is not None and line.gguf is not None:
                module, name = f"{line.module}.weight", f"{line.gguf}.weight"
                lines.setdefault(module, TensorNames(module, name, None, line))
                tensors[module] = Made(name, Constant(numbers, "of the config"), [])
    output = lines.get(OUTPUT_WEIGHT)
    is_tied = (
        OUTPUT_WEIGHT not in tensors
        and OUTPUT_WEIGHT in other.tensors
        and EMBEDDING_WEIGHT in tensors
    )
    if is_tied and output is not None and output.name(own.dialect) not in own.missing:
        tensors[OUTPUT_WEIGHT] = tensors[EMBEDDING_WEIGHT]
    return tensors


def _in_one(
    names: TensorNames,
    own: RecognizedModel,
    tensor: Tensor,
    other: RecognizedModel,
    reference: Tensor,
    *,
    is_finer: bool,
) -> tuple[Tensor, Tensor]:
    """Return both in one dialect, as they are where that cannot be done to their shapes.

    Where numbers change it is that of the one that has fewer bits, which stays as it is stored.
    """
    dialect: Dialect = "gguf"
    if names.change is not None and not names.change.is_of_rows:
        dialect = other.dialect if is_finer else own.dialect
    try:
        return in_dialect(names, tensor, own, dialect), in_dialect(names, reference, other, dialect)
    except ConversionError:
        return tensor, reference


def _part(names: TensorNames) -> str:
    part = names.line.module.replace(".{expert}", "")
    return f"{part.rpartition('{}.')[2]}.{names.kind}"


def _stored(tensor: Tensor) -> str:
    """Return what a checkpoint calls the tensor that another is made of, or that it is itself."""
    if isinstance(tensor, StoredTensor):
        return tensor.name
    return ", ".join(source.name for source in tensor.origin.sources) or tensor.info.name


def _left(model: RecognizedModel) -> dict[str, str]:
    """Return the tensors that are of no part of the model, by their names without a prefix."""
    return {
        model.arch.plain(name) if model.dialect == "hugging_face" else name: name
        for name in model.unexpected
    }


def _by_name(weights: Checkpoint, reference: Checkpoint) -> Pairing:
    left, rest = _trained(weights), _trained(reference)
    return Pairing(
        pairs=[_named(name, name, weights, reference) for name in left if name in rest],
        missing=[name for name in rest if name not in left],
        unexpected=[name for name in left if name not in rest],
        how="by equal names",
    )


def _trained(weights: Checkpoint) -> dict[str, TensorInfo]:
    return {name: info_of(node) for name, node in weights.items() if not is_buffer(info_of(node))}


def _named(name: str, reference_name: str, weights: Checkpoint, reference: Checkpoint) -> Pair:
    tensor = tensor_of(source_of(weights), name)
    counterpart = tensor_of(source_of(reference), reference_name)
    layer, part = numbered(name)
    return Pair(
        module=name,
        part=part,
        layer=layer,
        name=name,
        reference_name=reference_name,
        tensor=tensor,
        reference=counterpart,
        bits=bits_of(source_of(weights).header)(tensor),
        reference_bits=bits_of(source_of(reference).header)(counterpart),
    )
