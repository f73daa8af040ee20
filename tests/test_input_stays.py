"""No run ever replaces its input, by whatever name."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from outcomes import random_weights, standing, untouched
from weightctl import Plan, open_weights
from weightctl.errors import OutputError, WeightctlError
from weightctl.formats import FORMATS
from weightctl.plan.arrangement import split
from weightctl.write.save import save
from weightctl.write.targets import Target, target

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]


@pytest.mark.parametrize(
    "link", [None, os.symlink, os.link], ids=["itself", "symlink", "hard link"]
)
def test_the_input_is_never_the_output(tmp_path: Path, link: Callable[..., None] | None) -> None:
    source = tmp_path / "in.safetensors"
    save(Plan.copy(random_weights(2), "safetensors"), source)
    out = source if link is None else tmp_path / "other.safetensors"
    if link is not None:
        link(source, out)
    with untouched(tmp_path), pytest.raises(OutputError, match="is the input itself"):
        save(Plan.copy(open_weights(source), "safetensors"), out, force=True)


def test_the_directory_of_the_input_is_never_the_output(tmp_path: Path) -> None:
    source = tmp_path / "model" / "model.safetensors"
    source.parent.mkdir()
    save(Plan.copy(random_weights(2), "safetensors"), source)
    with untouched(tmp_path), pytest.raises(OutputError, match="contains the input"):
        save(Plan.copy(open_weights(source), "safetensors"), source.parent, force=True)


@pytest.mark.parametrize("name", ["model.safetensors.index.json", "config.json"])
def test_what_belongs_to_the_input_is_never_the_output(
    tiny_llama: Path, tmp_path: Path, name: str
) -> None:
    shutil.copytree(tiny_llama, tmp_path / "in")
    names = open_weights(tiny_llama).header.tensors
    index = {"weight_map": dict.fromkeys(names, "model.safetensors")}
    (tmp_path / "in" / "model.safetensors.index.json").write_text(json.dumps(index))
    plan = Plan.copy(open_weights(tmp_path / "in"), "gguf")
    with untouched(tmp_path / "in"), pytest.raises(OutputError, match="is the input itself"):
        save(plan, Target(str(tmp_path / "in" / name), "gguf"), force=True)


@pytest.fixture(params=["safetensors", "gguf"])
def parts(request: pytest.FixtureRequest, tmp_path: Path) -> list[Path]:
    """The files of a model in three parts: the index if there is one, a config, and the parts."""
    directory = tmp_path / "model"
    directory.mkdir()
    plan = split(Plan.copy(random_weights(3, 8), request.param), 1)
    save(plan, directory / f"model.{request.param}")
    (directory / "config.json").write_text("{}")
    return sorted(directory.iterdir())


@pytest.mark.parametrize("name", FORMATS)
def test_no_file_of_a_split_input_is_ever_the_output(
    parts: list[Path], tmp_path: Path, name: str
) -> None:
    plan = Plan.copy(open_weights(parts[-1]), name)
    # A link, because the name of a part is refused for a whole file.
    link = tmp_path / f"link{FORMATS[name].suffix}"
    with untouched(parts[0].parent):
        for path in parts:
            link.symlink_to(path)
            with pytest.raises(OutputError, match="is the input itself"):
                save(plan, link, force=True)
            link.unlink()
            with pytest.raises(WeightctlError):
                save(plan, target(str(path), name), force=True)


def test_no_part_of_an_output_is_ever_a_part_of_the_input(parts: list[Path]) -> None:
    directory = parts[0].parent
    weights = open_weights(parts[-1])
    plan = split(Plan.copy(weights, weights.header.format), 1)
    with untouched(directory), pytest.raises(OutputError, match="is the input itself"):
        save(plan, directory / f"model.{weights.header.format}", force=True)


def test_the_directory_of_a_split_input_is_never_the_output(parts: list[Path]) -> None:
    directory = parts[0].parent
    with untouched(directory.parent), pytest.raises(OutputError, match="contains the input"):
        save(Plan.copy(open_weights(parts[-1]), "safetensors"), directory, force=True)


def test_another_name_beside_the_input_is_not_harm_to_it(parts: list[Path]) -> None:
    before = standing(parts[0].parent)
    weights = open_weights(parts[-1])
    suffix = FORMATS[weights.header.format].suffix
    save(Plan.copy(weights, weights.header.format), parts[0].parent / f"other{suffix}")
    after = standing(parts[0].parent)
    assert after.pop(f"other{suffix}")
    assert after == before


@pytest.mark.parametrize("force", [False, True])
def test_a_report_never_replaces_a_file_of_the_input(
    weightctl: Run, parts: list[Path], tmp_path: Path, force: bool
) -> None:
    with untouched(tmp_path):
        for path in parts:
            done = weightctl(
                *("convert", parts[-1], tmp_path / "out.gguf", "--report", path),
                *(["--force"] if force else []),
            )
            assert done.returncode == 2, path
