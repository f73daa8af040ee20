"""`weightctl shard --gather`: what it joins, and what it refuses to join."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from commands import O_PROJ, TINY, asked, refusal
from weightctl import open_weights
from weightctl.sharding.planning import shard_plan
from weightctl.split import Grid
from weightctl.write.shard import save_shards

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small llama, cut for two ranks."""
    path = tmp_path_factory.mktemp("sharded") / "halves"
    save_shards(shard_plan(open_weights(TINY), Grid(2)), path)
    return path


def test_a_cut_checkpoint_is_put_together_byte_for_byte(halves: Path, tmp_path: Path) -> None:
    done = asked("--gather", halves, tmp_path / "whole")
    assert done.exit_code == 0
    assert done.stdout.splitlines()[:4] == [
        f"{halves} -> {tmp_path / 'whole'} (safetensors)",
        "30 tensors from 2 ranks, 3.87 MB; the file takes 3.87 MB",
        "other files: config.json, tokenizer.json and 3 more",
        "all shards match the SHA-256 in the manifest",
    ]
    assert sorted(os.listdir(tmp_path / "whole")) == sorted(os.listdir(TINY))
    for name in os.listdir(TINY):
        assert (tmp_path / "whole" / name).read_bytes() == (TINY / name).read_bytes()


def test_a_dry_run_of_gathering_writes_nothing(halves: Path, tmp_path: Path) -> None:
    done = asked("--gather", halves, tmp_path / "whole", "-n")
    assert done.exit_code == 0
    assert done.stdout.endswith("and 3 more\nnothing was written\n")
    assert os.listdir(tmp_path) == []


def test_a_missing_part_is_named(halves: Path, tmp_path: Path) -> None:
    shutil.copytree(halves, tmp_path / "halves")
    (tmp_path / "halves" / "rank-1" / "model.safetensors").unlink()
    message = refusal("--gather", tmp_path / "halves", tmp_path / "whole")
    assert (
        "the sharded checkpoint is not complete: rank 1: rank-1/model.safetensors is missing"
        in message
    )


def test_an_altered_part_is_named_and_nothing_written(halves: Path, tmp_path: Path) -> None:
    shutil.copytree(halves, tmp_path / "halves")
    part = tmp_path / "halves" / "rank-1" / "model.safetensors"
    extent = open_weights(part).header.extents[O_PROJ]
    with part.open("r+b") as file:
        file.seek(extent.offset + 1000)
        byte = file.read(1)
        file.seek(extent.offset + 1000)
        file.write(bytes([byte[0] ^ 1]))
    message = refusal("--gather", tmp_path / "halves", tmp_path / "whole")
    assert f"altered since it was written: rank 1: `{O_PROJ}` in {part}" in message
    assert not (tmp_path / "whole").exists()


def test_parts_are_put_together_in_their_own_format(halves: Path, tmp_path: Path) -> None:
    out = tmp_path / "whole.gguf"
    message = refusal("--gather", halves, out)
    assert "--gather does not change the format" in message
    assert f"hint: to write gguf, use `weightctl convert {halves} {out}`" in message
    bare = tmp_path / "out"
    message = refusal("--gather", halves, bare, "--to", "gguf")
    assert f"hint: to write gguf, use `weightctl convert {halves} {bare}.gguf`" in message
    assert "to write to a pipe, use" in refusal("--gather", halves, "-")


@pytest.mark.parametrize(
    "command", [("shard", "again", "--tp", "1"), ("convert", "whole.safetensors")]
)
def test_nothing_is_made_of_a_set_in_which_a_part_is_altered(
    command: tuple[str, ...], weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    parts = tmp_path / "parts"
    assert weightctl("shard", tiny_llama, parts, "--tp", "2").returncode == 0
    path = parts / "rank-1" / "model.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    name, out, *options = command
    done = weightctl(name, parts, tmp_path / out, *options)
    assert done.returncode == 2
    assert "altered since it was written: rank 1: `" in done.stderr
    assert {each.name for each in tmp_path.iterdir()} == {"parts"}
