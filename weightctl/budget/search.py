"""Quantization to a budget: finds the types of the tensors of an output, and plans it."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from weightctl.budget.found import make_metadata, make_recipe, match_name
from weightctl.budget.gguf_space import GgufSpace
from weightctl.budget.limits import IN_PLACE, KEEP, QuantizationBudget
from weightctl.budget.scheme_space import SchemeSpace
from weightctl.budget.type_search import TypeSearch
from weightctl.dtype import ENCODINGS
from weightctl.errors import ConversionError
from weightctl.families.model import ARCHITECTURE
from weightctl.plan.metadata import Setting
from weightctl.plan.recipe_lines import Recipe
from weightctl.plan.scheme_names import SchemeRecipe
from weightctl.verify.request import Subject
from weightctl.write.convert import convert
from weightctl.write.targets import target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.budget.found import FoundTypes
    from weightctl.weights.metadata import MetadataValue
    from weightctl.write.conversion import Conversion

__all__ = ["QuantizationBudget", "quantize"]

# The type that tensors have before the search; like most types, it uses an importance matrix.
_FIRST_TYPE = "Q4_K"
# Numbers in the metadata of safetensors are text, which is longer for some numbers.
_LONGEST = 0.12345678901234567


def quantize(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str] | None,
    budget: QuantizationBudget,
    **options: Any,
) -> tuple[Conversion, FoundTypes]:
    """Plan an output within a budget whose predictions differ least from those of the source.

    The output is a GGUF file or a model directory. `source`, `out` and `options` are those of
    `convert`; `quant` and `dtype` do not apply, and `metadata` is a list of settings. The
    conversion that is returned writes the output. Its metadata have the certificate, which is
    measured before. Raises `ConversionError` if the budget cannot be met, and the errors of
    `convert`, of recognizing the model, and of running it.
    """
    budget.check()
    where = None if out is None else target(os.fspath(out), options.get("to"))
    if where is not None and where.file_name is not None and where.format == "safetensors":
        if budget.memory is not None:
            raise ConversionError(
                "--fit is for GGUF files: it is the memory that llama.cpp needs",
                hint="use an output name that ends in .gguf, or --size",
            )
        return _quantize_directory(source, out, budget, options)
    encodings = budget.encodings
    if where is not None and where.format != "gguf":
        raise _explain_output()
    settings: Sequence[Setting] = options.pop("metadata", ())
    plan = partial(convert, source, out, **{**options, "dry_run": True})
    first = plan(quant=Recipe("budget", _FIRST_TYPE, ()), metadata=settings)
    if ARCHITECTURE not in first.plan.metadata:
        raise _explain_output()
    in_place = [ENCODINGS[each] for each in IN_PLACE] if budget.types is None else []
    space = GgufSpace(first.plan, encodings, in_place)
    search = TypeSearch(space, budget, Subject(source))
    # The certificate has the same size whatever its numbers are.
    draft = make_metadata(budget.option, search.make_draft(), 0.0)
    found = search.find(_count_beside(first, draft, space.alignment))
    recipe = make_recipe(found.budget, found.types)
    return plan(quant=recipe, metadata=_list_settings(found, settings)), found


def _quantize_directory(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str] | None,
    budget: QuantizationBudget,
    options: dict[str, Any],
) -> tuple[Conversion, FoundTypes]:
    """Plan a model directory; its source has Hugging Face's names, too."""
    choices, can_keep = budget.schemes
    settings: Sequence[Setting] = options.pop("metadata", ())
    plan = partial(convert, source, out, **{**options, "dry_run": True})
    plain = plan(metadata=settings)
    if plain.plan.translation:
        raise ConversionError(
            f"{os.fspath(source)}: a budget for a model directory needs a source with Hugging "
            "Face's names",
            hint="convert the model to a directory first, without quantization",
        )
    made = {str(each): plan(quant=SchemeRecipe(each), metadata=settings) for each in choices}
    plans = {kind: each.plan for kind, each in made.items()}
    space = SchemeSpace(plain.plan, plans, can_keep=can_keep)
    search = TypeSearch(space, budget, Subject(source))
    draft = make_metadata(budget.option, search.make_draft(_LONGEST), _LONGEST)
    found = search.find(max(_count_beside(each, draft, 1) for each in (plain, *made.values())))
    used = Counter(kind for kind in found.types.values() if kind != KEEP)
    if not used:
        raise ConversionError(
            f"{budget.option} is met without quantization",
            hint="leave it out, or use a smaller one",
        )
    by_name = {str(each): each for each in choices}
    (usual, _), *_ = used.most_common(1)
    lines = [(match_name(name), by_name.get(kind)) for name, kind in found.types.items()]
    recipe = SchemeRecipe(by_name[usual], tuple(lines))
    found = replace(found, default=usual)
    return plan(quant=recipe, metadata=_list_settings(found, settings)), found


def _list_settings(found: FoundTypes, settings: Sequence[Setting]) -> list[Setting]:
    measured = make_metadata(found.budget, found.certificate, found.bits)
    return [*(Setting.of(key, each) for key, each in measured.items()), *settings]


def _explain_output() -> ConversionError:
    return ConversionError(
        "a budget needs a GGUF file of a model, or a model directory, as the output",
        hint="use an output name that ends in .gguf, or one without a suffix, and do not use "
        "--names keep; for other outputs, use --quant (quant in Python)",
    )


def _count_beside(conversion: Conversion, draft: dict[str, MetadataValue], alignment: int) -> int:
    """Return the bytes of the files that are not those of tensors, with a draft of the metadata."""
    plan = conversion.plan
    files = replace(conversion, plan=replace(plan, metadata={**plan.metadata, **draft}))
    padded = sum(-(-item.info.nbytes // alignment) * alignment for item in plan.items)
    return files.outcome.nbytes - padded
