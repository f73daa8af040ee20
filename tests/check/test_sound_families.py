"""Models that transformers saves violate no rule, whatever their family."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import families
from weightctl.check import check

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.long
@pytest.mark.parametrize("name", families.FAMILIES)
def test_a_model_of_a_family_violates_no_rule(
    name: str, family: Callable[[str], families.Made]
) -> None:
    assert check(family(name).path).findings == ()
