"""Where an output can be written, and the errors for other places."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from outcomes import EACH_KIND, OLD, random_weights
from weightctl import Plan, open_weights
from weightctl.errors import OutputError
from weightctl.write.save import save

if TYPE_CHECKING:
    from pathlib import Path

    from outcomes import Kind


def test_a_directory_is_written_whole(tiny_llama: Path, tmp_path: Path) -> None:
    plan = Plan.copy(open_weights(tiny_llama), "safetensors")
    save(plan, tmp_path / "out")
    assert os.listdir(tmp_path) == ["out"]
    carried = {name for name in os.listdir(tiny_llama) if name != "model.safetensors"}
    assert set(os.listdir(tmp_path / "out")) == carried | {"model.safetensors"}


def test_an_empty_directory_is_filled(tiny_llama: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    save(Plan.copy(open_weights(tiny_llama), "safetensors"), tmp_path / "empty")
    assert (tmp_path / "empty" / "config.json").exists()


def test_a_link_to_a_directory_is_followed(tiny_llama: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    plan = Plan.copy(open_weights(tiny_llama), "safetensors")
    for force in (False, True):
        save(plan, tmp_path / "link", force=force)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "disk" / "config.json").exists()


def test_a_directory_that_does_not_exist_is_said_to_be(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="does not exist") as caught:
        save(Plan.copy(random_weights(), "gguf"), tmp_path / "no" / "out.gguf")
    assert caught.value.hint


def test_a_file_is_not_a_place_for_an_output(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(OLD)
    with pytest.raises(OutputError, match="does not exist"):
        save(Plan.copy(random_weights(1), "gguf"), tmp_path / "file" / "out.gguf")
    assert (tmp_path / "file").read_bytes() == OLD


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
@EACH_KIND
def test_a_place_that_may_not_be_written_is_refused_as_such(kind: Kind, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    plan, where = kind.plan(random_weights(3, 8), tmp_path)
    try:
        with pytest.raises(OutputError, match="is not writable"):
            save(plan, where)
    finally:
        tmp_path.chmod(0o700)
    assert os.listdir(tmp_path) == []


def test_too_little_space_is_reported_before_anything_is_written(tmp_path: Path) -> None:
    weights = random_weights(1)
    huge = weights["layers.0.weight"].info._replace(shape=(1 << 40, 1024))
    plan = Plan.copy(weights, "gguf")
    item = plan.items[0].__class__(huge, huge)
    with pytest.raises(OutputError, match="are free on its disk"):
        save(plan.with_items((item,)), tmp_path / "out.gguf")
    assert os.listdir(tmp_path) == []
