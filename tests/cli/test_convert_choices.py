"""Which tensors and files a conversion includes, and where it writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl import open_weights

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]


def test_tensors_can_be_left_out(weightctl: Run, tiny_llama: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    done = weightctl("convert", tiny_llama, out, "--include", "blk.[0-1].*", "--exclude", "*norm*")
    assert "14 x BF16 kept" in done.stdout
    assert "16 left out" in done.stdout
    assert len(open_weights(out).header.tensors) == 14


def test_metadata_can_be_set_and_removed(weightctl: Run, tiny_llama: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "a.gguf", tmp_path / "b.gguf"
    weightctl("convert", tiny_llama, first, "--set", "general.name=tiny", "--set", "n:u32=5")
    weightctl("convert", first, second, "--set", "n=6", "--unset", "general.name")
    assert open_weights(first).metadata["general.name"].content == "tiny"
    assert open_weights(second).metadata["n"] == ("u32", 6)
    assert "general.name" not in open_weights(second).metadata


def test_tensors_start_where_they_are_told_to(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    weightctl("convert", tiny_llama, tmp_path / "a.gguf", "--align", "4KiB")
    extents = open_weights(tmp_path / "a.gguf").header.extents.values()
    assert all(extent.offset % 4096 == 0 for extent in extents)
