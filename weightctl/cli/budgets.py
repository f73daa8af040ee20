"""Plans a quantization to a budget from the options of `convert`, and shows the result."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from weightctl.cli.render import Cell
from weightctl.errors import ConversionError, OutputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from weightctl.budget.found import FoundTypes
    from weightctl.write.conversion import Conversion

_LIMITS = {"bpw": "--bpw", "size": "--size", "max_kld": "--max-kld", "fit": "--fit"}
_FURTHER = {
    "context": "--context",
    "kv_type": "--kv-type",
    "types": "--types",
    "same_type": "--same-type",
    "text_file": "--text-file",
    "calibration_file": "--calibration-file",
    "recipe_out": "--recipe-out",
}
# The names of the parameters of `convert`.
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
    from weightctl.budget.search import QuantizationBudget, quantize
    from weightctl.cli.run_on import text_of

    texts = [
        None if given[name] is None else text_of(given[name])
        for name in ("text_file", "calibration_file")
    ]
    budget = QuantizationBudget(
        bits=given["bpw"],
        size=given["size"],
        divergence=given["max_kld"],
        memory=given["fit"],
        context=given["context"],
        kv_type=given["kv_type"],
        types=None if given["types"] is None else _split(given["types"]),
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


def write_recipe(path: str | None, found: FoundTypes, *, force: bool) -> None:
    """Write the recipe of a result to a file, if there is a path."""
    from weightctl.cli.report import write_content

    if path is not None:
        write_content(path, found.toml.encode(), force=force)


def list_found(found: FoundTypes | None) -> Iterator[list[Cell]]:
    """Yield the lines of the summary for a result: the bits per weight and the certificate."""
    if found is None:
        return
    from weightctl.budget.found import describe_certificate

    yield [Cell(f"{found.budget}: {found.bits:.3f} bits per weight")]
    yield from ([Cell(line)] for line in describe_certificate(found.certificate))
