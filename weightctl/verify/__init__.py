"""Verification of checkpoints: whether a model works, and which tensor is wrong if it does not."""

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
    from weightctl.verify.request import Request, Subject
    from weightctl.verify.results import Explanation, Problem, Report, Result

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
    """A limit that a user sets: its option, and the field of the request that holds it.

    If `needs_reference` is set, it limits a difference from the reference. If `of_whole_model` is
    set, it cannot be applied to some layers only.
    """

    option: str
    field: str
    needs_reference: bool = False
    of_whole_model: bool = False


class Check(NamedTuple):
    """A check: the function that runs it, `(request: Request) -> Result`, and texts about it.

    `about` is one line, and `details` say more. `figures` are what it measures, which the schema of
    reports describes under the name of the check. `remedy` is what to do about problems without a
    known cause. `limits` are applied by this check.

    `needs_reference` is set if the check only compares two checkpoints, and `compares` if it lists
    differences when there is a reference. If `reads_tensors` is not set, it reads only headers.
    `opens_files` is set if it reports files that cannot be opened; no other check runs for them.
    `prepares` is a function `(request: Request) -> object` that runs before all checks. It raises
    `ConversionError` for a request that the check cannot fulfill. `uses_torch` is set if it runs
    the model.
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
    uses_torch: bool = False


_AGAIN = (
    "download the file again, or convert the original model again; to compare the file with a "
    "fresh download: `weightctl diff MODEL DOWNLOAD --hash`"
)

# In the order in which they run: each check relies on more than the one before.
CHECKS: dict[str, Check] = {
    "structure": Check(
        "weightctl.verify.checks.structure:check",
        "the files are complete, and other libraries can read them",
        "the files are complete and consistent: header, sizes, offsets, index and parts; "
        "tensors do not overlap; the libraries safetensors, gguf and torch can read the files",
        StructureFigures,
        "download the file again, or convert the original model again; if weightctl can read "
        "the values, `weightctl convert MODEL OUT` writes a file that other libraries can read",
        reads_tensors=False,
        opens_files=True,
    ),
    "finite": Check(
        "weightctl.verify.checks.finite:check",
        "no value is NaN or infinite, and no block scale is implausible",
        "no value is NaN, infinite or implausibly large; no block scale is NaN, infinite or "
        "implausible; the values of a matrix are not all equal; no row consists "
        "only of zeros, which would suggest data that was never written",
        FiniteFigures,
        _AGAIN,
    ),
    "names": Check(
        "weightctl.verify.checks.names:check",
        "the tensors are those that the config requires",
        "the tensors are those that the model family and the config require: none is missing "
        "or unexpected, and shapes, vocabulary size and tied or untied embeddings match the "
        "config",
        NamesFigures,
        "compare the names with those of the original: `weightctl diff ORIGINAL MODEL`; correct "
        "them with `weightctl convert MODEL OUT --rename FILE`, or use the config that belongs "
        "to this model",
        reads_tensors=False,
    ),
    "metadata": Check(
        "weightctl.verify.checks.metadata:check",
        "tokenizer, special tokens and config are consistent",
        "tokenizer, special tokens, chat template and config are consistent with each other "
        "and with the tensors; with `--against`, they are equal to those of OTHER, even across "
        "naming conventions",
        MetadataFigures,
        "copy the tokenizer files and the config from the original model, or convert it again: "
        "`weightctl convert ORIGINAL OUT`; in a GGUF file, `weightctl convert MODEL OUT --set "
        "KEY=VALUE` corrects one key",
        compares=True,
    ),
    "values": Check(
        "weightctl.verify.checks.values:check",
        "with --against: each tensor matches that of OTHER, within the error of its encoding",
        "with `--against`: each tensor matches that of OTHER, within the error that its encoding "
        "causes; tensors are paired across naming conventions, and changes that a conversion "
        "makes (such as the order of rows) are reversed in memory",
        ValuesFigures,
        _AGAIN,
        limits=(Limit("--max-rmse", "max_rmse", needs_reference=True),),
        needs_reference=True,
        compares=True,
    ),
    "forward": Check(
        "weightctl.verify.checks.forward:check",
        "the model runs, and its predictions are plausible",
        "the model runs: the output of every layer is finite, and the predictions are "
        "plausible; with `--against`, each layer is compared with that of OTHER on the same "
        "input",
        ForwardFigures,
        limits=(
            Limit("--max-ppl", "max_perplexity", of_whole_model=True),
            Limit("--max-kld", "max_divergence", needs_reference=True, of_whole_model=True),
        ),
        compares=True,
        prepares="weightctl.verify.checks.forward:require_prompt",
        uses_torch=True,
    ),
}

_NAMES = {
    "Explanation": "weightctl.verify.results:Explanation",
    "Problem": "weightctl.verify.results:Problem",
    "Report": "weightctl.verify.results:Report",
    "Request": "weightctl.verify.request:Request",
    "Result": "weightctl.verify.results:Result",
    "Subject": "weightctl.verify.request:Subject",
    "verify": "weightctl.verify.checking:verify",
}

__getattr__ = load_on_use(__name__, _NAMES)


def __dir__() -> list[str]:
    return sorted(__all__)
