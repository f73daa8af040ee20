"""ExLlamaV2: packed columns; groups of input features have different bit widths."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.schemes.naming import LogicalWeight, NameEndings
from weightctl.schemes.scheme import Scheme

if TYPE_CHECKING:
    from weightctl.schemes.naming import Candidate

_OTHERS = (".q_scale_max", ".q_groups", ".q_invperm", ".q_perm", ".q_group_map")


def _infer(candidate: Candidate) -> LogicalWeight | None:
    order = candidate.shape(".q_invperm") or candidate.shape(".q_perm")
    if not order or len(candidate.numbers.shape) != 2:
        return None
    words, outputs = candidate.numbers.shape
    fits = order[0] <= 32 * words <= 8 * order[0]
    return LogicalWeight((outputs, order[0])) if fits else None


SCHEME = Scheme(
    label="EXL2",
    names=(NameEndings(".q_scale", ".q_weight", ".weight", ("I32",), _OTHERS),),
    infer=_infer,
)
