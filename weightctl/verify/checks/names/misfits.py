"""Reports tensors that do not fit the config, and their likely causes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.errors import ArchitectureError
from weightctl.families.matching import EMBEDDING_WEIGHT, OUTPUT_WEIGHT
from weightctl.text.folding import mask_numbers
from weightctl.text.wording import pluralize
from weightctl.translate.copies import check_copies, is_same
from weightctl.verify.checks.names.fit import FIELDS, explain_misfit, find_corrections
from weightctl.verify.config_keys import find_spelling
from weightctl.verify.results import Explanation, Problem
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weightctl.families import RecognizedModel
    from weightctl.verify.checks.names.fit import Correction, Fit, Misfit, Wanted


def check_lost_mtp(checkpoint: RecognizedModel) -> list[Problem]:
    """Return a problem if the config states layers for MTP that the checkpoint does not have."""
    if not checkpoint.lost_mtp or checkpoint.unexpected:
        return []
    key = find_spelling(checkpoint, "mtp_layers").key
    layers = pluralize(checkpoint.lost_mtp, "layer")
    why = "they were left out when the file was written"
    if checkpoint.convention == "hugging_face":
        why = "transformers does not write them, so they are lost when it saves a model"
    cause = Explanation("mtp_lost", f"{why}; the other layers compute the same without them")
    text = (
        f"states {layers} for multi-token prediction (MTP), but the checkpoint has none of their "
        "tensors"
    )
    return [Problem(where=key, text=text, cause=cause)]


def check_tied(checkpoint: RecognizedModel) -> list[Problem]:
    """Return a problem if a stored output differs from the embedding that it is tied to."""
    if EMBEDDING_WEIGHT not in checkpoint.tensors:
        return []
    try:
        check_copies(checkpoint)
    except ArchitectureError as error:
        _, name, text = error.message.split("`", 2)
        cause = Explanation(
            "tied", f"{checkpoint.where} ties the output to the embedding: {error.hint}"
        )
        return [Problem(where=name, text=text.strip(), cause=cause)]
    return []


def _blame_forgotten_output(checkpoint: RecognizedModel) -> Explanation:
    """Return the cause of a missing output that is not tied to the embedding."""
    return Explanation(
        "output_forgotten",
        f"{checkpoint.where} does not tie the output to the embedding, so that the model "
        "needs its own output, which was not written; if the model is tied, set "
        "`tie_word_embeddings` to true there",
    )


def note_tying(checkpoint: RecognizedModel) -> list[str]:
    """Return a note if the output is tied to the embedding, or equal to it."""
    family, convention = checkpoint.family, checkpoint.convention
    names = (each.name(convention) for each in family.copies(checkpoint.config))
    tied = [name for name in names if name is not None]
    embedding, output = (checkpoint.tensors.get(name) for name in (EMBEDDING_WEIGHT, OUTPUT_WEIGHT))
    if output is not None and embedding is not None and is_same(output, embedding):
        name = output.info.name
        return [f"`{name}` is equal to the embedding; if the model is tied, it need not be stored"]
    if convention == "gguf" and tied:
        return [
            f"there is no `{tied[0]}`: the embedding is also the output matrix (tied embeddings)"
        ]
    plain = {family.plain(name) for name in tied}
    stored = [name for name in header_of(checkpoint.tree).tensors if family.plain(name) in plain]
    return [f"`{name}` is stored although it is tied to the embedding" for name in stored]


_COUNTS = ("layers", "experts")


def list_misfits(checkpoint: RecognizedModel, fit: Fit) -> list[Problem]:
    """Return a problem for each tensor that is missing, unexpected, or has a wrong shape or type.

    If changing a single config value would make the tensors fit, a problem of that key comes first.
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
        cause = _blame_forgotten_output(checkpoint)
    elif (
        cause is None
        and each.names.line.is_of_layers
        and each.names.layer >= checkpoint.config.layers
    ):
        cause = Explanation("mtp_lost", "this layer for multi-token prediction is incomplete")
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
        f"according to {checkpoint.where}, the layer has this bias, and its weight is present: the "
        "bias was left out when the checkpoint was written",
    )


def _report_unexpected(
    checkpoint: RecognizedModel, fit: Fit, fitting: list[Correction]
) -> Iterator[Problem]:
    """Yield a problem for each tensor that is not part of the model.

    For an unexpected bias, the cause is a missing bias of the first layer, or a config key.
    """
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
    """Return the config key that says whether the bias `name` exists; empty if there is none."""
    plain, convention = checkpoint.family.plain, checkpoint.convention
    kind = mask_numbers(plain(name))
    for line in checkpoint.family.names:
        template = line.gguf if convention == "gguf" else line.hugging_face
        if not isinstance(line.bias, str) or template is None:
            continue
        if plain(f"{template.format('N', expert='N')}.bias") == kind:
            return find_spelling(checkpoint, line.bias).key
    return ""
