"""MXFP6: 6-bit floats, with a power-of-two scale per block of 32 elements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.schemes.microscaled import MICROSCALED_NAMES, cut_microscaled, infer_mxfp
from weightctl.schemes.scheme import Scheme

if TYPE_CHECKING:
    from weightctl.schemes.naming import Candidate, LogicalWeight


def _infer(candidate: Candidate) -> LogicalWeight | None:
    return infer_mxfp(candidate, 6)


SCHEME = Scheme(label="MXFP6", names=MICROSCALED_NAMES, infer=_infer, cut=cut_microscaled)
