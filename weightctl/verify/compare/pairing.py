"""Pairs the tensors of two checkpoints that are the same weight of a model, across conventions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from math import exp2
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightctl.codecs import can_decode, can_encode, is_exact, transcode
from weightctl.codecs.feedback.parts import has_parts
from weightctl.dtype import ENCODINGS
from weightctl.errors import ArchitectureError, ConversionError, NonFiniteError
from weightctl.families.diffusion import find_diffusion, recognize_diffusion
from weightctl.families.family import OF_CONFIG
from weightctl.families.matching import EMBEDDING_WEIGHT, OUTPUT_WEIGHT, match
from weightctl.families.names import split_layer_number
from weightctl.families.steps import convert_form, module_form
from weightctl.plan.importance import states_feedback
from weightctl.schemes.buffers import is_buffer
from weightctl.weights.derived import Derived, DerivedTensor, StoredTensor, tensor_of
from weightctl.weights.steps.numbers import Constant, read_floats
from weightctl.weights.tree import Checkpoint, header_of, info_of, source_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from weightctl.codecs.base import F32, U8
    from weightctl.dtype import Encoding
    from weightctl.families import RecognizedModel
    from weightctl.families.config_keys import NamingConvention
    from weightctl.families.modules import TensorNames
    from weightctl.verify.results import Explanation
    from weightctl.verify.subject import Subject
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import Header, TensorInfo

    # The module, the axis, and the steps that were applied to the tensor.
    OrderKey = tuple[str, int, tuple[str, ...]]
    Places = tuple[int, ...]

# The number of values in a run, which is that of the smallest block with its own scale.
RUN = 32
_F32 = ENCODINGS["F32"]
# The root mean square of uniformly distributed rounding errors, in half units in the last place,
# for uniformly distributed significands.
_EVENLY = 0.4
# The codecs' error is about this multiple of 2**-bits, the theoretical bound for a code with that
# number of bits per value.
_ABOVE_BOUND = 2.0
_MOST = 0.6
# Eight-bit schemes use some bits for an exponent, or one scale for a whole channel.
_EIGHT_BITS = (7.0, 9.0)
_ABOVE_BLOCKS = 5.0
# A sample of four ranges of 2048 values shows whether two tensors are related.
_SAMPLE, _SAMPLES = 1 << 11, 4
# Each sample takes about 32 KB.
_MOST_SAMPLES_KEPT = 512


class PairSide(NamedTuple):
    """How one tensor of a pair is stored: its encoding, and the bits per value in the file.

    The bits differ from those of the encoding if a scheme stores the weight in several tensors.
    """

    encoding: Encoding
    bits: float

    @property
    def is_apart(self) -> bool:
        """Whether the weight is stored in several tensors, by a scheme."""
        return self.bits != self.encoding.size * 8 / self.encoding.block

    @property
    def typical(self) -> float:
        """The relative RMSE that storing weights in this way typically causes."""
        if self.encoding.significand is not None and not self.is_apart:
            return _EVENLY / (1 << self.encoding.significand)
        found = _ABOVE_BOUND / exp2(self.bits)
        if self.is_apart and _EIGHT_BITS[0] < self.bits < _EIGHT_BITS[1]:
            found *= _ABOVE_BLOCKS
        return min(found, _MOST)

    @property
    def keeps_all(self) -> bool:
        """Whether values are stored without loss: float32 values, or the integers of a table."""
        kind = self.encoding
        return not self.is_apart and (not kind.is_real or is_exact(_F32, kind))

    def through(self, numbers: F32) -> F32 | None:
        """Encode and decode float32 values, [n]; n is a multiple of the block size.

        Return None if a scheme stores the weight, if weightctl cannot write the encoding, or only
        with an importance matrix, or if the encoding cannot represent all of the values.
        """
        if self.keeps_all:
            return numbers
        kind = self.encoding
        if self.is_apart or not can_encode(kind) or kind.needs_importance:
            return None
        raw = numbers.view(np.uint8).reshape(1, -1)
        try:
            made = transcode(raw, _F32, self.encoding, zero_nonfinite=True).raw
        except NonFiniteError:
            return None
        return decode_values(made.reshape(-1), self.encoding)


def decode_values(raw: U8, encoding: Encoding) -> F32:
    """Decode whole blocks of an encoding into values, [n]."""
    if encoding == _F32:
        return raw.view(np.float32)
    rows = transcode(raw.reshape(1, -1), encoding, _F32).raw
    return rows.reshape(-1).view(np.float32)


class Pair(NamedTuple):
    """A tensor of a checkpoint and the reference's counterpart, both in one naming convention.

    `module` is the parameter's name in weightctl's modules, `part` that name without layer and
    expert, and `layer` the number of the layer, or None. `name` and `reference_name` are the names
    of the stored tensors. `names` has the parameter's names in both naming conventions; it is None
    if the family is unknown. `bits` and `reference_bits` are the bits per value in the files.
    `is_fed_back` says that a checkpoint with blocks of codes states that values were rounded with
    error feedback.
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
    is_fed_back: bool = False

    @property
    def expert(self) -> int | None:
        """The number of the expert that the tensor is part of, or None."""
        is_of_one = self.names is not None and "{expert}" in self.names.line.module
        return self.names.expert if self.names is not None and is_of_one else None

    @property
    def exchanged(self) -> Pair:
        return self._replace(
            tensor=self.reference,
            reference=self.tensor,
            bits=self.reference_bits,
            reference_bits=self.bits,
        )

    @property
    def is_comparable(self) -> bool:
        """Whether both tensors have the same shape and real numbers that weightctl can decode."""
        mine, theirs = self.tensor.info, self.reference.info
        return mine.shape == theirs.shape and is_of_numbers(mine) and is_of_numbers(theirs)

    @property
    def sides(self) -> tuple[PairSide, PairSide]:
        return (
            PairSide(self.tensor.info.encoding, self.bits),
            PairSide(self.reference.info.encoding, self.reference_bits),
        )


class Samples:
    """A cache of samples of the most recently used tensors, by object identity."""

    def __init__(self) -> None:
        # The tensor is kept too, so that its id is not reused.
        self._kept: dict[int, tuple[ReadableTensor, F32]] = {}

    def of(self, tensor: ReadableTensor) -> F32:
        """Return the sample that `take_sample` takes of a tensor."""
        kept = self._kept.pop(id(tensor), None) or (tensor, take_sample(tensor))
        self._kept[id(tensor)] = kept
        if len(self._kept) > _MOST_SAMPLES_KEPT:
            del self._kept[next(iter(self._kept))]
        return kept[1]


def take_sample(tensor: ReadableTensor) -> F32:
    """Return a sample of a tensor's values, from ranges that are evenly spaced."""
    size = tensor.info.size
    starts = dict.fromkeys(size * part // _SAMPLES // RUN * RUN for part in range(_SAMPLES))
    pieces = [read_floats(tensor, start, min(_SAMPLE, size - start)) for start in starts]
    return np.concatenate(pieces)


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
    model compute the same results although their tensors differ. `former` has the encodings in
    which tensors of the checkpoint, or of the reference, were once quantized. `samples` caches
    samples of tensors that are compared with many others.
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
    former: dict[str, Sequence[str]] = field(default_factory=dict[str, "Sequence[str]"])
    samples: Samples = field(default_factory=Samples)

    @property
    def is_of_other_models(self) -> bool:
        """Whether the tensors were found to be from another model or another training step."""
        from weightctl.verify.compare.causes import is_of_both  # the table is read then

        return any(cause is not None and is_of_both(cause.name) for cause in self.causes.values())

    @cached_property
    def by_module(self) -> Mapping[str, Pair]:
        return {pair.module: pair for pair in self.pairs}

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


def is_of_numbers(info: TensorInfo) -> bool:
    return info.encoding.is_known and info.encoding.is_real and can_decode(info.encoding)


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


def count_bits(header: Header) -> Callable[[ReadableTensor], float]:
    """Return a function that computes the bits per value of a tensor of the checkpoint.

    The function also accepts tensors that are derived from the checkpoint's. If a scheme stores a
    weight in several tensors, the bits of all of them count, including scales.
    """
    apart: dict[tuple[TensorInfo, ...], float] = {
        origin.sources: sum(source.nbytes for source in origin.sources) * 8 / info.size
        for name, origin in header.origins.items()
        if (info := header.tensors.get(name)) is not None and info.size and origin.sources
    }

    def bits(tensor: ReadableTensor) -> float:
        sources = tensor.origin.sources
        encoding = sources[0].encoding if sources else tensor.info.encoding
        return apart.get(sources, encoding.size * 8 / encoding.block)

    return bits


_CONVENTIONS: tuple[NamingConvention, ...] = ("gguf", "hugging_face")
_CONVENTION_NAMES: dict[NamingConvention, str] = {"gguf": "GGUF", "hugging_face": "Hugging Face"}


def pair_tensors(subject: Subject, reference: Subject) -> Pairing:
    """Pair the tensors of two checkpoints, by the names of weightctl's modules if possible.

    If only one family is known, and most tensors of the other checkpoint have names of the same
    family, it is used for both. If that fails, or if the families differ, tensors with equal names
    are paired. Tensors are not read.
    """
    found = _pair_models(subject, reference)
    if any(states_feedback(header_of(each.stored).metadata) for each in (subject, reference)):
        pairs = [
            pair._replace(is_fed_back=any(has_parts(side.encoding) for side in pair.sides))
            for pair in found.pairs
        ]
        found = replace(found, pairs=pairs)
    return found


def _pair_models(subject: Subject, reference: Subject) -> Pairing:
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
        how=f"by the tensor names of {own.name} in diffusers and in original files",
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
