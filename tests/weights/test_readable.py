"""Tensors that can be listed, but are refused before their bytes are read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from typer.testing import CliRunner

from build import F32, Gguf, Tensor, entry, safetensors, safetensors_of
from each import each
from lazy import torch
from weightctl.cli import app
from weightctl.errors import EncodingError, WeightctlError
from weightctl.formats.open.opening import open_weights

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

SIXTEEN = ("F32", (4,), bytes(16))
READING = (
    "ls {} --hash",
    "ls {} --json --hash",
    "diff {} {} --hash",
    "convert {} out.safetensors",
    "convert {} out.gguf --dtype f16",
    "convert {} out.pt --dry-run",
    "verify {} --check finite",
    "verify {} --against {} --check values",
)
OTHER_READING = ("verify {} --against {} --skip structure", "shard {} out --tp 2 --plan plan.toml")


def ran(folder: Path, command: str) -> Result:
    """Run a command in a directory; `{}` is replaced by the checkpoint."""
    (folder / "plan.toml").write_text("[tensors]\n'.' = 'replicate'\n")
    return CliRunner().invoke(app, command.format("a", "a").split())


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("word", ["w", "", "f32"])
def test_an_unknown_dtype_is_listed_as_that(folder: Path, word: str) -> None:
    (folder / "a").write_bytes(safetensors_of({"x": SIXTEEN, "u": (word, (4,), bytes(16))}))
    done = ran(folder, "ls {} --flat")
    assert done.exit_code == 0
    assert f'unknown dtype "{word}"' in done.output


@each("command", [*READING, *OTHER_READING])
@each("word", ["w", "", "f32"])
def test_what_reads_an_unknown_dtype_refuses_it(folder: Path, command: str, word: str) -> None:
    (folder / "a").write_bytes(safetensors_of({"x": SIXTEEN, "u": (word, (4,), bytes(16))}))
    done = ran(folder, command)
    assert isinstance(done.exception, WeightctlError)
    assert f'unknown dtype "{word}"' in done.exception.message
    assert {each.name for each in folder.iterdir()} == {"a", "plan.toml"}


def test_an_unknown_dtype_is_a_problem_of_the_structure(folder: Path) -> None:
    (folder / "a").write_bytes(safetensors_of({"u": ("w", (4,), bytes(16))}))
    done = ran(folder, "verify {} --check structure")
    assert done.exit_code == 1
    assert 'does not support (unknown dtype "w")' in done.output


def test_an_unknown_type_of_gguf_is_not_hashed(folder: Path) -> None:
    tensors = [Tensor("x", (4,), F32, bytes(16)), Tensor("u", (4,), 77, bytes(16))]
    (folder / "a").write_bytes(Gguf().file(tensors))
    assert isinstance(ran(folder, "ls {} --hash").exception, EncodingError)
    assert ran(folder, "ls {} --hash --exclude u").exit_code == 0


@pytest.mark.parametrize("blank", [b" ", b"\n\t \r", b" " * 200])
def test_a_header_that_begins_with_white_space_is_read_with_a_note(
    folder: Path, blank: bytes
) -> None:
    header = blank + b'{"x":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}'
    (folder / "a").write_bytes(safetensors(header, bytes(16)))
    weights = open_weights("a")
    assert weights.header.format == "safetensors"
    assert np.array_equal(weights["x"].data().to_numpy(), np.zeros(4, np.float32))
    assert "begins with white space" in "".join(weights.header.notes)


def test_a_header_without_white_space_has_no_note(folder: Path) -> None:
    (folder / "a").write_bytes(safetensors({"x": entry("F32", [4], 0, 16)}, bytes(16)))
    assert open_weights("a").header.notes == ()


def expanded(path: Path, *shape: int) -> None:
    """Write a tensor whose elements are all the same stored element."""
    torch.save({"x": torch.ones(1).expand(*shape), "y": torch.ones(4)}, path)


@pytest.mark.parametrize("command", ["ls {}", "ls {} --flat", "diff {} {}", "ls {} --json"])
def test_a_tensor_of_repeated_elements_is_listed_with_its_size(folder: Path, command: str) -> None:
    expanded(folder / "a", 1 << 22, 1 << 22)
    assert ran(folder, command).exit_code == 0


@pytest.mark.parametrize("command", [*READING, *OTHER_READING, "verify {}"])
def test_a_tensor_that_is_far_larger_than_its_file_is_refused_with_its_size(
    folder: Path, command: str
) -> None:
    expanded(folder / "a", 1 << 22, 1 << 22)
    done = ran(folder, command.replace("out.pt", "out.safetensors").replace(
        "2 --plan", "2 --to safetensors --plan"
    ))  # fmt: skip
    assert isinstance(done.exception, EncodingError)
    assert (
        "`x` of shape [4194304, 4194304] needs 70.4 TB, and all tensors need 70.4 TB"
        in done.exception.message
    )
    assert {each.name for each in folder.iterdir()} == {"a", "plan.toml"}


def test_many_tensors_that_are_together_far_larger_than_their_file_are_refused(
    folder: Path,
) -> None:
    one = torch.ones(1)
    torch.save({str(n): one.expand(n + 1, 1 << 22) for n in range(20)}, folder / "a")
    done = ran(folder, "convert {} out.safetensors")
    assert isinstance(done.exception, EncodingError)
    assert "and all tensors need 3.52 GB" in done.exception.message


def test_a_tensor_that_is_expanded_within_reason_is_converted(folder: Path) -> None:
    expanded(folder / "a", 512, 512)
    assert ran(folder, "convert {} out.safetensors").exit_code == 0
    assert open_weights("out.safetensors")["x"].data().to_numpy().sum() == 512 * 512
    assert ran(folder, "ls {} --hash").exit_code == 0


def test_what_is_left_out_need_not_be_readable(folder: Path) -> None:
    expanded(folder / "a", 1 << 22, 1 << 22)
    assert ran(folder, "convert {} out.safetensors --exclude x").exit_code == 0
    assert ran(folder, "ls {} --hash --exclude x").exit_code == 0
