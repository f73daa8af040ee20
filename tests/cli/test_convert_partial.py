"""Checkpoints with missing parts: what is listed, converted and refused."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import pytest

import small_checkpoints
from weightctl import convert, open_weights
from weightctl.errors import ArchitectureError, ConversionError, FormatError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]

PART = "model-00002-of-00002.safetensors"
OTHER = "model-00001-of-00002.safetensors"
NOTE = f"part 2 of 2; the other part is missing: `{OTHER}`"


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    """The second of two parts, beside their index and a config."""
    path = small_checkpoints.split(tmp_path)
    (path / OTHER).unlink()
    (path / "config.json").write_text('{"model_type": "llama"}')
    return path


def test_a_part_is_listed_with_a_note(weightctl: Run, alone: Path) -> None:
    for path in (alone, alone / PART):
        done = weightctl("ls", path)
        assert (done.returncode, done.stderr) == (0, f"note: {NOTE}\n")
        assert "lm_head.weight" in done.stdout


@pytest.mark.parametrize("out", ["out.gguf", "out.safetensors", "out"])
def test_a_part_is_converted_only_if_that_is_asked_for(
    weightctl: Run, alone: Path, tmp_path: Path, out: str
) -> None:
    refused = weightctl("convert", alone / PART, tmp_path / out)
    assert refused.returncode == 2
    assert "1 of 2 parts is missing" in refused.stderr
    assert "use --partial (partial=True in Python)" in " ".join(refused.stderr.split())
    assert not (tmp_path / out).exists()
    done = weightctl("convert", alone / PART, tmp_path / out, "--partial")
    assert done.returncode == 0, done.stderr
    assert done.stderr == (
        f"note: {NOTE}\n"
        "note: the output lacks the tensors of the missing parts, so it does not load as a model\n"
    )
    assert [*open_weights(tmp_path / out).header.tensors] == ["lm_head.weight"]


def test_a_recipe_for_some_parts_says_that_it_sees_no_others(tmp_path: Path) -> None:
    source = tmp_path / "parts.gguf"
    arrays = {f"blk.{n}.ffn_down.weight": np.ones((8, 256), np.float32) for n in range(4)}
    metadata = {"general.architecture": "llama", "llama.block_count": 4}
    planned = convert(arrays, source, metadata=metadata, max_shard_size=2000)
    assert len(planned.paths) > 1
    os.unlink(planned.paths[-1])
    made = convert(
        planned.paths[0], tmp_path / "o.gguf", quant="Q4_K_M", partial=True, dry_run=True
    )
    assert any("with parts missing" in note for note in made.notes)
    plain = convert(planned.paths[0], tmp_path / "o.gguf", dtype="f16", partial=True, dry_run=True)
    assert not any("with parts missing" in note for note in plain.notes)


def test_names_are_translated_only_for_a_whole_model(alone: Path, tmp_path: Path) -> None:
    with pytest.raises(ArchitectureError):
        convert(alone, tmp_path / "out.gguf", names="gguf", partial=True)


def test_partial_is_for_paths(alone: Path, tmp_path: Path) -> None:
    weights = open_weights(alone, partial=True)
    with pytest.raises(ConversionError, match="partial only applies to a path"):
        convert(weights, tmp_path / "out.gguf", partial=True)
    convert(weights, tmp_path / "out.gguf")
    with pytest.raises(FormatError, match="1 of 2 parts is missing"):
        convert(alone, tmp_path / "other.gguf")


def test_verify_reports_the_missing_part(weightctl: Run, alone: Path) -> None:
    done = weightctl("verify", alone)
    assert done.returncode == 1
    assert "1 of 2 parts is missing" in " ".join(done.stdout.split())
