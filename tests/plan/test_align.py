"""The alignment of tensors, which copies keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from copying import copied, held
from weightctl import Plan
from weightctl.dtype import ENCODINGS
from weightctl.errors import ConversionError
from weightctl.plan.arrangement import align

if TYPE_CHECKING:
    from pathlib import Path

    from weightctl import Weights


def sample() -> Weights:
    return held(dict.fromkeys(("a", "b", "c"), (ENCODINGS["I8"], (3,), b"abc")))


def test_in_gguf_every_tensor_starts_on_the_boundary(tmp_path: Path) -> None:
    made = copied(sample(), tmp_path / "a.gguf", 4096)
    assert {extent.offset % 4096 for extent in made.header.extents.values()} == {0}


def test_in_safetensors_the_first_does(tmp_path: Path) -> None:
    made = copied(sample(), tmp_path / "a.safetensors", 4096)
    assert [extent.offset for extent in made.header.extents.values()] == [4096, 4099, 4102]


def test_the_boundary_goes_along_through_formats(tmp_path: Path) -> None:
    weights = copied(sample(), tmp_path / "a.gguf", 4096)
    weights = copied(weights, tmp_path / "b.safetensors")
    assert weights.header.alignment == 4096
    weights = copied(weights, tmp_path / "c.gguf")
    assert weights.header.alignment == 4096
    assert (tmp_path / "c.gguf").read_bytes() == (tmp_path / "a.gguf").read_bytes()


@pytest.mark.parametrize("boundary", [0, -32, 1, 4, 3, 48, 1 << 32])
def test_what_is_not_a_boundary_is_refused(boundary: int) -> None:
    with pytest.raises(
        ConversionError, match=f"an alignment of {boundary} bytes is not supported"
    ) as caught:
        align(Plan.copy(sample(), "gguf"), boundary)
    assert "use a power of two of at least 8" in caught.value.hint
