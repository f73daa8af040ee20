"""The plan for a checkpoint in the naming convention of its output."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from dataclasses import replace
from enum import Enum
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from weightctl.errors import ArchitectureError, ConversionError
from weightctl.families.blinkdl import find_blinkdl, restate_blinkdl
from weightctl.families.config_file import read_config
from weightctl.families.diffusion import find_diffusion_package
from weightctl.families.mlx import has_mlx_tensors, is_mlx
from weightctl.families.model import ARCHITECTURE
from weightctl.families.mtp_tensors import find_mtp
from weightctl.formats.huggingface import CONFIG, model_directory
from weightctl.plan.arrangement import select
from weightctl.plan.choices import Names, OptionalPart
from weightctl.plan.plan import Described, Plan, refuse_adapter
from weightctl.schemes.buffers import is_optimizer_state
from weightctl.schemes.matching import list_scheme_tensors
from weightctl.schemes.settings import read_settings
from weightctl.storage.files import exists
from weightctl.system.processes import without_collection
from weightctl.text.folding import mask_numbers
from weightctl.text.patterns import select_names
from weightctl.text.wording import join_names
from weightctl.translate.model_dtypes import make_unquantized_config, store_in_own_dtypes
from weightctl.translate.optional_parts import (
    describe_without_mtp,
    keep_mtp,
    leave_out_mtp,
    place_mtp,
)
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterator, Mapping, Sequence

    from weightctl.families import RecognizedModel
    from weightctl.families.config_keys import NamingConvention
    from weightctl.families.diffusion import DiffusionPackage
    from weightctl.weights.info import Header, TensorInfo
    from weightctl.weights.tree import Checkpoint

_IN_ONE_FILE = (
    "a single file keeps GGUF names and metadata; for names and metadata that "
    "transformers loads, write to a directory (OUT/)"
)
_IN_MLX_FORM = (
    "all tensors keep the form of MLX, whose names, axes and values can differ from those that "
    "transformers loads; quantized weights of supported families get Hugging Face's form with "
    "--dtype (dtype in Python)"
)
_MOST_NAMED = 4
# The number of outer names, such as `state_dict` and `model`, below which a model is looked for.
_MOST_OUTER = 3
# The smallest number of tensors of a language model, where those of all layers count once.
_FEWEST = 8
# Notes for single files of diffusion transformers, by the naming convention of the input.
_KEPT_NAMES: dict[NamingConvention, str] = {
    "gguf": "a single file keeps the names of the input, here original names; for the names of "
    "diffusers, write to a directory (OUT/)",
    "hugging_face": "a single file keeps the names of the input, here those of diffusers; for "
    'original names, use --names gguf (names="gguf" in Python)',
}


class ModelPart(Enum):
    """Which part of a multimodal model is written: the text model with what is beside it, or one.

    `TEXT` states that the tower is written to a file of its own, and `TOWER` that this is the file.
    """

    WHOLE = "whole"
    TEXT = "text"
    TOWER = "tower"


@without_collection()
def plan_of(
    weights: Checkpoint,
    format_name: str,
    *,
    names: Names = Names.AUTO,
    is_model: bool = False,
    is_cast: bool = False,
    in_blocks: bool = False,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    without: Collection[OptionalPart] = (),
    part: ModelPart = ModelPart.WHOLE,
    mmproj: Checkpoint | None = None,
) -> Plan:
    """Plan to store a checkpoint in a container format, with its naming convention.

    `is_model` states that the output is a model directory, which can have documents beside the
    tensors: by default, other outputs do not get Hugging Face's names. `is_cast` states that
    tensors get other encodings; weights that are stored in several tensors are decoded first. With
    `in_blocks`, they are in GGUF's blocks where these hold the same values, as always for GGUF.
    `include` and `exclude` are patterns as in `select` for the names in the output; `exclude` also
    applies to tensors of the input that are not part of the model. `without` are parts of the model
    that are left out, `part` selects a part of a multimodal model, and `mmproj` is its tower, if
    that is in a file of its own.

    Raises as `select` does, as `recognize` and `translate` do where the naming convention is to
    change, and `ConversionError` for a LoRA adapter that is to become GGUF, and for a language
    model without config.json.
    """
    # A directory can contain a model's config beside an adapter, which is not that model.
    refuse_adapter(header_of(weights), format_name)
    diffusion = find_diffusion_package(header_of(weights)) if part is ModelPart.WHOLE else None
    native = _native(weights, format_name, names) if diffusion is None else diffusion[1].convention
    wanted = _choose_convention(names, native, format_name, is_model=is_model)
    keeps_names = wanted == native == "hugging_face"
    crosses = wanted is not None and wanted != native
    crosses |= keeps_names and (
        _is_params_form(header_of(weights)) or _leaves_mlx_form(weights, is_cast=is_cast)
    )
    _check_parts(part, mmproj, native, wanted)
    stored = weights
    is_gguf = format_name == "gguf"
    if crosses or is_cast or (is_gguf and header_of(weights).format != "gguf"):
        weights = _decode_schemes(weights, format_name, in_blocks=in_blocks)
    apart = weights is not stored
    if diffusion is not None:
        is_kept = names is Names.AUTO and wanted is None
        plan, exclude = _plan_diffusion(
            diffusion[0],
            weights,
            format_name,
            wanted,
            exclude,
            notes=[_KEPT_NAMES[diffusion[1].convention]] if is_kept else [],
            is_model=is_model,
            is_cast=is_cast,
        )
        return select(plan, include, exclude)
    tower: frozenset[str] = frozenset()
    if part is ModelPart.TOWER:
        plan = _plan_tower(weights, format_name)
    elif crosses and wanted is not None:
        plan, exclude, tower = _translate_model(
            weights,
            format_name,
            wanted,
            exclude,
            is_model=is_model,
            without=without,
            part=part,
            mmproj=mmproj,
        )
    else:
        plan = Plan.copy(weights, format_name)
        if is_cast and native == "hugging_face":
            # Only some types depend on the family of a model, and recognizing it takes a while.
            plan = replace(plan, describe=cache(partial(_describe_model, weights)))
        notes = [_IN_ONE_FILE] if names is Names.AUTO and native == "gguf" and not is_gguf else []
        notes += _describe_others(weights) if keeps_names else ()
        plan = replace(plan, notes=(*plan.notes, *notes))
        if apart and is_model:
            plan = replace(plan, documents=make_unquantized_config(stored))
        if OptionalPart.MTP in without:
            plan = leave_out_mtp(plan, weights, is_model=is_model)
    if OptionalPart.MAIN in without:
        plan = keep_mtp(plan)
    if not is_cast:
        together = list_scheme_tensors(header_of(stored)) if apart else set[str]()
        plan = store_in_own_dtypes(plan, together, stored, tower)
    return select(plan, include, exclude)


def _leaves_mlx_form(weights: Checkpoint, *, is_cast: bool) -> bool:
    """Whether a model in the form of MLX gets Hugging Face's; weights stay quantized in its form.

    A model of unknown family keeps tensors that may also have their names in Hugging Face's form.
    """
    header = header_of(weights)
    if not is_mlx(header) or (not is_cast and list_scheme_tensors(header)):
        return False
    from weightctl.families import FAMILIES  # most models are not in this form

    kind = read_config(header)[1].get("model_type")
    return has_mlx_tensors(header) or any(kind in line.model_types for line in FAMILIES.values())


def _describe_others(weights: Checkpoint) -> Iterator[str]:
    """Yield notes on tensors that are copied although the class of the model has no such ones."""
    if is_mlx(header_of(weights)):
        yield _IN_MLX_FORM
        return
    from weightctl.families import recognize

    with suppress(ArchitectureError):
        checkpoint = recognize(weights)
        together = list_scheme_tensors(header_of(weights))
        if others := [name for name in checkpoint.unexpected if name not in together]:
            yield (
                f"copied, although {checkpoint.family.name} models do not have these tensors: "
                f"{join_names(others, _MOST_NAMED)}"
            )


def _plan_diffusion(
    package: DiffusionPackage,
    weights: Checkpoint,
    format_name: str,
    wanted: NamingConvention | None,
    exclude: Sequence[str],
    *,
    notes: Sequence[str],
    is_model: bool,
    is_cast: bool,
) -> tuple[Plan, Sequence[str]]:
    """Plan to store a diffusion transformer, with notes, in the dtypes that it was trained in."""
    planned: tuple[Plan, Sequence[str]] = package.plan(
        weights, format_name, wanted, exclude, is_model=is_model
    )
    plan, exclude = planned
    if not is_cast and header_of(weights).format == "gguf":
        plan = store_in_own_dtypes(plan, set(), weights, frozenset())
    return replace(plan, notes=(*plan.notes, *notes)), exclude


def _plan_tower(weights: Checkpoint, format_name: str) -> Plan:
    """Plan to store the tower of a multimodal model in an mmproj file."""
    from weightctl.translate.towers import translate_tower

    if format_name != "gguf":
        raise ConversionError(
            f"an mmproj file is a GGUF file, and cannot be stored as {format_name}",
            hint="end its name with .gguf",
        )
    return translate_tower(_recognize_model(weights)).plan(format_name)


def _decode_schemes(weights: Checkpoint, format_name: str, *, in_blocks: bool) -> Checkpoint:
    """Return a checkpoint without schemes, itself if it has none."""
    from weightctl.schemes.dequantize import dequantize_weights

    is_gguf = format_name == "gguf"
    decoded = dequantize_weights(weights, in_blocks=is_gguf or in_blocks, keeps_shapes=not is_gguf)
    _refuse_without_scales(decoded)
    return decoded


def _refuse_without_scales(weights: Checkpoint) -> None:
    """Raise `ConversionError` for values whose scales are missing."""
    if not read_settings(header_of(weights)):
        return
    for name, info in header_of(weights).tensors.items():
        dtype = info.encoding.dtype
        if len(info.shape) > 1 and dtype is not None and dtype.value.startswith("float8"):
            raise ConversionError(
                f"`{name}` is stored as {info.encoding} and config.json states that the "
                "model is quantized, but the scales are missing",
                hint="check that the checkpoint is complete; `weightctl ls` lists its tensors",
            )


def _native(weights: Checkpoint, format_name: str, names: Names) -> NamingConvention | None:
    """Return the naming convention of a model; None if it is not recognized.

    Raises `ConversionError` for a language model of unknown family that is to become GGUF.
    """
    found = _find_native(weights)
    if found is None and _is_params_form(header_of(weights)):
        return "hugging_face"
    if found is None and format_name == "gguf" and names in {Names.AUTO, Names.GGUF}:
        if find_blinkdl(header_of(weights)) is not None:
            return "hugging_face"
        if names is Names.AUTO:
            _refuse_model_without_config(weights)
    return found


def _refuse_model_without_config(weights: Checkpoint) -> None:
    """Raise `ConversionError` for a language model in files that do not state its family."""
    header = header_of(weights)
    if header.format == "gguf":
        return
    from weightctl.families.nearest import describe_nearest

    # Training programs store a model below names such as `state_dict.model`.
    for depth in range(_MOST_OUTER):
        below: dict[str, list[TensorInfo]] = {}
        for name, info in header.tensors.items():
            *outer, rest = name.split(".", depth)
            if not is_optimizer_state(info):
                below.setdefault(".".join(outer), []).append(info._replace(name=rest))
        inner = max(below.values(), key=len) if below else []
        kinds = {mask_numbers(info.name) for info in inner}
        if len(kinds) >= _FEWEST and (near := describe_nearest(inner, "hugging_face")):
            raise ConversionError(
                "the tensors look like those of a language model, but no config.json states its "
                "family, so llama.cpp would not load the output",
                hint=f"{near}; name the directory of the model with --config DIR (config in "
                "Python); to convert the tensors under their present names, use --names keep "
                '(names="keep" in Python)',
            )


def _find_native(weights: Checkpoint) -> NamingConvention | None:
    if ARCHITECTURE in header_of(weights).metadata:
        return "gguf"
    header = header_of(weights)
    directory = model_directory(header)
    if directory is None or not exists(os.path.join(directory, CONFIG)):
        return None
    try:
        document = read_config(header)[1]
    except ArchitectureError:
        return "hugging_face"  # the recognition of the family reports the error
    return "hugging_face" if "model_type" in document else None


def _choose_convention(
    names: Names, native: NamingConvention | None, format_name: str, *, is_model: bool
) -> NamingConvention | None:
    if names is Names.KEEP:
        return None
    if names is not Names.AUTO:
        return "gguf" if names is Names.GGUF else "hugging_face"
    if native is None:
        return None
    if format_name == "gguf":
        return "gguf"
    return "hugging_face" if is_model else None


def _translate_model(
    weights: Checkpoint,
    format_name: str,
    convention: NamingConvention,
    exclude: Sequence[str],
    *,
    is_model: bool,
    without: Collection[OptionalPart],
    part: ModelPart,
    mmproj: Checkpoint | None,
) -> tuple[Plan, list[str], frozenset[str]]:
    from weightctl.translate.models import translate

    checkpoint = _recognize_model(weights)
    mtp = find_mtp(header_of(weights), checkpoint.document)
    is_without_mtp = OptionalPart.MTP in without
    checkpoint = place_mtp(checkpoint, mtp, convention, is_left_out=is_without_mtp)
    left_out = [name for name in checkpoint.unexpected if not select_names([name], (), exclude)]
    of_no_use = set(left_out)
    unexpected = [name for name in checkpoint.unexpected if name not in of_no_use]
    checkpoint = replace(checkpoint, unexpected=unexpected)
    has_mtp = not mtp.names.keys().isdisjoint(unexpected)
    with (
        _name_whole(checkpoint),
        _hint_at_keeping_names(has_more=bool(unexpected), has_mtp=has_mtp),
    ):
        made = translate(checkpoint, convention, has_tower_file=part is ModelPart.TEXT)
    if mmproj is not None:
        from weightctl.translate.towers import join_tower

        made = join_tower(checkpoint, made, mmproj)
    plan = made.plan(format_name)
    if is_without_mtp:
        plan = replace(plan, notes=(*plan.notes, describe_without_mtp(mtp)))
    if made.documents and not is_model:
        note = (
            f"{', '.join(made.documents)} can only be written to a directory: without "
            "them transformers does not load the output"
        )
        plan = replace(plan, notes=(*plan.notes, note))
    present = [item.info.name for item in plan.items]
    patterns = [
        pattern
        for pattern in exclude
        if select_names(present, [pattern]) or not select_names(left_out, [pattern])
    ]
    return plan, patterns, made.tower


def _check_parts(
    part: ModelPart,
    mmproj: Checkpoint | None,
    native: NamingConvention | None,
    wanted: NamingConvention | None,
) -> None:
    """Raise `ConversionError` if a tower cannot be written to, or joined from, another file."""
    if part is not ModelPart.WHOLE and native != "hugging_face":
        raise ConversionError(
            "--mmproj (mmproj in Python) writes the tower of a multimodal model in Hugging Face's "
            "naming convention, but the input is not one",
            hint="to change the types of an mmproj file, convert it as any GGUF file",
        )
    if part is ModelPart.TEXT and wanted != "gguf":
        raise ConversionError(
            "--mmproj (mmproj in Python) writes the tower to a file of its own, but the output is "
            "not a GGUF file with GGUF's names",
            hint="a model directory contains the tower anyway: leave out --mmproj",
        )
    if mmproj is not None and wanted != "hugging_face":
        raise ConversionError(
            "--mmproj (mmproj in Python) adds the tower to a model with Hugging Face's names, but "
            "the output keeps GGUF's names",
            hint="write to a directory (OUT/); an mmproj file can be converted on its own",
        )


def _is_params_form(header: Header) -> bool:
    """Whether the names are those of models with params.json in place of config.json."""
    return "tok_embeddings.weight" in header.tensors and "layers.0.attention.wq.weight" in (
        header.tensors
    )


def _recognize_model(weights: Checkpoint) -> RecognizedModel:
    from weightctl.families import recognize

    with _hint_at_keeping_names():
        restated = restate_blinkdl(weights)
        if restated is None and _is_params_form(header_of(weights)):
            from weightctl.families.params_json import restate_params_form

            restated = restate_params_form(weights)
        return recognize(weights) if restated is None else recognize(*restated)


@contextmanager
def _name_whole(checkpoint: RecognizedModel) -> Generator[None, None, None]:
    """Add a hint to an error if the file of a single rank is translated: how to join the ranks."""
    try:
        yield
    except ArchitectureError as error:
        from weightctl.formats.sharded.opening import find_whole

        files = header_of(checkpoint.tree).files
        if not (whole := find_whole(files)):
            raise
        raise type(error)(
            f"{files[0]} has only the tensors of one rank, and cannot become a whole model",
            hint=f"join the ranks: `weightctl shard {whole} OUT --gather`; or convert {whole}, "
            "which has all ranks",
        ) from error


@contextmanager
def _hint_at_keeping_names(
    *, has_more: bool = False, has_mtp: bool = False
) -> Generator[None, None, None]:
    """Add a hint to an error: how to convert the tensors without a translation."""
    keep = (
        'to convert the tensors under their present names, use --names keep (names="keep" '
        "in Python), but other programs cannot load such a file as a model"
    )
    if has_more:
        keep = (
            "to leave out tensors that are not part of the model, use --exclude (exclude "
            f"in Python); {keep}"
        )
    if has_mtp:
        keep = (
            "the output has no place for the layers for multi-token prediction (MTP) of this "
            f'family: to leave them out, use --without mtp (without="mtp" in Python); {keep}'
        )
    try:
        yield
    except ArchitectureError as error:
        if "--names keep" in error.hint:
            raise
        hint = "; ".join(filter(None, (error.hint, keep)))
        raise type(error)(error.message, hint=hint) from error


def _describe_model(weights: Checkpoint) -> Described | None:
    """Return llama.cpp's names for tensors that keep their names, if known."""
    from weightctl.families import recognize
    from weightctl.families.config_writing import to_gguf
    from weightctl.weights.metadata import MetadataValue

    with suppress(ArchitectureError):
        checkpoint = recognize(weights)
        family = checkpoint.family
        metadata = to_gguf(family, checkpoint.fields)
        return Described(
            _names(checkpoint),
            {ARCHITECTURE: MetadataValue("string", family.gguf_name), **metadata},
            _norm_offsets(checkpoint),
        )
    return None


def _norm_offsets(checkpoint: RecognizedModel) -> Mapping[str, float]:
    """Return what is added to the weights of norms that differ in nothing else from GGUF's."""
    found: dict[str, float] = {}
    for tensor in checkpoint.family.tensors(checkpoint.config):
        if "_norm" not in (tensor.gguf or "") or tensor.module not in checkpoint.tensors:
            continue
        change = tensor.change
        fields = dict[str, Any]() if change is None else change.fields("hugging_face")
        if change is None or "norm_offset" in fields:
            for source in checkpoint.tensors[tensor.module].origin.sources:
                found[source.name] = float(fields.get("norm_offset", 0.0))
    return found


def _names(checkpoint: RecognizedModel) -> Mapping[str, str]:
    return {
        source.name: tensor.gguf
        for tensor in checkpoint.family.tensors(checkpoint.config)
        if tensor.gguf is not None and tensor.module in checkpoint.tensors
        for source in checkpoint.tensors[tensor.module].origin.sources
    }
