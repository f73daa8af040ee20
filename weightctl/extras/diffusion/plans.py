"""Diffusion transformers in the other naming convention, or as GGUF files have them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from weightctl.extras.diffusion.matching import match, split_rows
from weightctl.families.diffusion import CONFIG_KEY
from weightctl.families.model import ARCHITECTURE
from weightctl.formats.huggingface import CONFIG, json_document
from weightctl.plan.file_types import file_type
from weightctl.plan.plan import Plan
from weightctl.text.patterns import select_names
from weightctl.text.wording import join_names, pluralize
from weightctl.translate.models import Translation
from weightctl.weights.derived import Derived, DerivedTensor
from weightctl.weights.metadata import TEXT, MetadataValue, text
from weightctl.weights.steps.numbers import AsFloat32
from weightctl.weights.tree import Checkpoint, header_of, source_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.extras.diffusion.matching import RecognizedDiffusion
    from weightctl.families.config_keys import NamingConvention
    from weightctl.weights.derived import ReadableTensor

_TITLES: dict[NamingConvention, str] = {"gguf": "original", "hugging_face": "diffusers"}
# ComfyUI-GGUF's converter stores tensors of up to this many values in float32.
_FEW_VALUES = 1024
_MATRIX = 2
_MOST_NAMED = 4


def plan_diffusion(
    weights: Checkpoint,
    format_name: str,
    wanted: NamingConvention | None,
    exclude: Sequence[str] = (),
    *,
    is_model: bool = False,
) -> tuple[Plan, Sequence[str]]:
    """Plan to store a diffusion transformer; also return the patterns that still apply.

    `wanted` is the naming convention of the output, None to keep the present names. `exclude` are
    patterns of names that are left out. `is_model` states that the output is a model directory. In
    GGUF, vectors and small matrices are in float32, as in the files of ComfyUI-GGUF's
    `tools/convert.py`, and so are tensors of more dimensions: diffusers runs no convolution in
    bfloat16 from GGUF. Raises `ArchitectureError` as `check` and `make_config` of the model do.
    """
    model = match(weights)
    is_gguf = format_name == "gguf"
    is_new = is_gguf and ARCHITECTURE not in header_of(weights).metadata
    if model is None or wanted is None or (wanted == model.convention and not is_new):
        return Plan.copy(weights, format_name), exclude
    left_out = [name for name in model.unexpected if not select_names([name], (), exclude)]
    kept = [name for name in model.unexpected if name not in set(left_out)]
    replace(model, unexpected=kept).check()
    document = model.make_config()
    tensors = _list_tensors(model, wanted)
    metadata: dict[str, MetadataValue] = {} if is_gguf else {"format": text("pt")}
    if not is_model:
        kind = "string" if is_gguf else TEXT
        metadata[CONFIG_KEY] = MetadataValue(kind, json.dumps(document))
    if is_gguf and wanted == "gguf":
        tensors = {name: _in_gguf(name, each) for name, each in tensors.items()}
        number = file_type(each.info for each in tensors.values())
        metadata[ARCHITECTURE] = MetadataValue("string", model.family.name)
        metadata["general.file_type"] = MetadataValue("u32", number)
    documents = {CONFIG: json_document(document)} if wanted == "hugging_face" else {}
    notes: list[str] = []
    if model.beside:
        notes.append(
            "not written, because they are not a part of the transformer: "
            f"{pluralize(len(model.beside), 'tensor')} ({join_names(model.beside, _MOST_NAMED)})"
        )
    patterns = [
        pattern
        for pattern in exclude
        if select_names([*tensors], [pattern]) or not select_names(left_out, [pattern])
    ]
    tree = Checkpoint(Derived(source_of(model.tree), tensors, metadata, leaves={}))
    titles = dict.fromkeys((_TITLES[model.convention], _TITLES[wanted]))
    change = f"{model.family.name}, {' -> '.join(titles)} names"
    return Translation(tree, documents, tuple(notes), change).plan(format_name), patterns


def _list_tensors(
    model: RecognizedDiffusion, convention: NamingConvention
) -> dict[str, ReadableTensor]:
    """Return the tensors by their names in a naming convention."""
    if convention == "gguf":
        return dict(model.tensors)
    made: dict[str, ReadableTensor] = {}
    for name, whole in model.tensors.items():
        line, layer = model.pairs[name]
        names = [each.format(layer) for each in line.diffusers]
        made |= dict(zip(names, split_rows(line, whole), strict=True))
    return made


def _in_gguf(name: str, tensor: ReadableTensor) -> ReadableTensor:
    """Return a tensor as GGUF files have it: in float32 if it is small or not a matrix."""
    info = tensor.info
    is_float32 = len(info.shape) != _MATRIX or info.size <= _FEW_VALUES
    if info.encoding.name == "F64" or (is_float32 and info.encoding.name != "F32"):
        return DerivedTensor(name, AsFloat32(), [tensor])
    return tensor
