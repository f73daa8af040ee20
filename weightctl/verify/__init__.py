"""Proof that a checkpoint works, and the tensor where it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from weightctl.system.registry import load_on_use
from weightctl.verify.figures import (
    Figures,
    FiniteFigures,
    ForwardFigures,
    MetadataFigures,
    NamesFigures,
    StructureFigures,
    ValuesFigures,
)

if TYPE_CHECKING:
    from weightctl.verify.checking import verify
    from weightctl.verify.request import Request
    from weightctl.verify.results import Explanation, Problem, Report, Result
    from weightctl.verify.subject import Subject

__all__ = [
    "CHECKS",
    "Check",
    "Explanation",
    "Limit",
    "Problem",
    "Report",
    "Request",
    "Result",
    "Subject",
    "verify",
]


class Limit(NamedTuple):
    """A limit that people set: by which option, and which field of the request keeps it.

    One that `needs_reference` is about a difference, and one `of_whole_model` cannot be applied
    where only some layers are looked at.
    """

    option: str
    field: str
    needs_reference: bool = False
    of_whole_model: bool = False


class Check(NamedTuple):
    """A check: what runs it, `(request: Request) -> Result`, and what it looks at, for people.

    `about` is a line, and `details` say more. `figures` are what it measures, which the schema of
    reports describes by the name of the check. `remedy` is what to do about problems whose cause is
    not known. `limits` are applied by this check.

    One that `needs_reference` compares two checkpoints and does nothing else; one that `compares`
    has differences to list where a reference is given. One that does not
    have `reads_tensors` looks at headers alone. One that `opens_files` reports files that cannot be
    opened, of which no other check is made. `prepares` is `(request: Request) -> object`: it runs
    before all checks, and raises `ConversionError` for a request that the check cannot meet.
    """

    run: str
    about: str
    details: str
    figures: type[Figures] | None = None
    remedy: str = ""
    limits: tuple[Limit, ...] = ()
    needs_reference: bool = False
    compares: bool = False
    reads_tensors: bool = True
    opens_files: bool = False
    prepares: str = ""


_AGAIN = (
    "fetch the file again, or convert the original again; `weightctl diff A B --hash` says whether "
    "it is the one that was published"
)

# In the order in which they run: each takes more for granted than the one before.
CHECKS: dict[str, Check] = {
    "structure": Check(
        "weightctl.verify.checks.structure:check",
        "the files are whole, and other readers take them",
        "the files are whole: header, sizes, offsets, overlaps, the index and its parts; and the "
        "readers of others (safetensors, gguf, torch) take them",
        StructureFigures,
        "fetch or make the file anew; where its numbers can be read, `weightctl convert IN OUT` "
        "writes them as other readers take them",
        reads_tensors=False,
        opens_files=True,
    ),
    "finite": Check(
        "weightctl.verify.checks.finite:check",
        "no number or scale is lost, NaN or absurd",
        "no NaN and no infinity; in blocks no scale that is not finite or absurd; no matrix of "
        "zeros or of one number, no rows that were never written",
        FiniteFigures,
        _AGAIN,
    ),
    "names": Check(
        "weightctl.verify.checks.names:check",
        "the tensors are those that the config asks for",
        "the tensors are those that the family and its config ask for: none missing, none more, "
        "shapes, vocabulary, tied or untied output",
        NamesFigures,
        "compare the names with those of the original, `weightctl diff ORIGINAL A`; `weightctl "
        "convert IN OUT --rename FILE` corrects them, or the config is that of another model",
        reads_tensors=False,
    ),
    "metadata": Check(
        "weightctl.verify.checks.metadata:check",
        "tokenizer, special tokens and config fit, and are the reference's",
        "tokenizer, special tokens, chat template and config contradict neither each other nor the "
        "tensors; with `--against` they are those of B, in either naming convention",
        MetadataFigures,
        "take the tokenizer's files and the config from the original, or convert it again: "
        "`weightctl convert ORIGINAL OUT`; in a GGUF, `--set KEY=VALUE` corrects a single key",
        compares=True,
    ),
    "values": Check(
        "weightctl.verify.checks.values:check",
        "each tensor is the reference's, but for what its encoding costs",
        "with `--against`: each tensor is that of B, but for what its encoding costs; names of "
        "the other naming convention are paired, and its changes of tensors are undone",
        ValuesFigures,
        _AGAIN,
        limits=(Limit("--max-rmse", "max_rmse", needs_reference=True),),
        needs_reference=True,
        compares=True,
    ),
    "forward": Check(
        "weightctl.verify.checks.forward:check",
        "the model runs, and makes sense of a text",
        "the model runs: every layer's numbers are finite, its logits make sense; with `--against` "
        "each layer does what B's does on the same input",
        ForwardFigures,
        limits=(
            Limit("--max-ppl", "max_perplexity", of_whole_model=True),
            Limit("--max-kld", "max_divergence", needs_reference=True, of_whole_model=True),
        ),
        compares=True,
        prepares="weightctl.verify.checks.forward:require_prompt",
    ),
}

_NAMES = {
    "Explanation": "weightctl.verify.results:Explanation",
    "Problem": "weightctl.verify.results:Problem",
    "Report": "weightctl.verify.results:Report",
    "Request": "weightctl.verify.request:Request",
    "Result": "weightctl.verify.results:Result",
    "Subject": "weightctl.verify.subject:Subject",
    "verify": "weightctl.verify.checking:verify",
}

__getattr__ = load_on_use(__name__, _NAMES)


def __dir__() -> list[str]:
    return sorted(__all__)
