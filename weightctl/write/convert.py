"""Converts a checkpoint from its source to the files of the output."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from functools import partial as partial_of
from typing import TYPE_CHECKING, Any, TypeVar

from weightctl.errors import ConversionError
from weightctl.families.llama_cpp import refuse_differences
from weightctl.formats import find_format
from weightctl.formats.open.opening import open_source
from weightctl.plan.arrangement import align as aligned
from weightctl.plan.arrangement import leave_room, split
from weightctl.plan.cast import cast, dequantize_unheld, refuse_unheld
from weightctl.plan.choices import DEFAULT_TASK, Names, NonFinite, OptionalPart
from weightctl.plan.metadata import Setting, change_metadata, list_settings
from weightctl.plan.plan import Plan
from weightctl.plan.recipe_lines import Recipe
from weightctl.plan.rename import RenamingsLike, list_rule_files
from weightctl.plan.scheme_names import SchemeRecipe, find_scheme
from weightctl.plan.type_rules import TypeRule, parse_rules
from weightctl.plan.types import type_of
from weightctl.storage.base import CommitOptions
from weightctl.system.phases import begin_phase
from weightctl.system.registry import load
from weightctl.system.threads import thread_count
from weightctl.text.sizes import parse_size
from weightctl.translate.named_documents import name_documents
from weightctl.translate.tensor_scales import add_tensor_scales
from weightctl.weights.tree import source_of
from weightctl.write.conversion import Conversion
from weightctl.write.conversion_tasks import memory_budget
from weightctl.write.executors.worker import PlanRequest
from weightctl.write.planning import Merge, ModelParts, find_parts, make_plan, plan_merge
from weightctl.write.targets import Target, target

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor

    from weightctl.adapters.reading import AdapterLike
    from weightctl.dtype import DTypeLike, Encoding
    from weightctl.formats.imatrix import Importance
    from weightctl.plan.types import TypeLike
    from weightctl.weights.protocol import Openable

_LEAST_MEMORY = 4_000_000

_RECIPE_OF_PARTS = (
    "a recipe chooses types by all tensors of a model: with parts missing, tensors can get other "
    "types than in the whole model"
)

_Choice = TypeVar("_Choice", bound=Enum)


def convert(
    source: Plan | Openable,
    out: str | os.PathLike[str] | Target | None = None,
    *,
    mmproj: str | os.PathLike[str] | None = None,
    dtype: DTypeLike | Encoding | None = None,
    quant: TypeLike | Recipe | SchemeRecipe | os.PathLike[str] | None = None,
    tensor_types: Mapping[str, TypeLike | None] | Sequence[TypeRule] = (),
    imatrix: str | os.PathLike[str] | None = None,
    feedback: bool = True,
    search: bool = False,
    nonfinite: NonFinite | str = NonFinite.ERROR,
    allow_requantize: bool = False,
    exact: bool = False,
    strict: bool = False,
    fallback: bool = True,
    names: Names | str = Names.AUTO,
    weights_only: bool = False,
    rename: RenamingsLike | None = None,
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    without: str | OptionalPart | Sequence[str | OptionalPart] = (),
    metadata: Mapping[str, object] | Sequence[Setting] = (),
    unset: str | Sequence[str] = (),
    max_shard_size: int | str | None = None,
    align: int | str | None = None,
    header_room: int | str = 0,
    to: str | None = None,
    source_format: str | None = None,
    partial: bool = False,
    config: str | os.PathLike[str] | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    adapters: Sequence[AdapterLike] = (),
    base: str | os.PathLike[str] | None = None,
    private: bool = False,
    pr: bool = False,
    force: bool = False,
    dry_run: bool = False,
    threads: int | None = None,
    memory: int | str | None = None,
    progress: Callable[[int], object] | None = None,
    on: str | Executor | None = None,
    task_size: int | str = DEFAULT_TASK,
) -> Conversion:
    """Convert a checkpoint to another format, dtype or quantization, as `weightctl convert` does.

    `source` is a path, a tree of weights, arrays by name such as a `state_dict()`, or a plan. A
    plan already has its names and tensors, so arguments that choose them do not apply to it. The
    tensors below a node of a tree keep their full names. `out` is a path. Its suffix selects the
    format, unless `to` does. A path without a suffix is a model directory.

    `mmproj` is the path of the GGUF file with the tower (encoder and projection) of a
    multimodal model. If the source is a model with Hugging Face's names, the file is written, in
    addition to `out`, or alone if `out` is None. `dtype` then applies to both files, and `quant`,
    `tensor_types` and the other choices only to `out` if there is one. If the source is a GGUF file
    and `out` is a model directory, the tower is read from the file, and added to the model.

    `partial` accepts a checkpoint in several files even if some files are missing. `weights_only`
    leaves out the training state: optimizer state, step counts, random number generators and other
    values. If one entry contains all weights, such as Lightning's `state_dict`, the names begin
    below it. `config` and `tokenizer` are the paths of directories, or of files in them, with the
    config.json and the tokenizer of a checkpoint that has none beside it. With a `config`, the
    training state is left out, and names lose prefixes of training programs such as `module.`.
    `rename` is a rule `"REGEX=NEW"`, a mapping of such rules, the path of a TOML file of
    rules, or a list of rules and paths. `include` and `exclude` are patterns of the names in the
    output. `without` is a part of the model that is left out, or a list of parts: "mtp" means the
    layers for multi-token prediction, which the output's config then does not count, and "main" all
    other layers.

    `dtype` stores unquantized values. `quant` quantizes matrices by a recipe or to a type. Without
    either, tensors become BF16 if some have types of GGUF that the format cannot store.
    `tensor_types` maps patterns of names to types; `"keep"` or None keeps the stored type.
    `imatrix` is the path of an importance matrix. If it has products of columns, blocks of GGUF are
    rounded with error feedback, unless `feedback` is False. `search` chooses the scales of a type
    for model directories by the smallest squared error; `imatrix` implies it there. `exact` refuses
    a conversion that rounds values, and `strict` one to a GGUF that llama.cpp runs differently from
    transformers, or not at all. `metadata` sets metadata keys, and `unset` removes keys that
    match patterns. `header_room` leaves room in the header, so that `edit` can change it later.
    Sizes are numbers of bytes, or text such as "5GB". If the output is in a
    repository on the Hugging Face Hub, `private` makes a new repository private, and `pr` opens a
    pull request.

    `adapters` are paths of LoRA adapters that are merged into the model, or pairs of a path and the
    weight of its changes. `base` is the path of the model of an adapter or a
    draft model that becomes a GGUF file.

    `on` selects workers that do the work: a `concurrent.futures.Executor`, or text such as
    "processes:4". `threads`, by default one, and `memory` are then the limits of each worker, which
    takes at most `task_size` bytes of work at a time. All workers must be able to access the source
    and the output.

    Returns the finished conversion. If `dry_run` is set, nothing is written: `plan`, `outcome` and
    `notes` of the result describe the conversion, and its `save` writes the output. Raises
    `ConversionError`, `FormatError` and `OutputError`, which are `WeightctlError`s with a hint;
    after an error, the target is unchanged.
    """
    given = dict(locals())
    # Arguments are checked even if a dry run does not use them.
    budget, count = memory_budget(memory, least=_LEAST_MEMORY), thread_count(threads)
    is_zero = _choice(NonFinite, nonfinite, "nonfinite") is NonFinite.ZERO
    include, exclude, unset = map(_as_list, (include, exclude, unset))
    left_out = _list_optional_parts(without)
    options = CommitOptions(private=private, pull_request=pr)
    where = _target(out, mmproj, to, options)
    is_cast = dtype is not None or quant is not None or bool(tensor_types)
    is_directory = where.file_name is not None and where.format == "safetensors"
    scheme = _find_scheme(quant, is_directory=is_directory, search=search)
    settings, rules = list_settings(metadata), parse_rules(tensor_types)
    chosen = _choose_type(where.format, dtype, quant, rules, is_scheme=scheme is not None)
    importance = _read_importance(imatrix)
    parts, merge = ModelParts(), Merge()
    if isinstance(source, Plan):
        has_choice = weights_only or partial or bool([*include, *exclude, *left_out, *adapters])
        has_choice |= any(each is not None for each in (rename, mmproj, config, tokenizer))
        _refuse_for_plan(source, where, names=names, has_choice=has_choice)
        plan, opened = source, source.source
    else:
        weights = open_source(source, source_format, partial=partial)
        weights = name_documents(weights, config, tokenizer)
        opened = source_of(weights)
        of_tower = partial_of(
            convert,
            source,
            mmproj=mmproj,
            dtype=dtype,
            source_format=source_format,
            config=config,
            tokenizer=tokenizer,
            dry_run=True,
        )
        parts = find_parts(weights, mmproj, where, None if out is None else of_tower)
        plan, merge = plan_merge(
            weights,
            adapters,
            partial_of(
                make_plan,
                where=where,
                parts=parts,
                names=_choice(Names, names, "names"),
                weights_only=weights_only,
                rename=rename,
                is_cast=is_cast,
                in_blocks=scheme is not None,
                include=include,
                exclude=exclude,
                without=left_out,
                base=base,
            ),
            where,
        )
    begin_phase("planning the conversion")
    # Metadata is set twice: before types are chosen, since it may determine them, and afterwards,
    # since it overrides keys that describe the types.
    plan = change_metadata(plan, settings, unset)
    consulted = dict.fromkeys(list_rule_files(rename), "the file of naming rules")
    plan = replace(plan, consulted={**plan.consulted, **consulted})
    if scheme is not None:
        plan = _store_in_scheme(
            plan,
            scheme,
            rules,
            fallback=fallback,
            requantize=allow_requantize,
            zero_nonfinite=is_zero,
            exact=exact,
            importance=importance,
            search=search,
            feedback=feedback,
        )
    else:
        plan = add_tensor_scales(
            _cast_for_format(
                plan,
                chosen,
                rules,
                fallback=fallback,
                requantize=allow_requantize or exact,
                weighted=importance is not None,
            ),
            is_cast=is_cast,
        )
    merge.refuse_second_rounding(plan, requantize=allow_requantize)
    if quant is not None and scheme is None:
        plan = _note_where_nothing_is_quantized(plan)
    if isinstance(chosen, Recipe) and opened.header.missing:
        plan = replace(plan, notes=(*plan.notes, _RECIPE_OF_PARTS))
    if importance is not None and scheme is None:
        plan = _apply_importance(plan, importance, feedback=feedback)
    if exact:
        plan.refuse_rounding()
    plan = change_metadata(replace(plan, zero_nonfinite=is_zero), settings)
    plan = _arrange(plan, align=align, header_room=header_room, max_shard_size=max_shard_size)
    request = PlanRequest.of(convert, given)
    conversion = Conversion(plan, where, opened, request=request, beside=parts.beside)
    refuse_differences(
        note for each in (conversion.outputs if strict else ()) for note in each.notes
    )
    if dry_run:
        return conversion
    return conversion.save(
        force=force,
        threads=count if on is None else threads,
        memory=budget,
        progress=progress,
        on=on,
        task_size=task_size,
    )


def _find_scheme(quant: object, *, is_directory: bool, search: bool) -> SchemeRecipe | None:
    """Return the scheme that is asked for; raises `ConversionError` for a search without one."""
    found = find_scheme(quant, is_directory=is_directory)
    if search and found is None:
        raise ConversionError(
            "--search (search in Python) applies only to types for model directories, such as "
            "W4A16",
            hint="leave it out: scales of GGUF's block types are always searched, and --imatrix "
            "FILE (imatrix in Python) weights their errors",
        )
    return found


def _choose_type(
    format_name: str, dtype: Any, quant: Any, rules: Sequence[TypeRule], *, is_scheme: bool
) -> Encoding | Recipe | None:
    """Return the type or recipe that is asked for; None if there is none, or only a scheme.

    Raises `ConversionError` if the format cannot store a type that is asked for.
    """
    wanted = str(quant.choice) if isinstance(quant, SchemeRecipe) else quant
    chosen = None if is_scheme and dtype is None else type_of(dtype, wanted)
    if not find_format(format_name).cast:
        refuse_unheld(format_name, chosen, rules)
    return chosen


def _as_list(given: str | Sequence[str]) -> Sequence[str]:
    return [given] if isinstance(given, str) else given


# What few conversions do is imported on use.


def _read_importance(imatrix: str | os.PathLike[str] | None) -> Importance | None:
    if imatrix is None:
        return None
    from weightctl.formats.imatrix import read_importance

    return read_importance(os.fspath(imatrix))


def _apply_importance(plan: Plan, importance: Importance, *, feedback: bool) -> Plan:
    from weightctl.plan.importance import apply_importance

    return apply_importance(plan, importance, feedback=feedback)


def _store_in_scheme(
    plan: Plan, scheme: SchemeRecipe, rules: Sequence[TypeRule], **options: Any
) -> Plan:
    from weightctl.plan.scheme_weights import store_in_scheme

    return store_in_scheme(plan, scheme, rules, **options)


def _cast_for_format(
    plan: Plan,
    target: Encoding | Recipe | None,
    rules: Sequence[TypeRule],
    **options: bool,
) -> Plan:
    """Store the tensors of a plan in other encodings, as the format needs them."""
    of_format = find_format(plan.format).cast
    if not of_format:
        plan = plan if target or rules else dequantize_unheld(plan)
        return cast(plan, target, rules, **options)
    changed: Plan = load(of_format)(plan, target, rules, **options)
    return changed


def merge(
    source: Openable,
    adapters: str | os.PathLike[str] | Sequence[AdapterLike] | Mapping[str, float],
    out: str | os.PathLike[str],
    **options: Any,
) -> Conversion:
    """Merge LoRA adapters into a model, as `weightctl merge` does.

    `adapters` is a path, a list of paths and of pairs of a path and the weight of its changes, or a
    mapping of paths to weights. The options are those of `convert`, whose errors are raised.
    """
    given: Sequence[AdapterLike]
    if isinstance(adapters, Mapping):
        given = [*adapters.items()]
    else:
        given = [adapters] if isinstance(adapters, str | os.PathLike) else adapters
    return convert(source, out, adapters=given, **options)


def _note_where_nothing_is_quantized(plan: Plan) -> Plan:
    # Items with `asked` are matrices whose rows do not fit; the summary reports them.
    if not plan.items or any(item.info.encoding.quantization or item.asked for item in plan.items):
        return plan
    note = (
        "no tensor is quantized: only matrices whose names end in `.weight` are, except norms and "
        "routers; for other tensors, use --tensor-type (tensor_types in Python)"
    )
    return replace(plan, notes=(*plan.notes, note))


def _target(
    out: str | os.PathLike[str] | Target | None,
    mmproj: str | os.PathLike[str] | None,
    to: str | None,
    options: CommitOptions,
) -> Target:
    if isinstance(out, Target):
        return out
    if out is None and mmproj is None:
        raise ConversionError(
            "OUT is missing",
            hint="usage: `weightctl convert MODEL OUT`; with --quant or --to gguf, OUT can be left "
            "out; `weightctl convert --help` describes the options",
        )
    return target(os.fspath(out or mmproj or ""), to, options)


def _list_optional_parts(
    without: str | OptionalPart | Sequence[str | OptionalPart],
) -> list[OptionalPart]:
    named = [without] if isinstance(without, str | OptionalPart) else without
    return [_choice(OptionalPart, each, "without") for each in named]


def _refuse_for_plan(plan: Plan, where: Target, *, names: Names | str, has_choice: bool) -> None:
    """Raise `ConversionError` for arguments that a plan has already determined."""
    if plan.format != where.format:
        raise ConversionError(
            f"the plan is for {plan.format}, but the format of {where.path} is {where.format}",
            hint=f"make the plan with `Plan.copy(weights, '{where.format}')`",
        )
    if _choice(Names, names, "names") is not Names.AUTO or has_choice:
        raise ConversionError(
            "config, tokenizer, names, weights_only, rename, include, exclude, without, partial "
            "and mmproj do not apply to a plan: its tensors and names are already chosen",
            hint="convert the checkpoint itself, or transform the plan: `plan.only(names)`",
        )


def _arrange(
    plan: Plan,
    *,
    align: int | str | None,
    header_room: int | str,
    max_shard_size: int | str | None,
) -> Plan:
    if align is not None:
        plan = aligned(plan, _nbytes(align, unit="B"))
    if room := _nbytes(header_room):
        plan = replace(plan, metadata=leave_room(plan.metadata, plan.format, room))
    return plan if max_shard_size is None else _split(plan, max_shard_size)


def _split(plan: Plan, most: int | str) -> Plan:
    limit = _nbytes(most)
    if limit <= 0:
        raise ConversionError(
            f"--max-shard-size (max_shard_size in Python) must be more than 0, not {most}",
            hint="write a size such as 5GB",
        )
    plan = split(plan, limit)
    layouts = plan.layouts()
    larger = sum(layout.nbytes > limit for layout in layouts)
    if not larger:
        return plan
    note = (
        f"{larger} of {len(layouts)} files are larger than {most}: a tensor is not divided "
        "between files"
    )
    return replace(plan, notes=(*plan.notes, note))


def _nbytes(given: int | str, *, unit: str = "") -> int:
    return parse_size(given, unit=unit) if isinstance(given, str) else given


def _choice(kind: type[_Choice], given: _Choice | str, what: str) -> _Choice:
    try:
        return kind(given)
    except ValueError as error:
        choices = ", ".join(str(each.value) for each in kind)
        raise ConversionError(f"{what} cannot be {given!r}", hint=f"choices: {choices}") from error
