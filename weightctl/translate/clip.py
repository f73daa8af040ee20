"""The plan for a CLIP model with the names of OpenAI and OpenCLIP, or with those of transformers.

OpenAI's program and OpenCLIP have the same names. Queries, keys and values are one tensor there,
and the projections to embeddings are transposed.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from weightctl.errors import ArchitectureError
from weightctl.formats.huggingface import CONFIG, OPEN_CLIP, config, is_config_of, json_document
from weightctl.plan.plan import Plan
from weightctl.text.wording import join_names, pluralize
from weightctl.translate.clip_config import (
    is_as_openai,
    make_clip_config,
    make_image_config,
    make_open_clip_config,
    read_clip_config,
    read_open_clip_config,
    read_tower_sizes,
)
from weightctl.translate.clip_names import IGNORED, JIT_SIZES, is_openai_clip, list_clip_pairs
from weightctl.weights.derived import Derived, DerivedTensor, tensor_of
from weightctl.weights.metadata import text
from weightctl.weights.steps.rows import RowRange
from weightctl.weights.steps.stacked import Joined
from weightctl.weights.steps.transposed import Transposed
from weightctl.weights.tree import Checkpoint, header_of, source_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weightctl.translate.clip_config import ClipModel
    from weightctl.translate.clip_names import ClipPair
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import Header

ClipConvention: TypeAlias = Literal["openai", "hugging_face"]

_TITLES: dict[ClipConvention, str] = {"openai": "OpenAI", "hugging_face": "Hugging Face"}
_MOST_NAMED = 4
_ASSUMED = (
    "the file states neither the number of heads nor the activation: heads of 64 elements and "
    "QuickGELU are assumed, as in OpenAI's models. For a model of OpenCLIP, put its "
    f"{OPEN_CLIP} beside the file"
)
_NO_TOKENIZER = "the tokenizer is not written: copy that of any CLIP model of transformers"
_UNSTATED = (
    "the file does not state the number of heads, the width of MLPs and the activation, and those "
    "of this model differ from what OpenAI's program assumes: OpenCLIP needs them in its config, "
    f"which a directory as output has ({OPEN_CLIP})"
)


def find_clip(header: Header) -> ClipConvention | None:
    """Return the naming convention of a CLIP model; None if a checkpoint is not one."""
    if is_openai_clip(header):
        return "openai"
    document = config(header.files)
    is_clip = document.get("model_type") == "clip" and is_config_of(document, header)
    return "hugging_face" if is_clip else None


def plan_clip(
    weights: Checkpoint, format_name: str, wanted: ClipConvention, *, is_model: bool
) -> Plan | None:
    """Plan to store a CLIP model with the names of a convention.

    `is_model` states that the output is a model directory. Returns None if the checkpoint is not a
    CLIP model; one that has these names already is copied. Raises `ArchitectureError` if tensors
    are missing, unknown or of a wrong shape, or for a model that does not exist in the other
    convention.
    """
    header = header_of(weights)
    own = find_clip(header)
    if own is None:
        return None
    if own == wanted:
        return Plan.copy(weights, format_name)
    where = header.files[0] if header.files else "the checkpoint"
    names = [name for name in (*header.tensors, *header.aliases) if name not in IGNORED]
    pairs = list_clip_pairs(names)
    _check_names(names, pairs, own, where)
    source = source_of(weights)
    stored = {name: tensor_of(source, name) for name in names}
    in_openai = stored if own == "openai" else _to_openai(stored, pairs)
    model = read_tower_sizes({name: each.info.shape for name, each in in_openai.items()}, where)
    model, notes = _complete(model, header, own)
    documents: dict[str, bytes] = {}
    if wanted == "openai":
        tensors: Mapping[str, ReadableTensor] = in_openai
        if is_model:
            documents[OPEN_CLIP] = json_document(make_open_clip_config(model))
        elif not is_as_openai(model):
            notes.append(_UNSTATED)
    else:
        tensors = _to_hugging_face(stored, pairs, model)
        if is_model:
            dtype = _dtype(tensors.values())
            documents[CONFIG] = json_document(make_clip_config(model, dtype))
            documents["preprocessor_config.json"] = json_document(make_image_config(model))
            notes.append(_NO_TOKENIZER)
    tree = Checkpoint(Derived(source, tensors, {"format": text("pt")}, leaves={}))
    return replace(
        Plan.copy(tree, format_name),
        documents=documents,
        notes=tuple(notes),
        translation=f"clip, {_TITLES[own]} -> {_TITLES[wanted]}",
    )


def _check_names(
    names: Sequence[str], pairs: Sequence[ClipPair], own: ClipConvention, where: str
) -> None:
    expected = [
        name
        for pair in pairs
        for name in ((pair.openai,) if own == "openai" else pair.hugging_face)
    ]
    problems: list[str] = []
    present, known = set(names), set(expected)
    missing = [name for name in expected if name not in present]
    unknown = [name for name in names if name not in known]
    for what, each in (("missing", missing), ("unknown", unknown)):
        if each:
            are = "is" if len(each) == 1 else "are"
            listed = join_names(each, _MOST_NAMED)
            problems.append(f"{pluralize(len(each), 'tensor')} {are} {what}: {listed}")
    if problems:
        message = f"{where}: the tensors are not those of a CLIP model with two transformers:"
        raise ArchitectureError(
            "\n  ".join([message, *problems]),
            hint="check that the checkpoint is complete; transformers' CLIP has no ResNet, no "
            "layer scale and no text decoder",
        )


def _complete(model: ClipModel, header: Header, own: ClipConvention) -> tuple[ClipModel, list[str]]:
    """Return a model with its heads and activation, and notes about what is assumed."""
    directory = os.path.dirname(header.files[0]) if header.files else ""
    if own == "hugging_face":
        where = os.path.join(directory, CONFIG)
        return read_clip_config(model, config(header.files), where), []
    where = os.path.join(directory, OPEN_CLIP)
    stated = read_open_clip_config(model, config(header.files, OPEN_CLIP), where)
    if stated is not None:
        return stated, []
    if not is_as_openai(model):
        raise ArchitectureError(
            f"the widths {model.text.width} and {model.vision.width} of the encoders do not divide "
            "into the heads of OpenAI's models, or their MLPs have other widths",
            hint=f"put the {OPEN_CLIP} of the model beside the file",
        )
    return model, [] if header.tensors.keys() >= JIT_SIZES else [_ASSUMED]


def _to_openai(
    stored: Mapping[str, ReadableTensor], pairs: Sequence[ClipPair]
) -> dict[str, ReadableTensor]:
    made: dict[str, ReadableTensor] = {}
    for name, parts, form in pairs:
        tensors = [stored[part] for part in parts]
        made[name] = tensors[0]
        if form == "joined":
            made[name] = DerivedTensor(name, Joined(len(tensors)), tensors)
        elif form == "transposed":
            made[name] = DerivedTensor(name, Transposed(), tensors)
    return made


def _to_hugging_face(
    stored: Mapping[str, ReadableTensor], pairs: Sequence[ClipPair], model: ClipModel
) -> dict[str, ReadableTensor]:
    made: dict[str, ReadableTensor] = {}
    for name, parts, form in pairs:
        whole = stored[name]
        made[parts[0]] = whole
        if form == "transposed":
            made[parts[0]] = DerivedTensor(parts[0], Transposed(), [whole])
        elif form == "joined":
            width = (model.vision if name.startswith("visual.") else model.text).width
            for number, part in enumerate(parts):
                rows = RowRange(number * width, (number + 1) * width)
                made[part] = DerivedTensor(part, rows, [whole])
    return made


def _dtype(tensors: Any) -> str:
    """Return the dtype of the tensors; float32 if they have several."""
    found = {each.info.encoding.dtype for each in tensors}
    dtype = found.pop() if len(found) == 1 else None
    return "float32" if dtype is None else str(dtype.value)
