"""The metadata of a checkpoint, as a table and as single values."""

from __future__ import annotations

import json
import re
import tracemalloc
from typing import TYPE_CHECKING

import pytest

import small_checkpoints
from build import Gguf, safetensors_of
from terminal import on_a_terminal
from weightctl.cli.contents import Contents
from weightctl.cli.document import document
from weightctl.formats.open.opening import open_weights

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    return small_checkpoints.gguf(tmp_path)


def test_metadata_is_a_table_of_keys_types_and_values(weightctl: Run, gguf: Path) -> None:
    shown = weightctl("ls", gguf, "--meta").stdout
    title, amounts, _, _, _, *lines = shown.splitlines()
    assert title.endswith(": Small Model 1M, llama, gguf")
    assert amounts.startswith("3 tensors, ")
    table = {line.split()[0]: line.split(maxsplit=2)[1:] for line in lines}
    assert table["llama.rope.freq_base"] == ["f32", "10000"]
    assert table["llama.attention.causal"] == ["bool", "true"]
    assert table["tokenizer.ggml.scores"] == ["array[f32]", "[3] 0.5, -inf, -3.25"]
    assert table["tokenizer.ggml.empty"] == ["array[i32]", "[0]"]
    assert "token_embd" not in shown


def test_long_values_are_shortened_and_lines_stay_lines(weightctl: Run, gguf: Path) -> None:
    shown = weightctl("ls", gguf, "--meta").stdout
    for key, start in (("tokens", r"\[500\] tok0\\n, tok1\\n"), ("chat_template", r"{% for m")):
        (value,) = re.findall(rf"{key} +\S+ +({start}.*)", shown)
        assert len(value) == 120
        assert value.endswith("…")


@pytest.mark.parametrize("columns", [80, 200])
def test_values_are_shortened_to_the_terminal(gguf: Path, columns: int) -> None:
    shown = on_a_terminal(columns, "ls", gguf.name, "--meta", cwd=gguf.parent, NO_COLOR="1")
    assert max(map(len, shown.splitlines())) == columns


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("general.name", "Small Model 1M\n"),
        ("tokenizer.chat_template", "{% for m in messages %}\n" * 40 + "\n"),
        ("general.file_type", "7\n"),
        ("llama.context_length", "1099511627776\n"),
        ("llama.attention.causal", "true\n"),
        ("tokenizer.ggml.scores", '[0.5, "-inf", -3.25]\n'),
        ("tokenizer.ggml.empty", "[]\n"),
    ],
)
def test_the_value_of_a_key_is_all_that_is_printed(
    weightctl: Run, gguf: Path, key: str, shown: str
) -> None:
    assert weightctl("ls", gguf, "--meta", key).stdout == shown
    assert weightctl("ls", "--meta", key, gguf).stdout == shown
    assert weightctl("ls", f"--meta={key}", gguf).stdout == shown


def test_the_value_of_a_key_keeps_its_type_in_json(weightctl: Run, gguf: Path) -> None:
    done = weightctl("ls", gguf, "--meta", "tokenizer.ggml.scores", "--json")
    assert json.loads(done.stdout) == {"type": "array[f32]", "value": [0.5, "-inf", -3.25]}


def test_json_has_the_metadata_with_long_arrays_abbreviated(weightctl: Run, gguf: Path) -> None:
    metadata = json.loads(weightctl("ls", gguf, "--json").stdout)["metadata"]
    assert metadata["general.file_type"] == {"type": "u32", "value": 7}
    assert metadata["tokenizer.ggml.scores"] == {
        "type": "array[f32]", "value": [0.5, "-inf", -3.25]
    }  # fmt: skip
    assert metadata["tokenizer.ggml.tokens"] == {
        "type": "array[string]", "count": 500, "first": [f"tok{n}\n" for n in range(8)]
    }  # fmt: skip


def test_json_of_a_large_vocabulary_decodes_its_first_tokens_only(tmp_path: Path) -> None:
    path = tmp_path / "large.gguf"
    path.write_bytes(Gguf().file(values={"a": ("array[string]", ["token"] * 100_000)}))
    contents = Contents(open_weights(path), (), ())
    tracemalloc.start()
    try:
        made = document(str(path), contents, [], digests=None, whole_metadata=False)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert made["metadata"]["a"]["count"] == 100_000
    assert peak < 100_000


def test_json_without_metadata_has_an_empty_object(weightctl: Run, tmp_path: Path) -> None:
    path = tmp_path / "bare.safetensors"
    path.write_bytes(safetensors_of({"a": small_checkpoints.numbers("F32", 2)}))
    assert json.loads(weightctl("ls", path, "--json").stdout)["metadata"] == {}


def test_json_has_the_metadata_whole_where_it_is_asked_for(weightctl: Run, gguf: Path) -> None:
    metadata = json.loads(weightctl("ls", gguf, "--json", "--meta").stdout)["metadata"]
    assert metadata["general.file_type"] == {"type": "u32", "value": 7}
    assert len(metadata["tokenizer.ggml.tokens"]["value"]) == 500


def test_a_path_behind_meta_is_not_a_key(weightctl: Run, gguf: Path) -> None:
    assert "general.name" in weightctl("ls", "--meta", gguf).stdout
    assert "general.name" in weightctl("ls", "--meta", "small.gguf", cwd=gguf.parent).stdout
    done = weightctl("ls", "--meta", "smal.gguf", cwd=gguf.parent)
    assert done.stderr.startswith("error: smal.gguf: No such file")


def test_an_unknown_key_suggests_the_nearest(weightctl: Run, gguf: Path) -> None:
    done = weightctl("ls", gguf, "--meta", "general.nam")
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no metadata key `general.nam`" in done.stderr
    assert "hint: did you mean `general.name`?" in done.stderr


def test_several_checkpoints_give_their_values_in_order(weightctl: Run, tmp_path: Path) -> None:
    small_checkpoints.gguf(tmp_path)
    small_checkpoints.tied(tmp_path)
    done = weightctl("ls", "small.gguf", "tied", "small.gguf", "--meta", "general.name",
                     cwd=tmp_path)  # fmt: skip
    assert done.returncode == 2
    assert done.stdout == "Small Model 1M\n" * 2
    assert done.stderr.startswith("error: tied: there is no metadata key `general.name`")


def test_a_checkpoint_without_metadata_says_so(weightctl: Run, tmp_path: Path) -> None:
    path = tmp_path / "bare.safetensors"
    path.write_bytes(safetensors_of({"a": small_checkpoints.numbers("F32", 2)}))
    done = weightctl("ls", path, "--meta")
    assert done.returncode == 0
    assert done.stderr == f"note: {path}: the header has no metadata\n"


def test_metadata_and_lists_of_tensors_are_asked_for_apart(weightctl: Run, gguf: Path) -> None:
    done = weightctl("ls", gguf, "--meta", "--flat")
    assert done.returncode == 2
    assert "--meta shows metadata" in done.stderr


def test_a_value_cannot_write_to_the_terminal(weightctl: Run, tmp_path: Path) -> None:
    path = tmp_path / "evil.safetensors"
    metadata = {"evil": "a\x1b[2Jb\nc", "na\x1b[2Jme": "x"}
    path.write_bytes(safetensors_of({"a": small_checkpoints.numbers("F32", 2)}, metadata))
    assert "\x1b[2J" not in on_a_terminal(80, "ls", path, "--meta")
    assert "a\\x1b[2Jb\nc\n" in on_a_terminal(80, "ls", path, "--meta", "evil")
    # A script gets it as it is.
    assert weightctl("ls", path, "--meta", "evil").stdout == "a\x1b[2Jb\nc\n"
