"""Choice of encodings for a plan's tensors: dtypes and block quantization."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weightctl.dtype import ENCODINGS, Encoding
from weightctl.errors import ConversionError
from weightctl.families.model import ARCHITECTURE
from weightctl.families.names import is_matrix_weight, is_projection
from weightctl.formats import FORMATS, has_type
from weightctl.plan.file_types import GUESSED, file_type
from weightctl.plan.importance import ROUNDING
from weightctl.plan.plan import Described, Plan
from weightctl.plan.recipe_lines import Recipe
from weightctl.plan.type_rules import parse_rules
from weightctl.plan.types import type_or_recipe
from weightctl.schemes import WRITTEN
from weightctl.schemes.buffers import is_buffer
from weightctl.schemes.matching import list_scheme_tensors
from weightctl.text.wording import pluralize
from weightctl.weights.metadata import MetadataValue

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence

    from weightctl.plan.plan import Item
    from weightctl.plan.recipes import RecipeChoice
    from weightctl.plan.type_rules import TypeRule
    from weightctl.plan.types import TypeLike
    from weightctl.weights.info import TensorInfo

__all__ = [
    "cast",
    "dequantize_unheld",
    "fit_encoding",
    "is_layer_matrix",
    "is_lossy",
    "is_matrix_weight",
    "is_unfit_for_llama_cpp",
    "refuse_unheld",
]


_DEQUANTIZED = ENCODINGS["BF16"]


def is_lossy(encoding: Encoding) -> bool:
    """Whether an encoding stores values in fewer than 16 bits, so that they are rounded."""
    dtype = encoding.dtype
    return encoding.quantization is not None or (
        dtype is not None and dtype.is_float and encoding.size == 1
    )


def cast(
    plan: Plan,
    target: TypeLike | Recipe | os.PathLike[str] | None,
    rules: Sequence[TypeRule] | Mapping[str, TypeLike | None] = (),
    *,
    fallback: bool = True,
    requantize: bool = False,
    weighted: bool = False,
) -> Plan:
    """Store the floating-point tensors of a plan in other encodings.

    `target` is a dtype of weightctl, NumPy or torch, a `QuantizationEncoding`, an `Encoding`, a
    recipe, the path of a recipe, or the name of any of them. `rules` can also be a mapping from
    patterns to types.

    The first rule whose pattern is found in a tensor's name decides; else `target` decides; else
    the tensor keeps its encoding. A rule applies to every tensor, except that tensors without rows
    are never stored in blocks. A block type as `target` applies to the matrices that llama.cpp
    would quantize. A recipe chooses a type for each of these matrices; it considers the whole
    model, even if the plan is for a part of it.

    In a GGUF of a model that llama.cpp runs, any other `target` applies to the same matrices.
    Vectors become F32, the only type in which llama.cpp computes with them; norms, routers and
    positions keep their type. Buffers always keep their type. 8-bit floats are stored without
    scales and apply to the matrices within layers: norms, biases, routers, embeddings and the
    output projection keep their type. `weighted` states that an importance matrix will be used;
    some recipes then choose other types.

    If a recipe needs the roles of tensors and these cannot be determined, a recipe with the name of
    a type means that type. If rows do not divide into blocks, the substitute of llama.cpp is used.

    Raises `ConversionError` if the roles for any other recipe cannot be determined, if a rule
    matches no tensor, if rows do not divide into blocks and `fallback` is False, and, without
    `requantize`, if values that were already rounded would be rounded again (Q4_1 to Q8_0).
    """
    given: Any = plan  # a caller's types are not checked
    if not isinstance(given, Plan):
        raise ConversionError(
            f"cast needs a Plan, not {type(given).__name__}",
            hint='`Plan.copy(weights, "gguf")` makes one; `weightctl.convert` does all steps',
        )
    target = None if target is None else type_or_recipe(target)
    if target is not None and plan.format == "gguf":
        from weightctl.plan.recipes import adapt_to_images

        target = adapt_to_images(target, plan.metadata)
    rules = parse_rules(rules)
    for rule in rules:
        if not any(rule.pattern.search(item.info.name) for item in plan.items):
            tied = next((name for name in plan.tied if rule.pattern.search(name)), None)
            raise ConversionError(
                f"no tensor's name matches `{rule.pattern.pattern}`",
                hint=f"`{tied}` is tied to `{plan.tied[tied]}`: set the type of `{plan.tied[tied]}`"
                if tied
                else plan.names_hint,
            )
    refuse_unheld(plan.format, target, rules)
    if isinstance(target, Recipe):
        plan, target = _for_names(plan, target, weighted=weighted)
    chosen = _choose_types(plan, target, weighted=weighted)
    default = _default(target)
    items = tuple(_cast_item(plan, item, default, chosen, rules) for item in plan.items)
    changed = [item for item in items if not item.is_copy]
    plan = replace(plan, notes=(*plan.notes, *_describe_narrow(items)))
    _refuse_scaled(plan, changed)
    if not requantize:
        _refuse_second_loss(changed)
    if not fallback:
        _refuse_substitutes(items)
    return replace(plan, items=items, metadata=_update_type_metadata(plan, items, target))


def dequantize_unheld(plan: Plan) -> Plan:
    """Store tensors in BF16, with a note, if the format cannot store the blocks of some."""
    unheld = [
        item.info.encoding
        for item in plan.items
        if item.info.encoding.quantization and not has_type(plan.format, item.info.encoding)
    ]
    if not unheld or not has_type(plan.format, _DEQUANTIZED):
        return plan
    note = (
        f"{pluralize(len(unheld), 'tensor')} in types that only GGUF has "
        f"({', '.join(dict.fromkeys(map(str, unheld)))}): floating-point tensors become BF16, as "
        "with --dtype bf16 (dtype in Python)"
    )
    return cast(replace(plan, notes=(*plan.notes, note)), _DEQUANTIZED)


def _for_names(plan: Plan, recipe: Recipe, *, weighted: bool) -> tuple[Plan, Recipe | Encoding]:
    """Return a recipe, or the type of its name if it cannot apply to these names, and the plan.

    The plan has notes on what was chosen.
    """
    infos = _whole(plan)
    is_no_type = bool(recipe.path) or recipe.name not in ENCODINGS
    from weightctl.plan.recipes import goes_by_role, list_unmatched

    names, metadata, _ = _describe_model(plan)
    called = [info._replace(name=names.get(info.name, info.name)) for info in infos]
    if is_no_type or goes_by_role(recipe, called, metadata):
        notes = list(list_unmatched(recipe, infos)) if recipe.path else []
        if recipe.wants_importance and not weighted:
            notes.append(
                f"{recipe.name} loses much precision without an importance matrix: use --imatrix "
                "FILE (imatrix in Python)"
            )
        consulted = {recipe.path: "the recipe"} if recipe.path else {}
        plan = replace(
            plan,
            recipe=recipe.name,
            consulted={**plan.consulted, **consulted},
            notes=(*plan.notes, *notes),
        )
        return plan, recipe
    encoding = ENCODINGS[recipe.name]
    if any(other != encoding for other in recipe.encodings):
        note = (
            f"every matrix becomes {encoding}: llama.cpp's recipe of that name needs GGUF's names "
            "and metadata, which this model does not have"
        )
        plan = replace(plan, notes=(*plan.notes, note))
    return plan, encoding


def _choose_types(
    plan: Plan, target: Encoding | Recipe | None, *, weighted: bool
) -> Mapping[str, RecipeChoice] | None:
    """Return what a recipe chooses for each matrix; None if `target` is not a recipe."""
    if not isinstance(target, Recipe):
        return None
    from weightctl.plan.recipes import choose

    names, metadata, _ = _describe_model(plan)
    return choose(target, _whole(plan), metadata, weighted=weighted, names=names)


def _describe_model(plan: Plan) -> Described:
    """Return the names and metadata that recipes need."""
    found = plan.describe() if plan.describe is not None else None
    return found or Described({}, plan.metadata)


def _whole(plan: Plan) -> list[TensorInfo]:
    """Return the tensors of the whole model, even if the plan is for a part of it."""
    tensors = dict(plan.source.header.tensors)
    for item in plan.items:
        tensors.pop(item.source.name, None)
    return [*tensors.values(), *(item.info for item in plan.items)]


def _default(target: Encoding | Recipe | None) -> Encoding | None:
    if not isinstance(target, Recipe):
        return target
    return ENCODINGS[target.otherwise] if target.otherwise else None


def _cast_item(
    plan: Plan,
    item: Item,
    target: Encoding | None,
    chosen: Mapping[str, RecipeChoice] | None,
    rules: Sequence[TypeRule],
) -> Item:
    source = item.source.encoding
    if not source.is_known or (source.dtype is not None and not source.dtype.is_float):
        return item
    # PyTorch's half of complex64 and its quantized integers with a scale have no `DType`.
    if "pytorch" in source.ids and source.dtype is None:
        return item
    rule = next((rule for rule in rules if rule.pattern.search(item.info.name)), None)
    line = ""
    if rule is not None:
        target = rule.encoding
    elif chosen is not None and item.info.name in chosen:
        target, line = chosen[item.info.name]
    elif chosen is not None and source.quantization is not None:
        return item
    if target is None:
        line = line if rule is None else str(rule)
        return replace(item, line=line) if line else item
    # Blocks are parts of rows. Vectors are never stored in blocks: no program reads them.
    is_obeyed = rule is not None and (target.quantization is None or len(item.info.shape) >= 2)
    line = str(rule) if is_obeyed else line
    if not is_obeyed and _is_narrow(target) and not is_layer_matrix(plan, item.info):
        target = _keep_wide(plan, source)
    elif not is_obeyed and source.quantization is None and not is_matrix_weight(item.info):
        target = _for_others(plan, item.info, target)
    fitting = fit_encoding(target, item.info.shape)
    asked = None if fitting is target else target.name
    return replace(item, info=item.info._replace(encoding=fitting), asked=asked, line=line)


def _is_narrow(encoding: Encoding) -> bool:
    """Whether values are stored as single 8-bit floats."""
    return is_lossy(encoding) and encoding.quantization is None


def is_layer_matrix(plan: Plan, info: TensorInfo) -> bool:
    """Whether a tensor is a matrix of a layer, by its own name and by llama.cpp's name."""
    names = _describe_model(plan).names
    name = names.get(info.name, info.name)
    if not is_projection(info):
        return False
    return name == info.name or is_projection(info._replace(name=name))


def _keep_wide(plan: Plan, source: Encoding) -> Encoding:
    """Return the type of a tensor that 8-bit floats do not apply to: its own; for blocks, BF16."""
    is_kept = source.quantization is None and has_type(plan.format, source)
    return source if is_kept else ENCODINGS["BF16"]


def _describe_narrow(items: Sequence[Item]) -> Iterator[str]:
    """Yield notes: 8-bit floats are stored without scales, and some tensors keep a wider type."""
    narrow = [item for item in items if _is_narrow(item.info.encoding)]
    made = [item for item in narrow if not item.is_copy]
    if not made:
        return
    name = made[0].info.encoding.name
    verb = "becomes" if len(made) == 1 else "become"
    yield (
        f"{pluralize(len(made), 'tensor')} {verb} {name} without scales: each value is rounded by "
        "itself. Engines do not treat the output as an FP8 model with scales; --quant FP8_DYNAMIC "
        "(quant in Python) writes one"
    )
    others = [
        item.info
        for item in items
        if item.info.encoding.dtype is not None
        and item.info.encoding.dtype.is_float
        and not _is_narrow(item.info.encoding)
        and not is_buffer(item.info)
    ]
    if others:
        yield (
            "norms, biases, routers, embeddings, the output projection and similar tensors keep a "
            f"wider type ({pluralize(len(others), 'tensor')}). To convert more of them, use "
            f"--tensor-type 'REGEX={name.lower()}' (tensor_types in Python)"
        )


def _for_others(plan: Plan, info: TensorInfo, target: Encoding) -> Encoding:
    """Return the encoding of a tensor that is not a matrix to quantize."""
    is_gguf = plan.format == "gguf"
    runs_in_llama_cpp = is_gguf and ARCHITECTURE in plan.metadata
    if target.quantization is None and not runs_in_llama_cpp and not is_buffer(info):
        return target
    cannot_stay = is_gguf and "gguf" not in info.encoding.ids
    is_vector = runs_in_llama_cpp and len(info.shape) <= 1
    return ENCODINGS["F32"] if cannot_stay or is_vector else info.encoding


def is_unfit_for_llama_cpp(plan: Plan, item: Item) -> bool:
    """Whether a tensor is a vector that is not F32, which llama.cpp requires."""
    dtype = item.info.encoding.dtype
    return (
        plan.format == "gguf"
        and ARCHITECTURE in plan.metadata
        and len(item.info.shape) <= 1
        and dtype is not None
        and dtype.is_float
        and item.info.encoding.name != "F32"
    )


def fit_encoding(target: Encoding, shape: tuple[int, ...]) -> Encoding:
    """Return an encoding, or llama.cpp's substitute for it if its blocks do not divide the rows."""
    if target.fits(shape):
        return target
    substitute = ENCODINGS.get(target.fallback)
    return substitute if substitute and substitute.fits(shape) else ENCODINGS["F16"]


def refuse_unheld(
    format_name: str, target: Encoding | Recipe | None, rules: Sequence[TypeRule]
) -> None:
    """Raise `ConversionError` if a format cannot store a type that is asked for."""
    asked = target.encodings if isinstance(target, Recipe) else [target]
    for encoding in (*asked, *(rule.encoding for rule in rules)):
        if encoding is not None and not has_type(format_name, encoding):
            holders = [name for name in FORMATS if name in encoding.ids]
            names = " or ".join(FORMATS[name].suffix for name in holders)
            hint = f"use an output name that ends in {names}" if holders else "choose another type"
            if format_name == "safetensors" and encoding.name in WRITTEN:
                hint += ", or a model directory (OUT/)"
            raise ConversionError(f"{format_name} cannot store {encoding}", hint=hint)


def _refuse_second_loss(changed: list[Item]) -> None:
    twice = [
        item for item in changed if is_lossy(item.source.encoding) and is_lossy(item.info.encoding)
    ]
    if twice:
        first = twice[0]
        raise ConversionError(
            f"{_count(twice)} already quantized (for example, `{first.source.name}` is "
            f"{first.source.encoding}), and would lose more precision as {first.info.encoding}",
            hint="start from the unquantized model, or use --allow-requantize "
            "(allow_requantize=True in Python)",
        )


def _count(tensors: Sequence[object]) -> str:
    return f"{pluralize(len(tensors), 'tensor')} {'is' if len(tensors) == 1 else 'are'}"


def _refuse_scaled(plan: Plan, changed: list[Item]) -> None:
    together = list_scheme_tensors(plan.source.header) if changed else set[str]()
    scaled = [item.source for item in changed if item.source.name in together]
    if scaled:
        first = scaled[0]
        raise ConversionError(
            f"{_count(scaled)} packed values or scales of quantized weights (for "
            f"example, `{first.name}` is {first.encoding}), and cannot be converted individually",
            hint="start from the unquantized model; to leave tensors unchanged, use --tensor-type "
            "REGEX=keep (tensor_types in Python)",
        )


def _refuse_substitutes(items: Sequence[Item]) -> None:
    substituted = [item for item in items if item.asked]
    if substituted:
        first = substituted[0]
        raise ConversionError(
            f"{pluralize(len(substituted), 'tensor')} cannot have the requested type: "
            f"the row length of `{first.info.name}`, {first.info.row}, is not a multiple of the "
            f"{first.asked} block size",
            hint=f"to store it as {first.info.encoding}, leave out --no-fallback (fallback=False "
            "in Python)",
        )


def _update_type_metadata(
    plan: Plan, items: Sequence[Item], target: Encoding | Recipe | None
) -> dict[str, MetadataValue]:
    """Return the metadata with updated values of the keys that state the types of a file."""
    metadata = dict(plan.metadata)
    if not any(
        item.hessian is not None or (item.is_copy and item.info.encoding.quantization)
        for item in items
    ):
        metadata.pop(ROUNDING, None)  # no block of the source is left that it describes
    if ARCHITECTURE in metadata and any(not item.is_copy for item in items):
        number = target.file_type if isinstance(target, Recipe) else None
        if number == GUESSED:  # the recipe mixes types, so that no number names them
            number |= file_type(item.info for item in items)
        elif number is None:
            default = _default(target)
            number = file_type([item.info for item in items], default)
        metadata["general.file_type"] = MetadataValue("u32", number)
        if any(item.info.encoding.quantization for item in items):
            metadata["general.quantization_version"] = MetadataValue("u32", 2)
    return metadata
