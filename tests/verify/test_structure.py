"""The findings of the check of structure in files that can be opened, and what it accepts."""

from __future__ import annotations

import argparse
import hashlib
import json
import pickle
import shutil
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import build
from arrays import weights_of
from each import each
from lazy import torch
from sharded_files import (
    bytes_for,
    document_of,
    gathered,
    on_ranks,
    plan_of,
    two_ranks,
    write_document,
    write_shards,
    write_whole,
)
from weightctl import Plan, open_weights
from weightctl.dtype import ENCODINGS
from weightctl.plan.arrangement import split
from weightctl.split import Grid
from weightctl.verify import Request, Result, Subject, verify_request
from weightctl.verify.checks.structure import ask_reader, check, check_total, scan_pickles
from weightctl.verify.figures import StructureFigures
from weightctl.weights.info import TensorInfo
from weightctl.write.save import save

if TYPE_CHECKING:
    from weightctl.weights.info import Header


def checked(path: Path) -> Result:
    return check(Request(subject=Subject(path)))


def list_problems(result: Result) -> list[tuple[str, str]]:
    return [(problem.where, problem.text) for problem in result.problems]


def figures(result: Result) -> StructureFigures:
    assert isinstance(result.figures, StructureFigures)
    return result.figures


def sharded(path: Path, format_name: str = "safetensors", parts: int = 3) -> Path:
    arrays = {f"layers.{n}.weight": np.ones((8, 32), np.float32) for n in range(parts)}
    save(split(Plan.copy(weights_of(arrays), format_name), 1100), path)
    return path


def edited(path: Path, change: Any) -> None:
    document = json.loads(path.read_bytes())
    change(document)
    path.write_text(json.dumps(document))


def test_a_sound_model_has_no_problems(tiny_llama: Path) -> None:
    result = checked(tiny_llama)
    assert (result.problems, result.notes, result.skipped) == ((), (), "")
    assert figures(result) == StructureFigures(
        files=1, nbytes=3_873_400, tensors=30, readers={"safetensors": None}
    )


def test_a_real_gguf_with_a_large_vocabulary_has_no_problems(smollm2: Path) -> None:
    result = checked(smollm2)
    assert (result.problems, result.notes) == ((), ())
    assert figures(result).readers == {"gguf": None}


@each("prefix", ["", "sha256-"])
def test_a_file_of_a_cache_that_has_changed_is_a_problem(tmp_path: Path, prefix: str) -> None:
    save(Plan.copy(weights_of({"w": np.ones((8, 32), np.float32)}), "gguf"), tmp_path / "a.gguf")
    content = (tmp_path / "a.gguf").read_bytes()
    blob = tmp_path / f"{prefix}{hashlib.sha256(content).hexdigest()}"
    blob.write_bytes(content)
    link = tmp_path / f"{prefix}.gguf"
    link.symlink_to(blob)
    assert checked(link).problems == ()
    blob.write_bytes(content[:-100] + bytes(100))
    (problem,) = checked(link).problems
    assert problem.where == str(link)
    assert "has changed since it was downloaded" in problem.text


def test_a_sound_set_of_parts_has_no_problems(tmp_path: Path) -> None:
    result = checked(sharded(tmp_path / "model"))
    assert result.problems == ()
    assert (figures(result).files, figures(result).tensors) == (3, 3)


def test_a_total_size_that_is_not_that_of_the_parts_is_a_problem(tmp_path: Path) -> None:
    index = sharded(tmp_path / "model") / "model.safetensors.index.json"
    edited(index, lambda document: document["metadata"].update(total_size=3073))
    ((where, text),) = list_problems(checked(tmp_path / "model"))
    assert where == str(index)
    assert "`total_size` is 3,073, and the tensors of all parts have 3,072 bytes" in text


@each("size", [3072.0, "3072", None, True, [3072]])
def test_a_total_size_that_is_right_or_no_number_is_none(size: Any, tmp_path: Path) -> None:
    index = sharded(tmp_path / "model") / "model.safetensors.index.json"
    edited(index, lambda document: document["metadata"].update(total_size=size))
    assert list(check_total(open_weights(tmp_path / "model").header)) == []


def test_an_index_that_a_tensor_is_missing_from_is_a_problem(tmp_path: Path) -> None:
    index = sharded(tmp_path / "model") / "model.safetensors.index.json"
    edited(index, lambda document: document["weight_map"].pop("layers.1.weight"))
    result = verify_request(Request(subject=Subject(tmp_path / "model")), ["structure"])
    assert "layers.1.weight" in result.problems[0].text or "parts" in result.problems[0].text


def test_a_file_that_is_cut_off_is_one_problem_that_names_it(
    tiny_llama: Path, tmp_path: Path
) -> None:
    shutil.copytree(tiny_llama, tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    report = verify_request(Request(subject=Subject(tmp_path / "model")))
    (problem,) = report.problems
    assert (problem.check, problem.where) == ("structure", str(file))
    assert report.results["names"].skipped == "the files cannot be opened"


def test_an_encoding_that_nobody_knows_is_a_problem(tmp_path: Path) -> None:
    path = tmp_path / "strange.gguf"
    path.write_bytes(build.Gguf().file([build.Tensor("a", (4,), 99, bytes(32))]))
    found = dict(list_problems(checked(path)))
    assert "that weightctl does not support (gguf type 99)" in found["a"]
    assert "`gguf.GGUFReader` refuses the file" in found[str(path)]


def test_a_name_that_llama_cpp_cannot_hold_is_a_problem(tmp_path: Path) -> None:
    path = tmp_path / "long.gguf"
    tensors = [build.Tensor("n" * size, (4,), build.F32, bytes(16)) for size in (63, 64)]
    path.write_bytes(build.Gguf().file(tensors))
    assert [where for where, _ in list_problems(checked(path))] == ["n" * 64]


def test_thousands_of_problems_are_twenty_and_a_number(tmp_path: Path) -> None:
    path = tmp_path / "long.gguf"
    names = [f"{number:064}" for number in range(3000)]
    tensors = [build.Tensor(name, (4,), build.F32, bytes(16)) for name in names]
    path.write_bytes(build.Gguf().file(tensors))
    found = list_problems(checked(path))
    assert len(found) == 21
    assert found[-1] == ("", "2980 more names are too long for llama.cpp")


def test_bytes_that_nothing_uses_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "longer.gguf"
    tensor = build.Tensor("a", (8,), build.F32, bytes(32))
    path.write_bytes(build.Gguf().file([tensor]) + bytes(100))
    result = checked(path)
    assert (result.problems, result.notes) == (
        (),
        ("100 bytes after the last tensor are not used",),
    )


def test_tensors_that_start_between_elements_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "crooked.safetensors"
    header = {"a": build.entry("U8", [1], 0, 1), "b": build.entry("F32", [1], 1, 5)}
    raw = json.dumps(header)
    path.write_bytes(build.safetensors(raw.ljust(len(raw) + -len(raw) % 8).encode(), bytes(5)))
    (note,) = checked(path).notes
    assert note.startswith("`b` starts at an offset that is not a multiple of the element size")


def test_a_file_without_tensors_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "nothing.gguf"
    path.write_bytes(build.Gguf().file([]))
    assert any("there are no tensors" in note for note in checked(path).notes)


@each("version", [2, 3])
def test_a_big_endian_gguf_is_read_by_others_and_told(version: int, tmp_path: Path) -> None:
    path = tmp_path / "big.gguf"
    tokens = ("array[string]", ["é" * (number % 5) for number in range(3000)])
    tensors = [build.Tensor("a", (2, 4), build.F32, bytes(32))]
    path.write_bytes(build.Gguf(version, ">").file(tensors, {"tokenizer.ggml.tokens": tokens}))
    result = checked(path)
    assert (result.problems, figures(result).readers) == ((), {"gguf": None})
    assert "big-endian" in result.notes[0]


# Reading with other programs' readers, and what their errors become.


SHAPED = {"a": ("F32", (2, 3), bytes(24)), "b": ("BF16", (5,), bytes(10))}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.safetensors"
    path.write_bytes(build.safetensors_of(SHAPED))
    return path


def header_of(path: Path) -> Header:
    return open_weights(path).header


@pytest.mark.usefixtures("own_children")
def test_a_reader_that_sees_what_we_see_says_nothing(small: Path) -> None:
    assert ask_reader(header_of(small)) == ("safetensors", (), "")


def test_a_reader_that_sees_something_else_is_a_problem_of_each_tensor(small: Path) -> None:
    header = header_of(small)
    other = small.with_name("other.safetensors")
    other.write_bytes(
        build.safetensors_of({"a": ("F32", (3, 2), bytes(24)), "c": ("F16", (5,), bytes(10))})
    )
    found = ask_reader(header._replace(files=(str(other),)))
    assert [(each.where, each.text) for each in found.problems] == [
        ("a", "`safetensors.safe_open` reads the shape [3, 2], and weightctl [2, 3]"),
        ("b", "`safetensors.safe_open` does not find it"),
        ("c", "`safetensors.safe_open` finds it, and weightctl does not"),
    ]


def test_of_many_tensors_the_first_are_named_and_the_file_has_the_others(small: Path) -> None:
    names = [f"layers.{number}" for number in range(25)]
    small.write_bytes(build.safetensors_of(dict.fromkeys(names, ("F32", (2,), bytes(8)))))
    header = header_of(small)
    small.write_bytes(build.safetensors_of(dict.fromkeys(names, ("I32", (2,), bytes(8)))))
    *named, last = ask_reader(header).problems
    assert [each.where for each in named] == names[:20]
    assert last.where == str(small)
    assert last.text == "`safetensors.safe_open` reads 5 more tensors differently"


def test_another_type_of_the_same_size_is_a_problem(small: Path) -> None:
    header = header_of(small)
    small.write_bytes(small.read_bytes().replace(b'"BF16"', b'"F16" '))
    (problem,) = ask_reader(header).problems
    assert (problem.where, problem.text) == (
        "b",
        "`safetensors.safe_open` reads F16, and weightctl BF16",
    )


def test_what_a_reader_refuses_is_a_problem_of_the_file(small: Path) -> None:
    header = header_of(small)
    small.write_bytes(small.read_bytes()[:-1])
    (problem,) = ask_reader(header).problems
    assert problem.where == str(small)
    assert problem.text.startswith("`safetensors.safe_open` refuses the file: ")


def test_of_several_files_the_first_that_a_reader_refuses_is_named(tmp_path: Path) -> None:
    parts = [tmp_path / f"model-0000{number}-of-00002.bin" for number in (1, 2)]
    for number, part in enumerate(parts):
        torch.save({f"w{number}": torch.zeros(2), "args": argparse.Namespace(rate=1)}, part)
    found = ask_reader(header_of(parts[0]))
    assert found.reason.startswith("refuses model-00001-of-00002.bin: it also contains")
    assert found.reason.endswith("(and 1 more)")
    assert [problem.where for problem in found.problems] == [*map(str, parts)]


def test_what_a_reader_says_in_many_lines_is_one(small: Path) -> None:
    header = header_of(small)
    small.write_bytes(small.read_bytes()[:-1])
    found = ask_reader(header)
    assert found.reason.startswith("refuses small.safetensors: ")
    assert "\n" not in f"{found.reason}{found.problems[0].text}"


@pytest.mark.usefixtures("own_children")
def test_a_reader_that_takes_too_long_is_reported_and_no_problem(small: Path) -> None:
    found = ask_reader(header_of(small), seconds=0.001)
    assert (found.problems, found.reason) == ((), "did not answer within 0.001 seconds")
    assert found.notes == [f"`safetensors.safe_open` did not read the files: {found.reason}"]


@pytest.mark.usefixtures("own_children")
def test_a_reader_that_does_not_start_is_reported_and_no_problem(small: Path) -> None:
    found = ask_reader(header_of(small), memory=1 << 20)
    assert (found.problems, found.reason.startswith("cannot be started: ")) == ((), True)


def test_what_a_reader_may_take_of_memory_is_bounded() -> None:
    code = (
        "from weightctl.system.children import limit_process;"
        "limit_process(1 << 28, mapped=16 << 30); bytearray(1 << 29)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stderr.endswith("MemoryError\n")


@pytest.mark.usefixtures("own_children")
def test_an_old_gguf_that_a_reader_does_not_know_is_reported_and_no_problem(tmp_path: Path) -> None:
    path = tmp_path / "old.gguf"
    path.write_bytes(build.Gguf(1).file([build.Tensor("a", (8,), build.F32, bytes(32))]))
    result = check(Request(subject=Subject(path)))
    assert result.problems == ()
    assert "version 1 which we cannot handle" in result.notes[0]


def test_a_module_of_a_models_directory_is_not_taken_for_a_reader(small: Path) -> None:
    (small.parent / "safetensors.py").write_text("raise SystemExit('taken')")
    code = (
        "from weightctl import open_weights;"
        "from weightctl.verify.checks.structure import ask_reader;"
        "print(ask_reader(open_weights('small.safetensors').header))"
    )
    run = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=small.parent, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert run.stdout.strip() == "Answer(reader='safetensors', problems=(), reason='')"


@pytest.mark.usefixtures("own_children")
def test_torch_sees_what_we_see_in_checkpoints_of_either_form(tmp_path: Path) -> None:
    nested = OrderedDict(model={"w": torch.zeros(2, 3)}, steps=[torch.zeros(4).bfloat16()], n=1)
    torch.save(nested, tmp_path / "model-00001-of-00002.bin")
    flat = {"x": torch.zeros(3, 2).t(), "y": torch.zeros((), dtype=torch.int64)}
    torch.save(flat, tmp_path / "model-00002-of-00002.bin", _use_new_zipfile_serialization=False)
    header = header_of(tmp_path / "model-00001-of-00002.bin")
    assert len(header.tensors) == 4
    assert ask_reader(header) == ("torch", (), "")


def test_what_torch_refuses_is_said_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "trained.pt"
    torch.save({"w": torch.zeros(2, 3), "args": argparse.Namespace(rate=1)}, path)
    found = check(Request(subject=Subject(path)))
    (problem,) = found.problems
    assert problem.text == (
        "`torch.load(weights_only=True)` refuses the file: it also contains an "
        "`argparse.Namespace`; `weightctl convert IN OUT.pt` keeps what can be loaded"
    )
    why = "; torch: refuses trained.pt: it also contains an `argparse.Namespace`"
    assert found.summary.endswith(why)


def test_a_pickle_that_names_what_no_weights_need_is_a_problem_and_given_to_nobody(
    tiny_llama: Path,
) -> None:
    attack = tiny_llama.parent / "attack.pt"
    result = check(Request(subject=Subject(attack)))
    (problem,) = result.problems
    assert problem.where == str(attack)
    assert "names `posix.system`, which weights do not need" in problem.text


def test_a_pickle_of_anything_else_is_not_given_to_torch(tmp_path: Path) -> None:
    path = tmp_path / "plain.pkl"
    path.write_bytes(pickle.dumps({"a": 1}, protocol=2))
    found = scan_pickles(header_of(path))
    assert found == ((), "not tried, because the file is a pickle that `torch.save` did not write")


# Shards that were changed after they were written are found, and files are read elsewhere.


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    return two_ranks(tmp_path)


def zeroed(parts: Path, rank: int, name: str) -> str:
    """Turn the last byte of a tensor in a rank's file; return the path."""
    header = gathered(parts).ranks[rank]
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
    assert figures.readers == {"gguf": None}


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
    source = gathered(parts)
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
