"""A set of files is replaced, restored and read as one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from copying import contents
from outcomes import KINDS, old_output, random_weights, standing, untouched
from weightctl import Plan, open_weights
from weightctl.errors import OutputError
from weightctl.plan.arrangement import split
from weightctl.write.save import save

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]


def divided(place: Path, most: int, *, seed: int, force: bool = False) -> dict[str, bytes]:
    plan = split(Plan.copy(random_weights(6, 8, seed=seed), "gguf"), most)
    save(plan, place / "m.gguf", force=force)
    return standing(place)


@pytest.mark.parametrize("sizes", [(70_000, 20_000), (20_000, 70_000), (20_000, 1 << 30)])
def test_another_number_of_parts_takes_the_place_of_a_set_only_with_force(
    tmp_path: Path, sizes: tuple[int, int]
) -> None:
    old = divided(tmp_path, sizes[0], seed=1)
    refused = pytest.raises(OutputError, match=r"an older checkpoint with the same name|exists")
    with untouched(tmp_path), refused:
        divided(tmp_path, sizes[1], seed=2)
    new = divided(tmp_path, sizes[1], seed=2, force=True)
    assert not old.keys() & new.keys()
    first = min(new)
    assert contents(open_weights(tmp_path / first)) == contents(random_weights(6, 8, seed=2))


def test_parts_are_merged_beside_them(tmp_path: Path) -> None:
    old = divided(tmp_path, 20_000, seed=1)
    first = tmp_path / min(old)
    save(Plan.copy(open_weights(first), "gguf"), tmp_path / "m.gguf")
    assert standing(tmp_path).items() > old.items()


def test_the_paths_of_what_was_saved_are_those_of_the_files(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link.gguf").symlink_to("disk/m.gguf")
    plan = split(Plan.copy(random_weights(6, 8), "gguf"), 70_000)
    for path in save(plan, tmp_path / "link.gguf").paths:
        assert os.path.isfile(path)


@pytest.mark.parametrize("name", ["set", "gguf set"])
def test_a_set_without_its_first_file_is_refused(weightctl: Run, tmp_path: Path, name: str) -> None:
    old_output(KINDS[name], tmp_path, tensors=3)
    for path in sorted(tmp_path.glob("out*"))[:1] + list(tmp_path.glob("*.json")):
        path.unlink()
    for path in tmp_path.iterdir():
        done = weightctl("convert", path, tmp_path / "copy", "--dry-run")
        assert done.returncode == 2
        assert "1 of 3 parts is missing" in done.stderr
