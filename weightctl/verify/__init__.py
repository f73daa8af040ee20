"""Proof that a checkpoint works, and the tensor where it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from weightctl.system.registry import load_on_use

if TYPE_CHECKING:
    from weightctl.verify.checking import verify
    from weightctl.verify.request import Request
    from weightctl.verify.results import Cause, Problem, Report, Result
    from weightctl.verify.subject import Subject

__all__ = [
    "CHECKS",
    "Cause",
    "Check",
    "Problem",
    "Report",
    "Request",
    "Result",
    "Subject",
    "verify",
]


class Check(NamedTuple):
    """A check: what runs it, `(request: Request) -> Result`, and what it looks at, for people.

    One that `needs_reference` compares two checkpoints and does nothing else.
    """

    run: str
    about: str
    needs_reference: bool = False


# In the order in which they run: each takes more for granted than the one before.
CHECKS: dict[str, Check] = {
    "structure": Check(
        "weightctl.verify.checks.structure:check",
        "the files are whole, and other readers take them",
    ),
    "finite": Check(
        "weightctl.verify.checks.finite:check", "no number or scale is lost, NaN or absurd"
    ),
    "names": Check(
        "weightctl.verify.checks.names:check", "the tensors are those that the config asks for"
    ),
    "metadata": Check(
        "weightctl.verify.checks.metadata:check",
        "tokenizer, special tokens and config fit, and are the reference's",
    ),
    "values": Check(
        "weightctl.verify.checks.values:check",
        "each tensor is the reference's, but for what its encoding costs",
        needs_reference=True,
    ),
    "forward": Check(
        "weightctl.verify.checks.forward:check", "the model runs, and makes sense of a text"
    ),
}

_NAMES = {
    "Cause": "weightctl.verify.results:Cause",
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
