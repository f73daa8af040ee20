"""Faults in the files of diffusion transformers are named, with their entries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from each import each
from weightctl.errors import FormatError
from weightctl.extras.diffusion.family import read_diffusion_family

if TYPE_CHECKING:
    from pathlib import Path


@each(
    "old, new, entry",
    [
        ('"flux"', '"os:system"', "rules"),
        ("class = ", "classes = ", ""),
        ("of = ", "part = ", r'tensors."a.*".part'),
        ('"b.*"', "3", r'tensors."a.*".diffusers'),
        ("[1, 2]", '"ab"', r'tensors."c.*".shares'),
    ],
)
def test_a_fault_in_a_diffusion_transformer_is_named(
    old: str, new: str, entry: str, tmp_path: Path
) -> None:
    path = tmp_path / "toy.toml"
    path.write_text(
        'class = "Toy"\nrules = "flux"\n[tensors]\n"a.*" = {diffusers = "b.*", of = "c"}\n'
        '"c.*" = {diffusers = ["d.*", "e.*"], shares = [1, 2]}\n'
    )
    assert [pair.original for pair in read_diffusion_family(path).tensors] == [
        "a.weight", "a.bias", "c.weight", "c.bias",
    ]  # fmt: skip
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(FormatError) as caught:
        read_diffusion_family(path)
    assert (f"`{entry}` " if entry else "has no `class`") in str(caught.value)
