"""Verification of checkpoints: whether a model works, and which tensor is wrong if it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.system.registry import load_on_use
from weightctl.verify.checks import CHECKS, Check, Limit

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
