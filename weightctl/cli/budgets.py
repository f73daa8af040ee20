"""The options of `convert` that quantize to a budget, and what the command shows of the result."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weightctl.cli.options import locate, locate_local
from weightctl.cli.render import Cell
from weightctl.errors import ConversionError, OutputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from weightctl.budget.found import FoundTypes
    from weightctl.write.conversion import Conversion

__all__ = [
    "BUDGET_OPTIONS",
    "Bpw",
    "CalibrationFile",
    "MaxKld",
    "RecipeOut",
    "SameType",
    "Size",
    "TextFile",
    "Types",
    "list_found",
    "plan_to_budget",
    "write_recipe",
]

_BUDGET = "Budget"

Bpw = Annotated[
    float | None,
    typer.Option(
        "--bpw",
        metavar="BITS",
        help="Find the types of a GGUF file with at most BITS bits per weight whose predictions "
        "differ least from those of MODEL, by running the model. Needs torch.",
        rich_help_panel=_BUDGET,
    ),
]
Size = Annotated[
    str | None,
    typer.Option(
        "--size",
        metavar="SIZE",
        help="The same, for a file of at most SIZE, such as 14GB.",
        rich_help_panel=_BUDGET,
    ),
]
MaxKld = Annotated[
    float | None,
    typer.Option(
        "--max-kld",
        metavar="NATS",
        help="The same, for the smallest file whose mean KL divergence from MODEL is at most NATS, "
        "measured on the text of --text-file.",
        rich_help_panel=_BUDGET,
    ),
]
Types = Annotated[
    str | None,
    typer.Option(
        "--types",
        metavar="TYPES",
        help="The types to choose from. [default: Q2_K,Q3_K,Q4_K,Q5_K,Q6_K,Q8_0]",
        rich_help_panel=_BUDGET,
    ),
]
SameType = Annotated[
    str | None,
    typer.Option(
        "--same-type",
        metavar="REGEX",
        help="Give all tensors of a layer whose names contain REGEX the same type, such as "
        "'attn_[qkv]'.",
        rich_help_panel=_BUDGET,
    ),
]
TextFile = Annotated[
    str | None,
    typer.Option(
        "--text-file",
        metavar="FILE",
        help="Measure the result on the text in FILE instead of the built-in text.",
        callback=locate,
        rich_help_panel=_BUDGET,
    ),
]
CalibrationFile = Annotated[
    str | None,
    typer.Option(
        "--calibration-file",
        metavar="FILE",
        help="Find the types with the text in FILE instead of another built-in text.",
        callback=locate,
        rich_help_panel=_BUDGET,
    ),
]
RecipeOut = Annotated[
    str | None,
    typer.Option(
        "--recipe-out",
        metavar="FILE",
        help="Write the found types to FILE, a recipe that --quant reads.",
        callback=locate_local,
        rich_help_panel=_BUDGET,
    ),
]

_LIMITS = {"bpw": "--bpw", "size": "--size", "max_kld": "--max-kld"}
_FURTHER = {
    "types": "--types",
    "same_type": "--same-type",
    "text_file": "--text-file",
    "calibration_file": "--calibration-file",
    "recipe_out": "--recipe-out",
}
# The names of the parameters above.
BUDGET_OPTIONS = (*_LIMITS, *_FURTHER)
_OTHER_TYPES = {"quant": "--quant", "dtype": "--dtype", "exact": "--exact", "search": "--search"}


def plan_to_budget(
    given: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[Conversion, FoundTypes] | None:
    """Find the types for a budget, and plan the conversion; None if there is no budget.

    `given` maps names of parameters of `convert` to values, and `options` are the arguments for
    `weightctl.convert`. Raises `ConversionError` for options that do not go together.
    """
    limits = [option for name, option in _LIMITS.items() if given.get(name) is not None]
    if not limits:
        for name, option in _FURTHER.items():
            if given.get(name) is not None:
                raise ConversionError(
                    f"{option} applies only to a budget",
                    hint=f"add one of {', '.join(_LIMITS.values())}, or leave it out",
                )
        return None
    if len(limits) > 1:
        raise ConversionError(f"{' and '.join(limits)} are both given", hint="choose one")
    for name, option in _OTHER_TYPES.items():
        if given[name]:
            raise ConversionError(
                f"{limits[0]} and {option} are both given",
                hint="leave one out; to give some tensors a certain type, use --tensor-type",
            )
    _refuse_existing(given["recipe_out"], force=given["force"])
    from weightctl.budget.search import DEFAULT_TYPES, QuantizationBudget, quantize
    from weightctl.cli.run_on import text_of

    texts = [
        None if given[name] is None else text_of(given[name])
        for name in ("text_file", "calibration_file")
    ]
    types = DEFAULT_TYPES if given["types"] is None else _split(given["types"])
    budget = QuantizationBudget(
        bits=given["bpw"],
        size=given["size"],
        divergence=given["max_kld"],
        types=types,
        same_type=given["same_type"],
        text=texts[0],
        calibration=texts[1],
    )
    return quantize(given["path"], given["out"], budget, **options)


def _split(types: str) -> list[str]:
    return [each.strip() for each in types.split(",") if each.strip()]


def _refuse_existing(path: str | None, *, force: bool) -> None:
    if path is not None and os.path.lexists(path) and not force:
        raise OutputError(f"{path} exists", hint="use --force to replace it")


def write_recipe(path: str | None, found: FoundTypes | None) -> None:
    """Write the recipe of a result to a file, if there is a result and a path."""
    if path is None or found is None:
        return
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(found.toml)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}") from error


def list_found(found: FoundTypes | None) -> Iterator[list[Cell]]:
    """Yield the lines of the summary for a result: the bits per weight and the certificate."""
    if found is None:
        return
    from weightctl.budget.found import describe_certificate

    yield [Cell(f"{found.budget}: {found.bits:.3f} bits per weight")]
    yield from ([Cell(line)] for line in describe_certificate(found.certificate))
