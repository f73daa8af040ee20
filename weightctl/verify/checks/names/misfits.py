"""Problems with tensors that do not fit the config, and their likely causes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.families.matching import OUTPUT_WEIGHT
from weightctl.text.folding import mask_numbers
from weightctl.verify.checks.names.corrections import FIELDS, explain_misfit, find_corrections
from weightctl.verify.checks.names.tying import blame_forgotten_output
from weightctl.verify.config_keys import find_spelling
from weightctl.verify.results import Explanation, Problem
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weightctl.families import RecognizedModel
    from weightctl.verify.checks.names.corrections import Correction
    from weightctl.verify.checks.names.fit import Fit, Misfit, Wanted

__all__ = ["list_misfits"]

_COUNTS = ("layers", "experts")


def list_misfits(checkpoint: RecognizedModel, fit: Fit) -> list[Problem]:
    """Return a problem for each tensor that is missing, unexpected, or has a wrong shape or type.

    If a single config value would correct them, the config's problem comes first.
    """
    fitting = _find_fitting(checkpoint, fit)
    problems: list[Problem] = []
    if fitting:
        first = fitting[0]
        text = f"{first.statement}, but {_find_contradicted(fit)}"
        problems.append(Problem(where=first.key, text=text, cause=explain_misfit(fitting)))
    problems += [_report_misshaped(each, fitting) for each in fit.misshaped]
    problems += [_report_no_number(each) for each in fit.no_numbers]
    problems += [_report_missing(checkpoint, each, fitting) for each in fit.missing]
    return problems + list(_report_unexpected(checkpoint, fit, fitting))


def _find_contradicted(fit: Fit) -> str:
    if fit.misshaped:
        count = len(fit.misshaped)
        return f"{count} {'tensors have' if count > 1 else 'tensor has'} other shapes"
    counts = {"are missing": len(fit.missing), "are unexpected": len(fit.unexpected)}
    return " and ".join(f"{count} tensors {what}" for what, count in counts.items() if count)


def _find_fitting(checkpoint: RecognizedModel, fit: Fit) -> list[Correction]:
    fields = FIELDS if fit.misshaped else _COUNTS
    may_help = fit.misshaped or _has_whole_layers(fit)
    if not may_help or _is_turned(fit):
        return []
    document = checkpoint.document if checkpoint.convention == "hugging_face" else None
    return find_corrections(checkpoint.tree, checkpoint.family, document, fit, fields)


def _is_turned(fit: Fit) -> bool:
    return bool(fit.misshaped) and all(map(_is_transposed, fit.misshaped))


def _has_whole_layers(fit: Fit) -> bool:
    """Whether many tensors of the same layers or experts are missing or unexpected."""
    return len(fit.missing) > 1 or len(fit.unexpected) > 1


def _report_misshaped(each: Misfit, fitting: list[Correction]) -> Problem:
    cause = explain_misfit(fitting)
    if cause is None and _is_transposed(each):
        cause = Explanation(
            "transposed",
            "the shape is transposed: rows and columns were exchanged, or were not "
            "exchanged where they should be",
        )
    return Problem(
        where=each.name,
        text=f"has shape {list(each.info.shape)}, expected {list(each.shape)}",
        cause=cause,
    )


def _is_transposed(each: Misfit) -> bool:
    return len(each.shape) == 2 and each.info.shape == each.shape[::-1]


def _report_no_number(each: Misfit) -> Problem:
    text = f"has the encoding {each.info.encoding}, which is not for weights"
    return Problem(where=each.name, text=text)


def _report_missing(
    checkpoint: RecognizedModel, each: Wanted, fitting: list[Correction]
) -> Problem:
    cause = explain_misfit(fitting)
    if each.names.module == OUTPUT_WEIGHT:
        cause = blame_forgotten_output(checkpoint)
    elif each.names.kind == "bias" and _has_weight(checkpoint, each):
        cause = _blame_drop(checkpoint)
    return Problem(
        where=each.name, text=f"is missing; expected shape {list(each.shape)}", cause=cause
    )


def _has_weight(checkpoint: RecognizedModel, each: Wanted) -> bool:
    return each.names.module.removesuffix("bias") + "weight" in checkpoint.tensors


def _blame_drop(checkpoint: RecognizedModel) -> Explanation:
    return Explanation(
        "bias_dropped",
        f"{checkpoint.family.name} has this bias by {checkpoint.where}, and the weight is "
        "there: the bias was left out when the checkpoint was written",
    )


def _report_unexpected(
    checkpoint: RecognizedModel, fit: Fit, fitting: list[Correction]
) -> Iterator[Problem]:
    """Yield tensors that are not part of the model, and identify biases that other layers lack."""
    stored = header_of(checkpoint.tree).tensors
    for name in fit.unexpected:
        cause = explain_misfit(fitting)
        first = mask_numbers(name, "0", most=1)
        if name.endswith(".bias") and first != name and first not in stored:
            # In GGUF, the first layer decides for all layers whether they have one.
            cause = Explanation(
                "bias_dropped", f"`{first}` is missing, and other layers have a bias"
            )
        elif name.endswith(".bias") and (key := _find_denial(checkpoint, name)):
            cause = Explanation("config", f"`{key}` is false or missing, and there are biases")
        yield Problem(
            where=name,
            text=f"is not a tensor of {checkpoint.family.name} with this config",
            cause=cause,
        )


def _find_denial(checkpoint: RecognizedModel, name: str) -> str:
    """Return the key that states that a bias does not exist; empty if none does."""
    plain, convention = checkpoint.family.plain, checkpoint.convention
    kind = mask_numbers(plain(name))
    for line in checkpoint.family.names:
        template = line.gguf if convention == "gguf" else line.hugging_face
        if not isinstance(line.bias, str) or template is None:
            continue
        if plain(f"{template.format('N', expert='N')}.bias") == kind:
            return find_spelling(checkpoint, line.bias).key
    return ""
