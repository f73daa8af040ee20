"""Verification of checkpoints: whether a model works, and which tensor is wrong if it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.system.registry import load_on_use, make_callable
from weightctl.verify.checks import CHECKS, Check, Limit

if TYPE_CHECKING:
    from weightctl.verify.checking import verify, verify_request
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
    "verify_request",
]


_NAMES = {
    "Explanation": "weightctl.verify.results:Explanation",
    "Problem": "weightctl.verify.results:Problem",
    "Report": "weightctl.verify.results:Report",
    "Request": "weightctl.verify.request:Request",
    "Result": "weightctl.verify.results:Result",
    "Subject": "weightctl.verify.subject:Subject",
    "verify": "weightctl.verify.checking:verify",
    "verify_request": "weightctl.verify.checking:verify_request",
}

__getattr__ = load_on_use(__name__, _NAMES)


def __dir__() -> list[str]:
    return sorted(__all__)


make_callable(__name__, "verify")
