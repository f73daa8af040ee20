"""Parts of a model that `--without` leaves out, since the model computes the same without them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weightctl.errors import ConversionError
from weightctl.families.llama_cpp import loads_mtp_apart
from weightctl.families.model import ARCHITECTURE
from weightctl.families.mtp_tensors import (
    BLOCK_COUNT,
    COUNT_KEYS,
    MTP_COUNT,
    MtpTensors,
    find_mtp,
    find_text_config,
)
from weightctl.formats.huggingface import CONFIG, config, json_document
from weightctl.text.untyped import is_sequence
from weightctl.text.wording import pluralize
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.checkpoint import RecognizedModel
    from weightctl.plan.plan import Plan
    from weightctl.weights.metadata import MetadataValue
    from weightctl.weights.tree import Checkpoint

_ALONE = '--without main (without="main" in Python)'


def describe_without_mtp(found: MtpTensors) -> str:
    """Return the note on layers for MTP that are left out, or that do not exist."""
    if not found.layers:
        return "there are no layers for multi-token prediction (MTP) to leave out"
    return (
        f"left out because of --without mtp: {pluralize(found.layers, 'layer')} for multi-token "
        f"prediction (MTP), {pluralize(len(found.names), 'tensor')}"
    )


def place_mtp(
    checkpoint: RecognizedModel, found: MtpTensors, convention: str, *, is_left_out: bool
) -> RecognizedModel:
    """Return a model whose tensors for MTP are left out, or have a place in a naming convention.

    Those that the family does not use have none in another convention: they become unexpected.
    """
    unused = [name for name in checkpoint.beside if name in found.names]
    beside = [name for name in checkpoint.beside if name not in found.names]
    if is_left_out:
        from weightctl.families.mtp import without_mtp_layers

        rest = [name for name in checkpoint.unexpected if name not in found.names]
        return replace(without_mtp_layers(checkpoint), unexpected=rest, beside=beside)
    if convention == checkpoint.convention:
        return checkpoint
    return replace(checkpoint, unexpected=[*checkpoint.unexpected, *unused], beside=beside)


def keep_mtp(plan: Plan) -> Plan:
    """Return the plan of a GGUF file with the layers for MTP, and without the other layers.

    What is not in layers is kept, and so is the number of all layers. Raises `ConversionError` if
    there are no layers for MTP, or if llama.cpp does not load such a file.
    """
    if ARCHITECTURE not in plan.metadata:
        raise ConversionError(
            f"{_ALONE} writes a GGUF file, but the output does not have GGUF's names",
            hint="end the name of the output with .gguf",
        )
    architecture = str(plan.metadata[ARCHITECTURE].content)
    names = {*(item.info.name for item in plan.items), *plan.tied}
    blocks, count = _read_counts(plan.metadata)
    found = MtpTensors.among(names, blocks - count, count)
    if not found.layers:
        raise ConversionError(
            f"{_ALONE} keeps the layers for multi-token prediction (MTP), but there are none"
        )
    if not loads_mtp_apart(architecture):
        raise ConversionError(
            "llama.cpp does not load the layers for multi-token prediction (MTP) of "
            f"{architecture} from a file of their own",
            hint=f"leave out {_ALONE}: a whole model has these layers",
        )
    kept = [name for name in names if name in found.names or not name.startswith("blk.")]
    plan = plan.only(kept)
    metadata = {key: each for key, each in plan.metadata.items() if key != "general.size_label"}
    return replace(plan, metadata=metadata)


def leave_out_mtp(plan: Plan, weights: Checkpoint, *, is_model: bool) -> Plan:
    """Return the plan of a copy without layers for MTP, whose number its config then states as 0.

    `is_model` states that the output is a model directory, which has a config.json.
    """
    header = header_of(weights)
    document = config(header)
    found = find_mtp(header, document)
    stored = [*(item.info.name for item in plan.items), *plan.tied, *plan.unkept]
    plan = plan.only([name for name in stored if name not in found.names])
    documents = dict(plan.documents)
    if is_model and ARCHITECTURE not in header.metadata:
        given = documents.get(CONFIG)
        made = _state_none(document if given is None else json.loads(given))
        documents |= {} if made is None else {CONFIG: json_document(made)}
    return replace(
        plan,
        documents=documents,
        metadata=_count_without(plan.metadata),
        notes=(*plan.notes, describe_without_mtp(found)),
    )


def _state_none(document: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a config.json that states no layers for MTP, None if it does not change."""
    text = find_text_config(document)
    stated = {key: 0 for key in COUNT_KEYS if text.get(key)}
    if not stated:
        return None
    changed = {**text, **stated}
    return changed if text is document else {**document, "text_config": changed}


def _read_counts(metadata: Mapping[str, MetadataValue]) -> tuple[int, int]:
    """Return the numbers of all layers and of those for MTP; 0 if GGUF's metadata state none."""
    arch = metadata[ARCHITECTURE].content if ARCHITECTURE in metadata else ""
    keys = (key.format(arch=arch) for key in (BLOCK_COUNT, MTP_COUNT))
    blocks, further = (metadata[key].content if key in metadata else 0 for key in keys)
    if type(blocks) is not int or type(further) is not int or not 0 < further < blocks:
        return 0, 0
    return blocks, further


def _count_without(metadata: Mapping[str, MetadataValue]) -> dict[str, MetadataValue]:
    """Return GGUF's metadata without layers for MTP, which also count as layers there.

    An array with a value for each of all layers becomes shorter.
    """
    made = dict(metadata)
    blocks, further = _read_counts(metadata)
    if not further:
        return made
    arch = metadata[ARCHITECTURE].content
    count, stated = (key.format(arch=arch) for key in (BLOCK_COUNT, MTP_COUNT))
    made[stated] = made[stated]._replace(content=0)
    made[count] = made[count]._replace(content=blocks - further)
    for key, value in metadata.items():
        content = value.content
        is_of_layers = key.startswith(f"{arch}.") and not key.startswith(f"{arch}.rope.")
        if is_of_layers and is_sequence(content) and len(content) == blocks:
            made[key] = value._replace(content=content[: blocks - further])
    return made
