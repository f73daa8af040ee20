"""The output of `diff` for people and scripts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import small_checkpoints
from terminal import on_a_terminal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]


def differences(done: Completed) -> dict[str, Any]:
    return {each["name"]: each for each in json.loads(done.stdout)["differences"]}


def test_the_same_is_not_a_difference_in_any_format(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.gguf"
    assert weightctl("convert", tiny_llama, copy, "--names", "keep", "--quiet").returncode == 0
    done = weightctl("diff", tiny_llama, copy)
    assert (done.returncode, done.stderr) == (0, "")
    first, second, summary = done.stdout.splitlines()
    assert (first, second) == (f"A: {tiny_llama} (llama, safetensors)", f"B: {copy} (gguf)")
    assert summary == "30 tensors, no difference; --hash and --values compare bytes and values"
    done = weightctl("diff", tiny_llama, copy, "--hash")
    assert done.stdout.splitlines()[2] == "30 tensors, no difference"
    assert done.returncode == 0


def test_other_encodings_are_shown_folded(weightctl: Run, tiny_llama: Path, tmp_path: Path) -> None:
    quantized = tmp_path / "q.gguf"
    asked = "--quant", "q8_0", "--names", "keep", "-q"
    assert weightctl("convert", tiny_llama, quantized, *asked).returncode == 0
    done = weightctl("diff", tiny_llama, quantized, "--exclude", "*norm*")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[-1] == "23 of 23 tensors differ: 23 in encoding"
    assert re.match(r"  +layers\.\[0-2\]  x3 +3 x 7 tensors$", lines[6])
    assert re.match(r"~ +down_proj\.weight +256x512 +BF16 -> Q8_0$", lines[8])


def test_tensors_of_one_side_and_other_shapes_are_shown(weightctl: Run, tmp_path: Path) -> None:
    one = small_checkpoints.write(
        tmp_path,
        "one",
        {"a": small_checkpoints.numbers("F32", 2), "b": small_checkpoints.numbers("F32", 3)},
    )
    other = small_checkpoints.write(
        tmp_path,
        "other",
        {"b": small_checkpoints.numbers("BF16", 4), "c": small_checkpoints.numbers("F32", 5)},
    )
    done = weightctl("diff", one, other)
    assert done.returncode == 1
    assert done.stdout.splitlines()[3:] == [
        "- a       2  F32",
        "~ b  3 -> 4  F32 -> BF16",
        "+ c       5  F32",
        "",
        "3 of 3 tensors differ: 1 only in A, 1 only in B, 1 in shape, 1 in encoding",
    ]
    found = differences(weightctl("diff", one, other, "--json"))
    assert found["a"]["second"] is None
    assert found["b"]["of"] == ["shape", "encoding"]
    assert found["b"]["first"] == {"shape": [3], "encoding": "F32", "bits_per_weight": None}
    assert found["c"]["first"] is None


def test_bytes_are_compared_with_hash(weightctl: Run, tmp_path: Path) -> None:
    def checkpoint(name: str, seed: int) -> Path:
        tensors = {
            "a": small_checkpoints.numbers("F32", 8),
            "b": small_checkpoints.numbers("F32", 8, seed=seed),
        }
        return small_checkpoints.write(tmp_path, name, tensors)

    one, other = checkpoint("one", 1), checkpoint("other", 2)
    assert weightctl("diff", one, other).returncode == 0
    done = weightctl("diff", one, other, "--hash")
    assert done.returncode == 1
    assert done.stdout.splitlines()[3:] == [
        "~ b  8  F32  bytes differ",
        "",
        "1 of 2 tensors differs: 1 in bytes",
    ]


def test_a_weight_in_parts_is_compared_as_one(weightctl: Run, tmp_path: Path) -> None:
    quantized = small_checkpoints.awq(tmp_path)
    plain = small_checkpoints.write(
        tmp_path,
        "plain",
        {
            "model.layers.0.mlp.up_proj.weight": small_checkpoints.numbers("F16", 512, 256),
            "model.layers.0.self_attn.q_proj.weight": small_checkpoints.numbers("F16", 256, 128),
        },
    )
    done = weightctl("diff", quantized, plain, "--include", "*layers.0.*_proj*", "--json")
    found = differences(done)
    up = found["model.layers.0.mlp.up_proj.weight"]
    assert (up["of"], up["first"]["encoding"]) == (["encoding"], "AWQ 4-bit")
    assert found["model.layers.0.self_attn.q_proj.weight"]["of"] == ["shape", "encoding"]


def test_every_part_of_a_weight_is_hashed(weightctl: Run, tmp_path: Path) -> None:
    one, other = small_checkpoints.awq(tmp_path, "one"), small_checkpoints.awq(tmp_path, "other")
    path = other / "model.safetensors"
    raw = bytearray(path.read_bytes())
    document = json.loads(
        weightctl("ls", other, "--json", "--include", "*0.*up_proj.qzeros").stdout
    )
    raw[document["tensors"][0]["offset"]] ^= 1
    path.write_bytes(raw)
    found = differences(weightctl("diff", one, other, "--hash", "--json"))
    assert {name: each["of"] for name, each in found.items()} == {
        "model.layers.0.mlp.up_proj.weight": ["bytes"]
    }


def test_a_tied_name_counts_with_what_it_is_tied_to(weightctl: Run, tmp_path: Path) -> None:
    stored = {
        "model.embed_tokens.weight": small_checkpoints.numbers("F32", 8, 4),
        "lm_head.weight": small_checkpoints.numbers("F32", 8, 4),
    }
    untied = small_checkpoints.write(tmp_path, "untied", stored)
    done = weightctl("diff", small_checkpoints.tied(tmp_path), untied, "--hash")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "2 tensors, no difference")


def test_quiet_only_has_its_exit_code(weightctl: Run, tmp_path: Path) -> None:
    small, awq = small_checkpoints.small(tmp_path), small_checkpoints.awq(tmp_path)
    different = weightctl("diff", small, awq, "--quiet")
    assert (different.returncode, different.stdout, different.stderr) == (1, "", "")
    same = weightctl("diff", small, small, "--quiet")
    assert (same.returncode, same.stdout, same.stderr) == (0, "", "")


def test_a_note_says_where_no_name_is_in_both(weightctl: Run, tmp_path: Path) -> None:
    done = weightctl("diff", small_checkpoints.small(tmp_path), small_checkpoints.gguf(tmp_path))
    assert done.returncode == 1
    assert "A and B have no tensor name in common" in done.stderr
    assert "in common" not in weightctl("diff", tmp_path / "small", tmp_path / "small").stderr


def test_a_missing_checkpoint_is_an_error(weightctl: Run, tmp_path: Path) -> None:
    done = weightctl("diff", small_checkpoints.small(tmp_path), tmp_path / "missing")
    assert (done.returncode, done.stdout) == (2, "")
    assert "missing: No such file" in done.stderr


def test_signs_have_colors_on_a_terminal(tmp_path: Path) -> None:
    small_checkpoints.small(tmp_path)
    small_checkpoints.awq(tmp_path)
    shown = on_a_terminal(80, "diff", "small", "awq", cwd=tmp_path)
    assert "\x1b[31m-   norm.weight" in shown
    assert "\x1b[32m+     mlp.up_proj" in shown
    assert "\x1b[33m~   embed_tokens" in shown


def test_a_choice_of_nothing_is_not_sameness(weightctl: Run, tiny_llama: Path) -> None:
    done = weightctl("diff", tiny_llama, tiny_llama, "--include", "nothing*")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no tensor of A or B matches --include and --exclude" in done.stderr


def test_a_reader_that_stops_early_does_not_hide_what_went_wrong(tiny_llama: Path) -> None:
    command = [sys.executable, "-m", "weightctl", "ls", "nowhere", str(tiny_llama), "--flat"]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(command, stdout=write, stderr=subprocess.DEVNULL, check=False)
    os.close(write)
    assert done.returncode == 2
