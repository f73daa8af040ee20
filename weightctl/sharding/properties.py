"""Collects the properties of a checkpoint that sharding needs: its weights and its model."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from weightctl.dtype import ENCODINGS
from weightctl.errors import ArchitectureError, ConversionError
from weightctl.families.names import split_layer_number
from weightctl.families.recognition import recognize
from weightctl.schemes.matching import list_scheme_tensors
from weightctl.schemes.scheme import load_scheme
from weightctl.sharding.cutting import CutModel
from weightctl.sharding.footprints import Footprint, WeightFootprint, plain
from weightctl.sharding.placing import PlacedWeight, place_weights
from weightctl.text.wording import pluralize
from weightctl.weights.derived import Derived, DerivedTensor, StoredTensor
from weightctl.weights.tree import Checkpoint, source_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from weightctl.dtype import Encoding
    from weightctl.families.checkpoint import RecognizedModel
    from weightctl.schemes.arrays.tensors import SchemeTensors
    from weightctl.schemes.cutting import Axes
    from weightctl.weights.data import Source
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import TensorInfo

_ALONE = (
    "it looks like a part of a quantized weight, but the shape of the weight cannot be determined"
)
_SHAPE = ".weight_shape"


class CheckpointKnowledge(NamedTuple):
    """The weights of a checkpoint by name, and the model that they form.

    `checkpoint` is None if the family is unknown. `notes` are messages for the user.
    """

    weights: Mapping[str, WeightFootprint]
    model: CutModel
    checkpoint: RecognizedModel | None
    notes: tuple[str, ...]


def gather_knowledge(weights: Checkpoint, *, is_ruled: bool) -> CheckpointKnowledge:
    """Collect the properties of a checkpoint; only small tensors that define shapes are read.

    Raises `ArchitectureError` if the model family is not supported and `is_ruled` is not set, that
    is, the user has not given rules.
    """
    stored = stored_weights(source_of(weights))
    notes = tuple(dict.fromkeys(each.note for each in stored.values() if each.note))
    try:
        checkpoint = _recognize_model(as_meant(weights, stored))
    except ArchitectureError as error:
        if is_ruled:
            why = (
                "the model family is not recognized, so only the plan file defines how "
                f"tensors are split: {error.message}"
            )
            return CheckpointKnowledge(stored, _unknown(stored), None, (*notes, why))
        hint = "; ".join(
            filter(
                None,
                (
                    error.hint,
                    "to split by your own rules, use --plan FILE (rules=FILE in Python)",
                ),
            )
        )
        raise type(error)(error.message, hint=hint) from error
    places = place_weights(checkpoint, stored)
    config = checkpoint.config
    experts = checkpoint.fields.get("experts", 0)
    model = CutModel(places, config.layers, experts)
    return CheckpointKnowledge(stored, model, checkpoint, (*notes, *_incomplete(checkpoint)))


def _recognize_model(weights: Checkpoint) -> RecognizedModel:
    """Recognize the model of a checkpoint; raises `ArchitectureError` if most tensors lack."""
    checkpoint = recognize(weights)
    if checkpoint.has_mlx_form:
        raise ArchitectureError(
            "the tensors have the form of MLX, which is not divided among ranks",
            hint="write the model in Hugging Face's form first: `weightctl convert MODEL OUT/`, "
            "with --dtype if it is quantized",
        )
    missing = checkpoint.missing
    if len(missing) > len(checkpoint.tensors):
        one = len(missing) == 1
        raise ArchitectureError(
            f"{pluralize(len(missing), 'tensor')} of {checkpoint.family.name} "
            f"{'is' if one else 'are'} missing, such as `{missing[0]}`",
            hint="check that the config belongs to this checkpoint",
        )
    return checkpoint


def _incomplete(checkpoint: RecognizedModel) -> Iterator[str]:
    """Yield notes on missing tensors, and on tensors that are not part of the model."""
    family, missing = checkpoint.family.name, checkpoint.missing
    if missing:
        are = "is" if len(missing) == 1 else "are"
        yield (
            f"{pluralize(len(missing), 'tensor')} of {family} {are} missing, for example "
            f"`{missing[0]}`"
        )
    rest = [*checkpoint.beside, *checkpoint.unexpected]
    if rest:
        are = "is" if len(rest) == 1 else "are"
        yield (
            f"{pluralize(len(rest), 'tensor')} (for example `{rest[0]}`) {are} not split, because "
            f"{'it is' if len(rest) == 1 else 'they are'} not a part of {family}"
        )


def _unknown(stored: Mapping[str, WeightFootprint]) -> CutModel:
    """Return a model of unknown family; layers follow from names, and weights are not split."""
    numbers = {name: split_layer_number(name)[0] for name in stored}
    layers = 1 + max((number for number in numbers.values() if number is not None), default=-1)
    places = {
        name: PlacedWeight(each, layers=None if (number := numbers[name]) is None else (number,))
        for name, each in stored.items()
    }
    return CutModel(places, layers, experts=None)


# Finds the weights of a checkpoint, and the tensors in which each is stored.


def stored_weights(source: Source) -> dict[str, WeightFootprint]:
    """Return the weights by name, in the order of their first tensors.

    Each tensor belongs to one weight. Only small tensors that define shapes are read.
    """
    header = source.header
    together = list_scheme_tensors(header)
    if not together:
        return {name: plain(info) for name, info in header.tensors.items()}
    # This call imports NumPy, which is not needed otherwise.
    from weightctl.schemes.arrays.trees import find_scheme_tensors

    found = find_scheme_tensors(source)
    owner = {tensor: name for name, each in found.items() for tensor in each.weight.tensors}
    weights: dict[str, WeightFootprint] = {}
    for name, info in header.tensors.items():
        own = owner.get(name)
        if own is None:
            weight = plain(info)
            weights[name] = weight._replace(refusal=_ALONE) if name in together else weight
        elif own not in weights:
            weights[own] = _make_footprint(found[own])
    return weights


def _make_footprint(stored: SchemeTensors) -> WeightFootprint:
    """Return the footprint of a quantized weight, with a refusal if its tensors cannot be split."""
    name, shape, scheme = stored.weight.name, stored.shape, load_scheme(stored.weight.scheme)
    axes: Sequence[Axes] | None = None
    if scheme.cut is not None:
        with suppress(ConversionError):
            axes = scheme.cut(stored)
    if axes is None:
        whole = tuple(Footprint(each.info, (None,) * len(shape)) for each in stored.tensors)
        refusal = (
            f"it is stored as {stored.weight.label}, and weightctl cannot split its stored tensors"
        )
        return WeightFootprint(name, shape, whole, refusal)
    footprints = (
        Footprint(tensor.info, tuple(own)) for tensor, own in zip(stored.tensors, axes, strict=True)
    )
    note = ""
    if stored.find(_SHAPE) is not None:
        note = f"`{_SHAPE}` of packed weights has the shape of the whole weight on every rank"
    return WeightFootprint(name, shape, tuple(footprints), note=note)


def as_meant(weights: Checkpoint, stored: Mapping[str, WeightFootprint]) -> Checkpoint:
    """Return a tree with a tensor for each weight; quantized weights cannot be read from it."""
    source = source_of(weights)
    tensors: dict[str, ReadableTensor] = {}
    is_other = False
    for name, each in stored.items():
        infos = [footprint.info for footprint in each.footprints]
        if infos[0].name == name and infos[0].shape == each.shape:
            tensors[name] = StoredTensor(source, name)
        else:
            inputs = [StoredTensor(source, info.name) for info in infos]
            tensors[name] = DerivedTensor(name, _Meant(each.shape), inputs)
        is_other = is_other or len(infos) > 1
    if not is_other:
        return weights
    header = source.header
    aliases = {alias: name for alias, name in header.aliases.items() if name in tensors}
    return Checkpoint(Derived(source, tensors, header.metadata, aliases))


class _Meant:
    """A step whose result has the shape of a weight, but cannot be read."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape = shape

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        """Return the shape, and F32 as the encoding."""
        del inputs
        return self._shape, ENCODINGS["F32"]

    def read_into(
        self, inputs: Sequence[ReadableTensor], start: int, buffer: memoryview, /
    ) -> None:
        """Raise `NotImplementedError`: planning does not read weights."""
        raise NotImplementedError
