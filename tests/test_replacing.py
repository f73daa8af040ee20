"""An existing file or directory at the output path is only replaced with force."""

from __future__ import annotations

import os
import socket
import stat
from typing import TYPE_CHECKING

import pytest

from outcomes import EACH_KIND, OLD, random_weights, standing, untouched
from weightctl import Plan, open_weights
from weightctl.errors import OutputError
from weightctl.write.save import save

if TYPE_CHECKING:
    from pathlib import Path

    from outcomes import Kind


def test_an_existing_file_is_not_replaced_without_force(tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    out.write_bytes(OLD)
    with untouched(tmp_path), pytest.raises(OutputError, match="exists") as caught:
        save(Plan.copy(random_weights(), "gguf"), out)
    assert "--force" in caught.value.hint


@EACH_KIND
def test_any_file_of_an_output_that_exists_is_kept_without_force(
    kind: Kind, tmp_path: Path
) -> None:
    plan, where = kind.plan(random_weights(3, 8), tmp_path)
    save(plan, where)
    names = list(standing(tmp_path))
    for name in names:
        for other in standing(tmp_path):
            (tmp_path / other).unlink()
        (tmp_path / name).write_bytes(OLD)
        with untouched(tmp_path), pytest.raises(OutputError, match="exists") as caught:
            save(plan, where)
        assert "--force" in caught.value.hint


def test_a_file_that_appears_meanwhile_stays_without_force(tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    plan = Plan.copy(random_weights(1), "gguf")
    with pytest.raises(OutputError, match="was created during the run"):
        save(plan, out, progress=lambda _: out.write_bytes(OLD))
    assert out.read_bytes() == OLD
    assert os.listdir(tmp_path) == ["out.gguf"]


def test_a_replaced_file_keeps_its_mode(tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    out.write_bytes(OLD)
    out.chmod(0o600)
    save(Plan.copy(random_weights(1), "gguf"), out, force=True)
    assert out.stat().st_mode & 0o777 == 0o600


def test_what_is_not_a_file_is_never_replaced_by_one(tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(out))
        with pytest.raises(OutputError, match="is not a file"):
            save(Plan.copy(random_weights(1), "gguf"), out, force=True)
    assert stat.S_ISSOCK(out.stat().st_mode)


def test_a_directory_is_replaced_with_force(tiny_llama: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    plan = Plan.copy(open_weights(tiny_llama), "safetensors")
    save(plan, out)
    whole = (out / "model.safetensors").read_bytes()
    (out / "model.safetensors").write_bytes(OLD)
    with pytest.raises(OutputError, match="is not empty"):
        save(plan, out)
    save(plan, out, force=True)
    assert (out / "model.safetensors").read_bytes() == whole
    assert os.listdir(tmp_path) == ["out"]


def test_a_directory_with_somebody_elses_files_is_not_replaced(
    tiny_llama: Path, tmp_path: Path
) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    plan = Plan.copy(open_weights(tiny_llama), "safetensors")
    with untouched(tmp_path), pytest.raises(OutputError, match=r"thesis\.tex"):
        save(plan, tmp_path, force=True)


def test_a_file_that_appears_in_a_directory_meanwhile_stays(
    tiny_llama: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    plan = Plan.copy(open_weights(tiny_llama), "safetensors")
    save(plan, out)
    before = standing(tmp_path)
    thesis = out / "thesis.tex"
    with pytest.raises(OutputError, match=r"thesis\.tex"):
        save(plan, out, force=True, progress=lambda _: thesis.write_bytes(OLD))
    assert standing(tmp_path) == before | {"out/thesis.tex": OLD}
    assert os.listdir(tmp_path) == ["out"]
