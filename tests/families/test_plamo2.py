"""GGUF files of PLaMo 2 have the number of query heads once, or for each layer."""

from __future__ import annotations

from typing import Any

import pytest

from each import each
from weightctl.families import FAMILIES

COUNTS: Any = next(key for key in FAMILIES["plamo2"].load().keys if key.field == "heads").kind


@each("content", [4, [0, 4, 0, 4], [4, 4]])
def test_the_number_of_heads_is_that_of_the_layers_with_attention(content: Any) -> None:
    assert COUNTS.read(content) == 4


@each("content", [[], [0, 0], [0, 4, 0, 2], "4", [0, "4"]])
def test_other_numbers_are_refused(content: Any) -> None:
    with pytest.raises(ValueError, match=r"must be|must have|is "):
        COUNTS.read(content)


def test_it_is_written_as_one_number() -> None:
    assert COUNTS.write(4) == 4
