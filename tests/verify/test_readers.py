"""Reading with other programs' readers, and what their errors become."""

from __future__ import annotations

import argparse
import pickle
import subprocess
import sys
from collections import OrderedDict
from typing import TYPE_CHECKING

import pytest
import torch

import build
from weightctl import open_weights
from weightctl.verify import Request, Subject
from weightctl.verify.checks.structure import check, reader_process
from weightctl.verify.checks.structure.readers import ask_reader, scan_pickles

if TYPE_CHECKING:
    from pathlib import Path

    from weightctl.weights.info import Header

SHAPED = {"a": ("F32", (2, 3), bytes(24)), "b": ("BF16", (5,), bytes(10))}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.safetensors"
    path.write_bytes(build.safetensors_of(SHAPED))
    return path


def header_of(path: Path) -> Header:
    return open_weights(path).header


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


def test_the_line_of_the_structure_names_the_reader_that_refuses_the_file_and_why(
    tmp_path: Path,
) -> None:
    path = tmp_path / "trained.pt"
    torch.save({"w": torch.zeros(2, 3), "args": argparse.Namespace(rate=1)}, path)
    line = check(Request(subject=Subject(path))).summary
    assert line.endswith("; torch: refuses trained.pt: it also contains an `argparse.Namespace`")


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


def test_a_reader_that_takes_too_long_is_reported_and_no_problem(small: Path) -> None:
    found = ask_reader(header_of(small), seconds=0.001)
    assert (found.problems, found.reason) == ((), "did not answer within 0.001 seconds")
    assert found.notes == [f"`safetensors.safe_open` did not read the files: {found.reason}"]


def test_a_reader_that_does_not_start_is_reported_and_no_problem(small: Path) -> None:
    found = ask_reader(header_of(small), memory=1 << 20)
    assert (found.problems, found.reason.startswith("cannot be started: ")) == ((), True)


def test_what_a_reader_may_take_of_memory_is_bounded() -> None:
    code = (
        "import runpy, sys; program = runpy.run_path(sys.argv[1]);"
        "program['limit_memory'](1 << 28); bytearray(1 << 29)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, reader_process.__file__],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stderr.endswith("MemoryError\n")


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
        "from weightctl.verify.checks.structure.readers import ask_reader;"
        "print(ask_reader(open_weights('small.safetensors').header))"
    )
    run = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=small.parent, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert run.stdout.strip() == "Answer(reader='safetensors', problems=(), reason='')"


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
    (problem,) = ask_reader(header_of(path)).problems
    assert problem.text == (
        "`torch.load(weights_only=True)` refuses the file: it also contains an "
        "`argparse.Namespace`; `weightctl convert IN OUT.pt` keeps what can be loaded"
    )


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
