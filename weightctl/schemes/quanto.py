"""quanto: integers of fewer than 8 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.schemes.naming import NameEndings
from weightctl.schemes.scheme import Scheme

if TYPE_CHECKING:
    from weightctl.schemes.naming import Candidate

_OTHERS = (".weight._shift", ".input_scale", ".output_scale")


def _infer(_candidate: Candidate) -> None:
    """Return None, because no tensor states the shape of the weight."""


SCHEME = Scheme(
    label="quanto",
    names=(NameEndings(".weight._scale", ".weight._data._data", ".weight", ("U8",), _OTHERS),),
    infer=_infer,
)
