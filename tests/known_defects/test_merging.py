"""Splitting and merging, with mistakes of existing tools; each test names the tool."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from gguf import GGUFReader

from llama_cpp import generate
from outcomes import random_weights
from weightctl import Plan, Weights, open_weights
from weightctl.errors import FormatError
from weightctl.formats import FORMATS
from weightctl.plan.arrangement import split
from weightctl.write.save import save

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]

EACH_FORMAT = pytest.mark.parametrize("name", FORMATS)


def divided(weights: Weights, directory: Path, name: str) -> list[Path]:
    """Write each tensor into a file of its own; return the files, without an index."""
    directory.mkdir()
    save(split(Plan.copy(weights, name), 1), directory / f"model.{name}")
    return sorted(directory.glob("*-of-*"))


@EACH_FORMAT
@pytest.mark.parametrize("part", [0, 1, 2])
@pytest.mark.parametrize("left", [0, 10, 200, -1])
def test_a_set_with_a_part_that_is_cut_off_is_not_merged(
    tmp_path: Path, name: str, part: int, left: int
) -> None:
    # llama-gguf-split --merge: exit 0, and an output of full size with garbage in it.
    parts = divided(random_weights(3, 8), tmp_path / "in", name)
    whole = parts[part].read_bytes()
    parts[part].write_bytes(whole[:left])
    with pytest.raises(FormatError) as caught:
        save(Plan.copy(open_weights(parts[0]), name), tmp_path / f"out.{name}")
    assert caught.value.path == str(parts[part])
    assert os.listdir(tmp_path) == ["in"]


def test_a_set_with_a_part_that_is_cut_off_ends_the_command_with_2(
    weightctl: Run, tmp_path: Path
) -> None:
    # llama-gguf-split --merge: exit 0.
    *_, last = parts = divided(random_weights(3, 8), tmp_path / "in", "gguf")
    os.truncate(last, last.stat().st_size - 1000)
    done = weightctl("convert", parts[0], tmp_path / "out.gguf")
    assert done.returncode == 2
    assert f"{last}, byte" in done.stderr
    assert "ends 1000 bytes after the end of the file: the file has" in done.stderr
    assert "check that the download is complete" in done.stderr
    assert os.listdir(tmp_path) == ["in"]


@EACH_FORMAT
def test_split_and_merged_is_the_file_that_was_there(
    weightctl: Run, tiny_llama: Path, tmp_path: Path, name: str
) -> None:
    # llama-gguf-split: what is merged still says `split.no`, `split.count`, `split.tensors.count`.
    suffix = FORMATS[name].suffix
    whole, again = tmp_path / f"whole{suffix}", tmp_path / f"again{suffix}"
    parts = tmp_path / "parts"
    parts.mkdir()
    assert weightctl("convert", tiny_llama, whole).returncode == 0
    divided = weightctl("convert", whole, parts / f"a{suffix}", "--max-shard-size", "1MB")
    assert divided.returncode == 0
    assert len(list(parts.glob(f"*{suffix}"))) == 5
    assert weightctl("convert", parts, again).returncode == 0
    assert again.read_bytes() == whole.read_bytes()
    assert not [key for key in open_weights(again).metadata if key.startswith("split.")]


@pytest.mark.real
@pytest.mark.parametrize(
    "options", [("--dtype", "f16"), ("--quant", "Q8_0", "--allow-requantize")], ids=" ".join
)
def test_what_is_split_and_quantized_with_another_alignment_runs_in_llama_cpp(
    weightctl: Run, smollm2: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    # llama-gguf-split and llama-quantize: exit 0, and llama.cpp does not load the output.
    done = weightctl(
        *("convert", smollm2, tmp_path / "model.gguf", "--align", "64"),
        *("--max-shard-size", "60MB", *options),
    )
    assert done.returncode == 0, done.stderr
    first, *others = sorted(tmp_path.glob("*.gguf"))
    assert len(others) > 1
    assert GGUFReader(first).alignment == 64
    assert "Paris" in generate(first, "The capital of France is", 4, tmp_path).text
