"""A sharded set opens if its files match its manifest; otherwise the error names the others."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

import build
from sharded_files import bytes_for, contents_of, document_of, write_document, write_whole
from weightctl import open_weights
from weightctl.dtype import ENCODINGS
from weightctl.errors import FormatError
from weightctl.formats.sharded.opening import MANIFEST
from weightctl.weights.info import TensorInfo

if TYPE_CHECKING:
    from pathlib import Path


def test_unfinished_shards_are_said_to_be(parts: Path) -> None:
    changed = document_of(parts)
    changed["ranks"][1]["tensors"][2]["sha256"] = ""
    write_document(changed, parts)
    with pytest.raises(
        FormatError, match="the sharded checkpoint is incomplete: the run that wrote it was stopped"
    ) as raised:
        open_weights(parts)
    assert "run the same `weightctl shard` command again to complete it" in raised.value.hint


def opening_error(parts: Path) -> FormatError:
    with pytest.raises(FormatError) as raised:
        open_weights(parts)
    assert raised.value.path == str(parts / MANIFEST)
    assert raised.value.hint
    return raised.value


def test_a_rank_that_is_missing_is_named(parts: Path) -> None:
    (parts / "rank-1" / "model.gguf").unlink()
    error = opening_error(parts)
    assert error.reason == (
        "the sharded checkpoint is not complete: rank 1: rank-1/model.gguf is missing"
    )


def test_all_that_is_missing_is_reported_at_once(parts: Path) -> None:
    for rank in (0, 1):
        shutil.rmtree(parts / f"rank-{rank}")
    assert opening_error(parts).reason.splitlines() == [
        "the sharded checkpoint is not complete:",
        "  rank 0: rank-0/model.gguf is missing",
        "  rank 1: rank-1/model.gguf is missing",
    ]


def test_a_file_that_is_cut_off_is_named(parts: Path) -> None:
    path = parts / "rank-1" / "model.gguf"
    path.write_bytes(path.read_bytes()[:-40])
    reason = opening_error(parts).reason
    assert "rank 1: rank-1/model.gguf" in reason
    assert "past the file" in reason or "ends" in reason


def test_a_file_of_another_rank_or_run_is_named_with_its_tensors(parts: Path) -> None:
    info = TensorInfo("w", (3, 6), ENCODINGS["F32"])
    other = TensorInfo("v", (2,), ENCODINGS["F32"])
    contents = {each.name: (each, bytes_for(each)) for each in (info, other)}
    write_whole(parts / "rank-0" / "model.gguf", "gguf", contents, {})
    assert opening_error(parts).reason.splitlines()[1:] == [
        "  rank 0: rank-0/model.gguf: `norm` is missing",
        "  rank 0: rank-0/model.gguf: `w` is F32 [3, 6], but the manifest states F32 [2, 6]",
        "  rank 0: rank-0/model.gguf: `q` is missing",
        "  rank 0: rank-0/model.gguf: `v` is not in the manifest",
    ]


def test_a_file_of_another_type_is_named_with_its_tensor(parts: Path) -> None:
    infos = [
        TensorInfo("norm", (4,), ENCODINGS["F32"]),
        TensorInfo("w", (2, 6), ENCODINGS["I32"]),
        TensorInfo("q", (1, 64), ENCODINGS["Q8_0"]),
    ]
    contents = {each.name: (each, bytes_for(each)) for each in infos}
    write_whole(parts / "rank-1" / "model.gguf", "gguf", contents, {})
    assert opening_error(parts).reason == (
        "the sharded checkpoint is not complete: rank 1: rank-1/model.gguf: `w` is I32 "
        "[2, 6], but the manifest states F32 [2, 6]"
    )


def test_of_many_differences_the_first_are_reported(parts: Path) -> None:
    contents = {
        f"t{number}": (info, bytes_for(info))
        for number in range(20)
        for info in [TensorInfo(f"t{number}", (1,), ENCODINGS["F32"])]
    }
    write_whole(parts / "rank-1" / "model.gguf", "gguf", contents, {})
    *_, last = opening_error(parts).reason.splitlines()
    assert last == "  ... and 18 more"


@pytest.mark.parametrize("rank", [0, 1])
def test_a_link_to_itself_is_not_a_file(rank: int, parts: Path) -> None:
    path = parts / f"rank-{rank}" / "model.gguf"
    path.unlink()
    path.symlink_to(path)
    assert f"rank {rank}: rank-{rank}/model.gguf: Too many levels" in opening_error(parts).reason


def test_a_directory_in_the_place_of_a_file_is_named(parts: Path) -> None:
    path = parts / "rank-0" / "model.gguf"
    path.unlink()
    path.mkdir()
    assert "rank 0: rank-0/model.gguf: it is not a regular file" in opening_error(parts).reason


def test_a_file_of_another_format_is_named(parts: Path) -> None:
    info = TensorInfo("norm", (4,), ENCODINGS["F32"])
    contents = {"norm": (info, bytes_for(info))}
    write_whole(parts / "rank-0" / "model.gguf", "safetensors", contents, {})
    assert "rank 0: rank-0/model.gguf" in opening_error(parts).reason


def test_a_file_in_another_byte_order_is_named(parts: Path) -> None:
    tensors = [
        build.Tensor("norm", (4,), build.F32, bytes(16)),
        build.Tensor("w", (2, 6), build.F32, bytes(48)),
        build.Tensor("q", (1, 64), build.Q8_0, bytes(68)),
    ]
    (parts / "rank-0" / "model.gguf").write_bytes(build.Gguf(order=">").file(tensors))
    reason = opening_error(parts).reason
    assert "rank 0: rank-0/model.gguf: the file is big-endian, but files of sharded" in reason


def test_links_to_files_elsewhere_are_followed(
    parts: Path, two_ranks: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "kept.gguf"
    shutil.move(parts / "rank-0" / "model.gguf", kept)
    (parts / "rank-0" / "model.gguf").symlink_to(kept)
    assert contents_of(parts) == contents_of(two_ranks)


def test_the_manifest_itself_may_be_named(two_ranks: Path) -> None:
    assert open_weights(two_ranks / MANIFEST).header == open_weights(two_ranks).header


def test_the_format_that_is_asked_for_is_that_of_the_files(two_ranks: Path) -> None:
    assert open_weights(two_ranks, "gguf").header.format == "gguf"
    with pytest.raises(FormatError, match="the shards are gguf") as raised:
        open_weights(two_ranks, "safetensors")
    assert "--from gguf" in raised.value.hint
