"""`weightctl shard`: its output, the files that it writes, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import shutil
from typing import TYPE_CHECKING

import pytest

import small_checkpoints
from commands import O_PROJ, TINY, asked, document, refusal
from conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]


def test_it_says_what_it_has_written(weightctl: Run, tmp_path: Path) -> None:
    done = weightctl("shard", TINY, "out", "--tp", "2", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stderr == ""
    *lines, time_taken = done.stdout.splitlines()
    size = (tmp_path / "out" / "rank-0" / "model.safetensors").stat().st_size
    assert lines == [
        f"{TINY} -> out (safetensors, 2 ranks: tp 2)",
        "30 tensors, 3.87 MB: 23 split, 7 replicated; copies add 3.58 kB",
        f"2 files, {2 * size / 1e6:.2f} MB in total",
        f"  rank-[0-1]/model.safetensors: 30 tensors, {size / 1e6:.2f} MB each",
        "other files in each directory: config.json, tokenizer.json and 3 more",
    ]
    assert re.fullmatch(r"\d+\.\d s, .*B/s", time_taken)
    assert sorted(os.listdir(tmp_path)) == ["out"]


def test_a_dry_run_shows_who_gets_what_and_writes_nothing(tmp_path: Path) -> None:
    done = asked(TINY, tmp_path / "out", "--tp", "2", "--pp", "3", "-n")
    assert done.exit_code == 0
    assert re.search(
        r"o_proj\.weight .* head_aware_columnwise +256x128 on 0-1$", done.stdout, re.MULTILINE
    )
    assert re.search(r"lm_head\.weight .* rowwise +256x256 on 4-5$", done.stdout, re.MULTILINE)
    assert done.stdout.endswith("\nnothing was written\n")
    assert os.listdir(tmp_path) == []


def test_a_dry_run_that_cannot_be_carried_out_is_shown_and_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    done = asked(TINY, tmp_path, "--tp", "2", "--dry-run")
    assert "nothing was written" in done.stdout
    assert f"{tmp_path} exists and is not empty" in str(done.exception)
    assert "--force does not replace notes.txt" in str(done.exception)
    assert "are not part of the output: notes.txt" in refusal(
        TINY, tmp_path, "--tp", "2", "-n", "--force"
    )


def test_a_dry_run_knows_the_files_to_the_byte(tmp_path: Path) -> None:
    out = tmp_path / "out"
    planned = document(TINY, out, "--tp", "6", "--pp", "2", "-n")
    done = document(TINY, out, "--tp", "6", "--pp", "2")
    assert (planned["written"], done["written"]) == (False, True)
    assert planned["files"] == done["files"]
    assert planned["seconds"] is planned["kept_bytes"] is None
    assert done["seconds"] > 0
    assert done["kept_bytes"] == 0
    for file in done["files"]:
        assert (out / file["name"]).stat().st_size == file["bytes"]


def test_quiet_prints_nothing(tmp_path: Path) -> None:
    cut = asked(TINY, tmp_path / "out", "--tp", "2", "--quiet")
    put_together = asked("--gather", tmp_path / "out", tmp_path / "whole", "-q")
    assert [cut.output, put_together.output] == ["", ""]
    assert (tmp_path / "whole" / "model.safetensors").is_file()


def test_a_plan_of_ones_own_decides_and_the_family_on_the_rest(tmp_path: Path) -> None:
    rules = ROOT / "fixtures" / "shard.toml"
    done = asked(TINY, tmp_path / "out", "--tp", "2", "--plan", rules, "--json", "-n")
    strategies = {each["name"]: each["strategy"] for each in json.loads(done.stdout)["tensors"]}
    assert strategies["lm_head.weight"] == "replicate"
    assert strategies[O_PROJ] == "head_aware_columnwise"
    assert strategies["model.layers.0.mlp.down_proj.weight"] == "columnwise"
    note = (
        r"note: \d+ weights match no pattern of the plan file: they are split as usual for llama\n"
    )
    assert re.fullmatch(note, done.stderr)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("{tiny}", "the number of ranks is missing"),
        ("{tiny} out", "the number of ranks is missing"),
        ("{tiny} --tp 2", "OUT is missing\n  hint: weightctl shard MODEL OUT --tp N"),
        (
            "{tiny} out --tp 0",
            "--tp 0 is not a number of ranks\n  hint: use an integer of at least 1, or auto",
        ),
        ("{tiny} out --tp two", "--tp two is not a number of ranks"),
        ("{tiny} out --tp 99999999999", "99,999,999,999 ranks are too many"),
        ("{tiny} out --tp 99999 --pp 3", "299,997 ranks are too many"),
        ("{tiny} out --ep 2", "the model has no experts, which cannot be divided among 2 groups"),
        ("{tiny} out --pp 4", "the model has 3 layers, which cannot be divided among 4 stages"),
        ("{tiny} out --tp auto", "--tp auto cannot be combined with"),
        ("{tiny} --tp auto --pp 2 --to gguf", "hint: remove --pp and --to"),
        ("{tiny} out --tp 2 --plan nowhere.toml", "cannot read the plan nowhere.toml"),
        ("{tiny} out --tp 2 --to none", "`none` is not a supported format"),
        ("{tiny} out --tp 2 --to pytorch", "shards can only be written as safetensors or GGUF"),
        ("{tiny} out.safetensors --tp 2", "out.safetensors has the suffix of a file"),
        ("{tiny} - --tp 2", "stdout accepts one file, but a sharded checkpoint has several files"),
        ("nowhere out --tp 2", "nowhere: No such file or directory"),
        ("nowhere --tp auto", "nowhere: No such file or directory"),
        ("{readme} out --tp 2", "not a checkpoint that weightctl can read: it is text"),
        (
            "{training} out --tp 2",
            ("; to split by your own rules, use --plan FILE (rules=FILE in Python)"),
        ),
        ("--gather {tiny}", "OUT is missing\n  hint: weightctl shard --gather DIR OUT"),
        ("--gather {tiny} whole", "is not a sharded checkpoint: it has no manifest"),
        ("--gather nowhere whole", "nowhere: No such file or directory"),
        (
            "--gather {tiny} whole --tp 2",
            "reads from the manifest how the tensors are split\n  hint: remove --tp",
        ),
        ("--gather {tiny} whole --layout vllm", "hint: remove --layout"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_can(arguments: str, message: str) -> None:
    fixtures = ROOT / "fixtures"
    places = {"tiny": TINY, "readme": fixtures / "README.md", "training": fixtures / "training.pt"}
    assert message in refusal(*arguments.format(**places).split())


def test_the_input_and_what_holds_it_are_not_an_output(tmp_path: Path) -> None:
    shutil.copytree(TINY, tmp_path / "model")
    for out in (tmp_path / "model", tmp_path):
        message = refusal(tmp_path / "model", out, "--tp", "2", "--force")
        assert "holds" in message
    assert sorted(os.listdir(tmp_path)) == ["model"]
    assert sorted(os.listdir(tmp_path / "model")) == sorted(os.listdir(TINY))


def test_names_cannot_hide_anything(tmp_path: Path) -> None:
    folder = small_checkpoints.small(tmp_path, "sm\x1b[31mall")
    rules = tmp_path / "plan.toml"
    rules.write_text("[tensors]\n'proj' = 'rowwise'\n")
    done = asked(folder, "out", "--tp", "2", "--plan", rules, "-n")
    assert done.exit_code == 0
    assert "\x1b" not in done.stdout
    assert "sm\\x1b[31mall -> out" in done.stdout
