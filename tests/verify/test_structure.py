"""The findings of the check of structure in files that can be opened, and what it accepts."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import build
from arrays import weights_of
from weightctl import Plan, open_weights
from weightctl.plan.arrangement import split
from weightctl.verify import Request, Result, Subject, verify
from weightctl.verify.checks.structure import check, check_total
from weightctl.verify.figures import StructureFigures
from weightctl.write.save import save

if TYPE_CHECKING:
    from pathlib import Path


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
        files=1, nbytes=3_873_400, tensors=30, readers={"safetensors": ""}
    )


def test_a_real_gguf_with_a_large_vocabulary_has_no_problems(smollm2: Path) -> None:
    result = checked(smollm2)
    assert (result.problems, result.notes) == ((), ())
    assert figures(result).readers == {"gguf": ""}


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


@pytest.mark.parametrize("size", [3072.0, "3072", None, True, [3072]])
def test_a_total_size_that_is_right_or_no_number_is_none(size: Any, tmp_path: Path) -> None:
    index = sharded(tmp_path / "model") / "model.safetensors.index.json"
    edited(index, lambda document: document["metadata"].update(total_size=size))
    assert list(check_total(open_weights(tmp_path / "model").header)) == []


def test_an_index_that_a_tensor_is_missing_from_is_a_problem(tmp_path: Path) -> None:
    index = sharded(tmp_path / "model") / "model.safetensors.index.json"
    edited(index, lambda document: document["weight_map"].pop("layers.1.weight"))
    result = verify(Request(subject=Subject(tmp_path / "model")), ["structure"])
    assert "layers.1.weight" in result.problems[0].text or "parts" in result.problems[0].text


def test_a_file_that_is_cut_off_is_one_problem_that_names_it(
    tiny_llama: Path, tmp_path: Path
) -> None:
    shutil.copytree(tiny_llama, tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    report = verify(Request(subject=Subject(tmp_path / "model")))
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


@pytest.mark.parametrize("version", [2, 3])
def test_a_big_endian_gguf_is_read_by_others_and_told(version: int, tmp_path: Path) -> None:
    path = tmp_path / "big.gguf"
    tokens = ("array[string]", ["é" * (number % 5) for number in range(3000)])
    tensors = [build.Tensor("a", (2, 4), build.F32, bytes(32))]
    path.write_bytes(build.Gguf(version, ">").file(tensors, {"tokenizer.ggml.tokens": tokens}))
    result = checked(path)
    assert (result.problems, figures(result).readers) == ((), {"gguf": ""})
    assert "big-endian" in result.notes[0]
