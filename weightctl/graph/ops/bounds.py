"""What is looked up must be there: on a GPU torch would stop the whole process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.errors import EngineError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["require_inside"]


def require_inside(indices: Tensor, count: int, *, from_end: bool = False) -> None:
    """Raise `EngineError` for an index of what has `count` rows, from 0, that is none of them.

    With `from_end` negative ones count from the last row.
    """
    if not indices.numel():
        return
    lowest, highest = (int(bound) for bound in indices.aminmax())
    if lowest < (-count if from_end else 0) or highest >= count:
        outside = highest if highest >= count else lowest
        raise EngineError(
            f"there is no row {outside}",
            hint=f"there are {count}, counted from 0" if count else "there are none",
        )
