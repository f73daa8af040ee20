"""Distributed checkpoints of torch are read as one tree, and are written as torch loads them."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save, save_file

from distributed_files import (
    assert_equals_torch,
    load_with_torch,
    raw,
    read_all,
    write_pieces,
)
from lazy import torch
from weightctl import convert, open_weights
from weightctl.errors import ConversionError, FormatError
from weightctl.weights.info import Leaf

FIXTURES = Path(__file__).parent.parent.parent / "fixtures"
DISTRIBUTED = FIXTURES / "distributed"
# torch warns that it loads in one process.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")

ROWS = torch.arange(12.0).reshape(4, 3)


@pytest.mark.parametrize("name", ["two", "four", "two-by-two", "huggingface"])
def test_tensors_of_several_processes_equal_those_that_torch_loads(name: str) -> None:
    assert_equals_torch(DISTRIBUTED / name)


@pytest.mark.long
def test_a_checkpoint_of_four_new_processes_equals_what_torch_loads(tmp_path: Path) -> None:
    program = [sys.executable, "-W", "ignore", str(FIXTURES / "make_distributed.py")]
    subprocess.run([*program, str(tmp_path), "two-by-two"], check=True, capture_output=True)
    assert_equals_torch(tmp_path / "two-by-two")


def test_other_entries_are_leaves() -> None:
    leaves = open_weights(DISTRIBUTED / "two").header.leaves
    assert leaves["step"] == Leaf("int", "3")
    assert leaves["names.0"] == Leaf("str", "a")


@pytest.mark.parametrize("inside", [".metadata", "__0_0.distcp"])
def test_each_file_opens_the_whole_checkpoint(inside: str) -> None:
    folder = DISTRIBUTED / "two"
    assert read_all(open_weights(folder / inside)) == read_all(open_weights(folder))


def test_a_read_of_a_part_touches_only_its_chunks(tmp_path: Path) -> None:
    folder = write_pieces(tmp_path / "in", (4, 3), [((0, 0), ROWS[:2]), ((2, 0), ROWS[2:])])
    tree = open_weights(folder)
    damaged = folder / "__0_0.distcp"
    damaged.write_bytes(bytes(damaged.stat().st_size))
    buffer = bytearray(12)
    tree.source.read_into("a", 24, memoryview(buffer))
    assert bytes(buffer) == raw(ROWS[2])
    with pytest.raises(FormatError, match="the saved data of `a` are invalid"):
        tree.source.read_into("a", 12, memoryview(buffer))


@pytest.mark.parametrize(
    ("pieces", "reason"),
    [
        ([((0, 0), ROWS[:2])], r"the chunks have 6 of 12 elements"),
        ([((0, 0), ROWS[:3]), ((2, 0), ROWS[2:])], r"the chunks at \[0, 0\] and \[2, 0\] overlap"),
        ([((1, 0), ROWS)], r"the chunk at \[1, 0\] of shape \[4, 3\] is not within"),
        ([((0,), ROWS)], "a chunk has 2 dimensions, and the tensor has 2|invalid|dimensions"),
    ],
)
def test_chunks_that_do_not_cover_the_tensor_once_are_refused(
    pieces: Any, reason: str, tmp_path: Path
) -> None:
    folder = write_pieces(tmp_path / "in", (4, 3), pieces)
    with pytest.raises(FormatError, match=reason):
        open_weights(folder)


def test_missing_files_are_named(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(DISTRIBUTED / "four", tmp_path / "in"))
    (folder / "__2_0.distcp").unlink()
    with pytest.raises(FormatError, match=r"1 of 4 files .* is missing: __2_0.distcp"):
        open_weights(folder)


def test_files_that_are_too_short_are_refused(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(DISTRIBUTED / "two", tmp_path / "in"))
    os.truncate(folder / "__1_0.distcp", 100)
    with pytest.raises(FormatError, match="which has 100 bytes"):
        open_weights(folder)


def test_a_chunk_of_another_shape_is_refused(tmp_path: Path) -> None:
    folder = write_pieces(tmp_path / "in", (4, 3), [((0, 0), ROWS)])
    other = write_pieces(tmp_path / "other", (3, 4), [((0, 0), ROWS.reshape(3, 4))])
    shutil.copy(other / "__0_0.distcp", folder)
    with pytest.raises(FormatError, match=r"the chunk of `a` is F32 \[3, 4\], and the metadata"):
        open_weights(folder).source.read_into("a", 0, memoryview(bytearray(48)))


class Runs:
    """An object whose pickle calls `os.mkdir`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self._path),))


def test_a_malicious_pickle_runs_nothing_and_is_reported(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    folder = write_pieces(tmp_path / "in", (4, 3), [((0, 0), ROWS)], attack=Runs(mark))
    tree = open_weights(folder)
    assert read_all(tree)["a"] == ((4, 3), raw(ROWS))
    assert not mark.exists()
    assert "can run code, because its pickle names posix.mkdir" in tree.header.warnings[0]
    # The pickle does run code in Python.
    pickle.loads((folder / ".metadata").read_bytes())
    assert mark.exists()


@pytest.mark.parametrize("path", ["../out.distcp", "/etc/passwd", "a/../../b"])
def test_a_file_outside_of_the_directory_is_refused(path: str, tmp_path: Path) -> None:
    folder = write_pieces(tmp_path / "in", (4, 3), [((0, 0), ROWS)])
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    next(iter(metadata.storage_data.values())).relative_path = path
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(FormatError, match="a file outside of its directory"):
        open_weights(folder)


def test_a_pickle_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(FormatError, match="it does not describe a distributed checkpoint"):
        open_weights(tmp_path)


@pytest.mark.parametrize("shard_size", [None, "1MB"])
def test_torch_loads_what_is_written(shard_size: str | None, tmp_path: Path) -> None:
    source = open_weights(FIXTURES / "tiny-llama")
    out = tmp_path / "out"
    convert(FIXTURES / "tiny-llama", out, to="dcp", max_shard_size=shard_size)
    loaded = load_with_torch(out)
    expected = read_all(source)
    assert {name: (tuple(each.shape), raw(each)) for name, each in loaded.items()} == expected
    assert read_all(open_weights(out)) == expected
    assert len([*out.glob("*.distcp")]) == (1 if shard_size is None else 5)


def test_what_is_written_can_have_another_type(tmp_path: Path) -> None:
    convert(FIXTURES / "tiny-llama", tmp_path / "out", to="dcp", dtype="f16")
    types = {each.dtype for each in load_with_torch(tmp_path / "out").values()}
    assert types == {torch.float16}


def test_tied_weights_are_stored_once_under_both_names(tmp_path: Path) -> None:
    tied = torch.arange(6.0)
    torch.save({"a": tied, "b": tied}, tmp_path / "tied.pt")
    convert(tmp_path / "tied.pt", tmp_path / "out", to="dcp")
    assert {name: raw(each) for name, each in load_with_torch(tmp_path / "out").items()} == {
        "a": raw(tied), "b": raw(tied),
    }  # fmt: skip
    header = open_weights(tmp_path / "out").header
    assert (list(header.tensors), dict(header.aliases)) == (["a"], {"b": "a"})


def test_huggingface_files_of_a_missing_rank_are_named(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(DISTRIBUTED / "huggingface", tmp_path / "in"))
    next(folder.glob("shard-00001-*")).unlink()
    with pytest.raises(FormatError, match="are missing: shard-00001"):
        open_weights(folder)


@pytest.mark.parametrize("out", ["out.other", "-"])
def test_the_output_is_a_directory(out: str, tmp_path: Path) -> None:
    path = out if out == "-" else tmp_path / out
    with pytest.raises(ConversionError, match="dcp output is a directory, not a file"):
        convert(FIXTURES / "tiny-llama", path, to="dcp")


def test_an_output_is_replaced_with_force(tmp_path: Path) -> None:
    torch.save({"a": ROWS}, tmp_path / "a.pt")
    torch.save({"b": ROWS}, tmp_path / "b.pt")
    convert(tmp_path / "a.pt", tmp_path / "out", to="dcp")
    convert(tmp_path / "b.pt", tmp_path / "out", to="dcp", force=True)
    assert [*open_weights(tmp_path / "out").header.tensors] == ["b"]
    assert sorted(os.listdir(tmp_path / "out")) == [".metadata", "__0_0.distcp"]


def test_metadata_that_the_format_cannot_store_are_reported(tmp_path: Path) -> None:
    save_file({"a": np.zeros(2)}, tmp_path / "a.safetensors", metadata={"format": "pt", "by": "me"})
    planned = convert(tmp_path / "a.safetensors", f"{tmp_path}/out/", to="dcp", dry_run=True)
    assert "the format dcp stores no metadata; not kept: `by`" in planned.notes
    (tmp_path / "b.safetensors").write_bytes(save({"a": np.zeros(2)}))
    planned = convert(tmp_path / "b.safetensors", f"{tmp_path}/out/", to="dcp", dry_run=True)
    assert not any("dcp" in note for note in planned.notes)
