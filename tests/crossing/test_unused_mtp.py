"""Layers for multi-token prediction that a family does not use, on the way to GGUF."""

from __future__ import annotations

from shutil import copytree
from typing import TYPE_CHECKING

import pytest
from safetensors.numpy import load_file, save_file

from family_cases import make_checkpoint
from weightctl import convert, open_weights
from weightctl.errors import ArchitectureError
from weightctl.families import recognize

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.long
def test_those_of_deepseek_v4_are_refused_in_gguf_unless_they_are_left_out(
    crossed: Path, tmp_path: Path
) -> None:
    """GGUF has one output for the streams of all layers, and these layers have their own."""
    source = tmp_path / "source"
    copytree(make_checkpoint("deepseek_v4", crossed).path, source)
    stored = load_file(source / "model.safetensors")
    more = {f"mtp.0.{part}.weight": stored["model.norm.weight"] for part in ("enorm", "hnorm")}
    save_file(stored | more, source / "model.safetensors", {"format": "pt"})
    assert not recognize(open_weights(source)).unexpected
    with pytest.raises(ArchitectureError, match=r"mtp\.0\.enorm") as caught:
        convert(source, tmp_path / "out.gguf")
    assert "--without mtp" in caught.value.hint
    made = convert(source, tmp_path / "out.gguf", without="mtp")
    assert any("1 layer for multi-token prediction (MTP), 2 tensors" in each for each in made.notes)
    assert not any("not written" in each for each in made.notes)
