"""Collects the properties of a checkpoint that sharding needs: its weights and its model."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import ArchitectureError
from weightctl.families.names import split_layer_number
from weightctl.families.recognition import recognize
from weightctl.sharding.cutting import CutModel
from weightctl.sharding.placing import PlacedWeight, place_weights
from weightctl.sharding.stored import as_meant, stored_weights
from weightctl.text.wording import pluralize
from weightctl.weights.tree import source_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from weightctl.families.checkpoint import RecognizedModel
    from weightctl.sharding.footprints import WeightFootprint
    from weightctl.weights.tree import Checkpoint


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
