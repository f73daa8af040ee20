"""Names that differ by upper and lower case only are one file on macOS and Windows."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from outcomes import random_weights
from weightctl import Plan, convert, open_weights
from weightctl.deltas.applying import apply_patch
from weightctl.deltas.creating import write_patch
from weightctl.errors import OutputError
from weightctl.write.save import save

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Run

pytestmark = pytest.mark.usefixtures("macos")


def test_two_files_of_an_output_with_one_name_are_refused(tiny_llama: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(tiny_llama, source)
    (source / "License.txt").write_text("one")
    (source / "LICENSE.TXT").write_text("other")
    with pytest.raises(OutputError, match=r"would be the same file in .*out"):
        save(Plan.copy(open_weights(source), "safetensors"), tmp_path / "out")
    assert os.listdir(tmp_path) == ["source"]


def test_two_files_of_a_patch_with_one_name_are_refused(tiny_llama: Path, tmp_path: Path) -> None:
    edited, patch = tmp_path / "edited", tmp_path / "model.patch"
    shutil.copytree(tiny_llama, edited)
    (edited / "note").write_text("one")
    (edited / "Note").write_text("other")
    write_patch(tiny_llama, edited, patch)
    with pytest.raises(OutputError, match="Note and note would be the same file"):
        apply_patch(tiny_llama, patch, tmp_path / "out")
    assert {*os.listdir(tmp_path)} == {"edited", "model.patch"}


def test_the_input_in_another_spelling_is_not_replaced(tmp_path: Path) -> None:
    save(Plan.copy(random_weights(), "gguf"), tmp_path / "model.gguf")
    before = (tmp_path / "model.gguf").read_bytes()
    with pytest.raises(OutputError, match="is the input itself"):
        convert(tmp_path / "model.gguf", tmp_path / "MODEL.gguf", dtype="f16", force=True)
    assert (tmp_path / "model.gguf").read_bytes() == before


def test_input_parts_in_another_spelling_are_not_older_files(tmp_path: Path) -> None:
    convert_to_parts = {"max_shard_size": 3_000, "dtype": "f32"}
    save(Plan.copy(random_weights(), "gguf"), tmp_path / "one.gguf")
    convert(tmp_path / "one.gguf", tmp_path / "model.gguf", **convert_to_parts)
    parts = {*os.listdir(tmp_path)} - {"one.gguf"}
    assert len(parts) > 1
    first = min(parts).replace("model", "Model")
    convert(tmp_path / first, tmp_path / "model.gguf", dtype="f16", force=True)
    assert {*os.listdir(tmp_path)} == {*parts, "one.gguf", "model.gguf"}


def test_a_report_in_the_place_of_the_output_is_refused(
    tiny_llama: Path, tmp_path: Path, weightctl: Run
) -> None:
    out, report = tmp_path / "out.gguf", tmp_path / "OUT.GGUF"
    done = weightctl("convert", tiny_llama, out, "--report", report)
    assert done.returncode == 2
    assert "is the same as the output" in done.stderr
    one, other = tmp_path / "report.html", tmp_path / "Report.html"
    done = weightctl("verify", tiny_llama, "--report", one, "--report", other)
    assert "is given twice" in done.stderr
    assert not os.listdir(tmp_path)
