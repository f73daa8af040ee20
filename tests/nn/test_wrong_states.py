"""What is given to `load_state_dict` by mistake."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from small_modules import Scale

from weightctl.errors import StateDictError


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (None, "a state is values by name, not NoneType"),
        ([1, 2], "not list"),
        ("weight", "not str"),
        ({0: np.zeros(4, np.float32)}, "a weight's name is a string, not 0"),
        (
            {"weight": torch.empty(4, device="meta")},
            "`weight` has no numbers: .* meta",
        ),
        ({"weight": np.ma.masked_array(np.zeros(4, np.float32), True)}, "is a masked array"),
    ],
    ids=["none", "list", "text", "number", "meta", "masked"],
)
def test_what_is_not_a_state_is_refused(state: Any, says: str) -> None:
    with pytest.raises(StateDictError, match=says):
        Scale().load_state_dict(state)


@pytest.mark.parametrize("alignment", ["4", 4.0, True])
def test_an_alignment_is_a_whole_number(alignment: Any) -> None:
    with pytest.raises(StateDictError, match=f"weight_alignment is {alignment!r}"):
        Scale().load_state_dict({}, weight_alignment=alignment, strict=False)
