"""Shards that were changed after they were written are found, and files are read elsewhere."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import build
from sharded_files import (
    bytes_for,
    document_of,
    on_ranks,
    plan_of,
    two_ranks,
    write_document,
    write_shards,
    write_whole,
)
from weightctl import open_weights
from weightctl.dtype import ENCODINGS
from weightctl.formats.sharded.gathered import GatheredSource
from weightctl.split import Grid
from weightctl.verify import Request, Subject
from weightctl.verify.checks.structure import check
from weightctl.verify.checks.structure.readers import ask_reader
from weightctl.verify.figures import StructureFigures
from weightctl.weights.info import TensorInfo

if TYPE_CHECKING:
    from weightctl.verify import Result


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    return two_ranks(tmp_path)


def checked(path: Path) -> Result:
    return check(Request(subject=Subject(path)))


def set_of(path: Path) -> GatheredSource:
    source = open_weights(path).source
    assert isinstance(source, GatheredSource)
    return source


def zeroed(parts: Path, rank: int, name: str) -> str:
    """Turn the last byte of a tensor in a rank's file; return the path."""
    header = set_of(parts).ranks[rank]
    extent = header.extents[name]
    with Path(header.files[0]).open("r+b") as file:
        file.seek(extent.offset + extent.nbytes - 1)
        (last,) = file.read(1)
        file.seek(extent.offset + extent.nbytes - 1)
        file.write(bytes([255 - last]))
    return header.files[0]


def test_a_sound_set_has_no_problems_and_all_its_files_are_counted(parts: Path) -> None:
    result = checked(parts)
    assert (result.problems, result.notes) == ((), ())
    figures = result.figures
    assert isinstance(figures, StructureFigures)
    sizes = [path.stat().st_size for path in parts.rglob("*.gguf")]
    assert (figures.files, figures.nbytes, figures.tensors) == (2, sum(sizes), 3)
    assert figures.readers == {"gguf": ""}


@pytest.mark.parametrize("name", ["norm", "w", "q"])
@pytest.mark.parametrize("rank", [0, 1])
def test_an_altered_part_is_named_with_its_rank_and_file(rank: int, name: str, parts: Path) -> None:
    path = zeroed(parts, rank, name)
    (problem,) = checked(parts).problems
    assert problem.where == name
    assert problem.text == (
        f"the values on rank {rank} were changed: the SHA-256 in {path} is not that of the manifest"
    )
    assert problem.hint


def test_of_many_altered_parts_the_first_are_named(tmp_path: Path) -> None:
    infos = [TensorInfo(f"t{number}", (1,), ENCODINGS["F32"]) for number in range(30)]
    contents = {info.name: (info, bytes_for(info)) for info in infos}
    path = write_whole(tmp_path / "whole", "safetensors", contents, {})
    parts = write_shards(plan_of(open_weights(path), Grid(2)), tmp_path / "parts")
    document = document_of(parts)
    for entry in document["ranks"][1]["tensors"]:
        entry["sha256"] = "0" * 64
    write_document(document, parts)
    *named, last = checked(parts).problems
    assert [problem.where for problem in named] == [f"t{number}" for number in range(20)]
    assert (last.where, last.text) == (str(parts / "manifest.json"), "10 more shards were changed")


def test_progress_is_reported_up_to_where_the_readers_begin(parts: Path) -> None:
    reported: list[tuple[str, float]] = []
    check(Request(subject=Subject(parts), progress=lambda *each: reported.append(each)))
    shares = [done for doing, done in reported if doing == "reading the files of all ranks"]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(0.2)


def test_a_set_without_a_byte_is_not_a_problem(tmp_path: Path) -> None:
    info = TensorInfo("empty", (0, 4), ENCODINGS["F32"])
    path = write_whole(tmp_path / "whole", "safetensors", {"empty": (info, b"")}, {})
    parts = write_shards(plan_of(open_weights(path), Grid(2)), tmp_path / "parts")
    assert checked(parts).problems == ()


def test_what_a_reader_says_of_the_file_of_a_rank_is_reported_for_that_file(parts: Path) -> None:
    source = set_of(parts)
    path = Path(source.ranks[1].files[0])
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    (refused,) = ask_reader(*source.ranks).problems
    assert refused.where == str(path)
    path.write_bytes(whole.replace(b"norm", b"form"))
    missing, other = ask_reader(*source.ranks).problems
    assert (missing.where, missing.text) == ("norm", "`gguf.GGUFReader` does not find it")
    assert (other.where, other.text) == (
        "form",
        "`gguf.GGUFReader` finds it, and weightctl does not",
    )


def test_ranks_that_have_other_tensors_are_each_read_as_they_are(tmp_path: Path) -> None:
    tensors = {"first": ("F32", (2,), bytes(8)), "last": ("BF16", (3, 2), bytes(12))}
    (tmp_path / "whole").write_bytes(build.safetensors_of(tensors, {"format": "pt"}))
    plan = plan_of(
        open_weights(tmp_path / "whole"),
        Grid(1, 1, 2),
        lambda whole, count: on_ranks((), [int(whole.name == "last")], count),
    )
    parts = write_shards(plan, tmp_path / "parts")
    result = checked(parts)
    assert (result.problems, result.notes) == ((), ())


def test_a_manifest_that_lies_beside_other_files_is_read_all_the_same(parts: Path) -> None:
    shutil.copy(parts / "rank-0" / "model.gguf", parts / "other.gguf")
    assert checked(parts).problems == ()
