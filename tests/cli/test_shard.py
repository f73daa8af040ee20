"""`weightctl shard`: its output, the files that it writes, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

import small_checkpoints
from build import safetensors
from commands import O_PROJ, TINY, asked, document, refusal
from commands import run_command as weightctl
from conftest import ROOT
from each import each
from terminal import on_a_terminal
from weightctl import open_weights, recognize, save
from weightctl.dtype.types import parse_encoding
from weightctl.plan.cast import cast
from weightctl.sharding.planning import shard_plan
from weightctl.split import Grid
from weightctl.translate import translate
from weightctl.write.locks import find_journal
from weightctl.write.shard import save_shards

if TYPE_CHECKING:
    from pathlib import Path


def test_it_says_what_it_has_written(tmp_path: Path) -> None:
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


@each(
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


# `weightctl shard --tp auto`: which numbers of ranks are possible, and why others are not.


def test_a_number_that_cannot_be_names_the_tensor_and_numbers_that_work() -> None:
    message = refusal(TINY, "out", "--tp", "3")
    assert "`model.layers.0.self_attn.k_proj.weight` of shape [64, 256] cannot be split" in message
    assert "the model has 8 query heads and 2 KV heads (head size 32)" in message
    assert message.endswith("hint: 1, 2, 4, 6 or 8 ranks work")


def test_auto_shows_the_numbers_that_work_and_what_is_in_the_way_of_others() -> None:
    lines = asked(TINY, "--tp", "auto").stdout.splitlines()
    assert lines[:2] == [f"{TINY} can be split with --tp", ""]
    assert lines[2] == "  1-2, 4, 6, 8           works"
    assert lines[3].startswith("  3, 5, 7, 9-16, 32, 64  `model.layers.0.self_attn.k_proj.weight`")
    shown = document(TINY, "--tp", "auto")["possible"]
    assert [each["tp"] for each in shown if each["works"]] == [1, 2, 4, 6, 8]
    assert "across 3 ranks" in shown[2]["reason"]


def test_auto_names_a_rule_that_fails_once_for_all_numbers_of_ranks(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(
        "[tensors]\nk_proj = { strategy = 'stacked_qkv', heads = 4, kv_heads = 2, head_dim = 8 }\n"
    )
    lines = asked(TINY, "--tp", "auto", "--plan", rules).stdout.splitlines()
    assert lines[2:] == [
        "  1-2, 4           works",
        (
            f"  3, 5-16, 32, 64  {rules}: `k_proj`: `model.layers.0.self_attn.k_proj.weight` of "
            "shape [64, 256] cannot be split along axis 0: the model has 4 query heads and 2 KV "
            "heads (head size 8)"
        ),
    ]


def test_blocks_of_quantized_weights_are_in_the_way_too(tmp_path: Path) -> None:
    plan = translate(recognize(open_weights(TINY)), "gguf").plan("gguf")
    save(cast(plan, parse_encoding("q4_k")), tmp_path / "q.gguf")
    lines = asked(tmp_path / "q.gguf", "--tp", "auto").stdout.splitlines()
    assert re.fullmatch(r"  1 +works", lines[2])
    assert re.fullmatch(r"  2, 4, 6, 8 +`blk\.0\.attn_output\.weight`.*", lines[3])


def test_lines_of_auto_fit_a_terminal_or_the_width_that_is_asked_for(tmp_path: Path) -> None:
    shutil.copytree(TINY, tmp_path / "tiny")
    asked = ("shard", "tiny", "--tp", "auto")
    narrow = weightctl(*asked, cwd=tmp_path, COLUMNS="60").stdout
    assert max(map(len, narrow.splitlines())) <= 60
    assert on_a_terminal(60, *asked, cwd=tmp_path, NO_COLOR="1") == narrow


def test_auto_asks_a_plan_of_ones_own_too(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text("[tensors]\n'' = 'replicate'\n")
    shown = weightctl("shard", TINY, "--tp", "auto", "--plan", plan).stdout
    assert shown.splitlines()[-1] == "  1-16, 32, 64  works"
    plan.write_text("[tensors]\n'lm_head' = { strategy = 'axiswise', axis = 7 }\n")
    shown = weightctl("shard", TINY, "--tp", "auto", "--plan", plan).stdout
    assert "has no axis 7" in shown


# `weightctl shard --gather`: what it joins, and what it refuses to join.


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small llama, cut for two ranks."""
    path = tmp_path_factory.mktemp("sharded") / "halves"
    save_shards(shard_plan(open_weights(TINY), Grid(2)), path)
    return path


def test_a_cut_checkpoint_is_put_together_byte_for_byte(halves: Path, tmp_path: Path) -> None:
    done = asked("--gather", halves, tmp_path / "whole")
    assert done.exit_code == 0
    assert done.stdout.splitlines()[:4] == [
        f"{halves} -> {tmp_path / 'whole'} (safetensors)",
        "30 tensors from 2 ranks, 3.87 MB; the file takes 3.87 MB",
        "other files: config.json, tokenizer.json and 3 more",
        "all shards match the SHA-256 in the manifest",
    ]
    assert sorted(os.listdir(tmp_path / "whole")) == sorted(os.listdir(TINY))
    for name in os.listdir(TINY):
        assert (tmp_path / "whole" / name).read_bytes() == (TINY / name).read_bytes()


def test_a_dry_run_of_gathering_writes_nothing(halves: Path, tmp_path: Path) -> None:
    done = asked("--gather", halves, tmp_path / "whole", "-n")
    assert done.exit_code == 0
    assert done.stdout.endswith("and 3 more\nnothing was written\n")
    assert os.listdir(tmp_path) == []


def test_a_missing_part_is_named(halves: Path, tmp_path: Path) -> None:
    shutil.copytree(halves, tmp_path / "halves")
    (tmp_path / "halves" / "rank-1" / "model.safetensors").unlink()
    message = refusal("--gather", tmp_path / "halves", tmp_path / "whole")
    assert (
        "the sharded checkpoint is not complete: rank 1: rank-1/model.safetensors is missing"
        in message
    )


def test_an_altered_part_is_named_and_nothing_written(halves: Path, tmp_path: Path) -> None:
    shutil.copytree(halves, tmp_path / "halves")
    part = tmp_path / "halves" / "rank-1" / "model.safetensors"
    extent = open_weights(part).header.extents[O_PROJ]
    with part.open("r+b") as file:
        file.seek(extent.offset + 1000)
        byte = file.read(1)
        file.seek(extent.offset + 1000)
        file.write(bytes([byte[0] ^ 1]))
    message = refusal("--gather", tmp_path / "halves", tmp_path / "whole")
    assert f"altered since it was written: rank 1: `{O_PROJ}` in {part}" in message
    assert not (tmp_path / "whole").exists()


def test_parts_are_put_together_in_their_own_format(halves: Path, tmp_path: Path) -> None:
    out = tmp_path / "whole.gguf"
    message = refusal("--gather", halves, out)
    assert "--gather does not change the format" in message
    assert f"hint: to write gguf, use `weightctl convert {halves} {out}`" in message
    bare = tmp_path / "out"
    message = refusal("--gather", halves, bare, "--to", "gguf")
    assert f"hint: to write gguf, use `weightctl convert {halves} {bare}.gguf`" in message
    assert "to write to a pipe, use" in refusal("--gather", halves, "-")


@pytest.mark.parametrize(
    "command", [("shard", "again", "--tp", "1"), ("convert", "whole.safetensors")]
)
def test_nothing_is_made_of_a_set_in_which_a_part_is_altered(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    parts = tmp_path / "parts"
    assert weightctl("shard", TINY, parts, "--tp", "2").returncode == 0
    path = parts / "rank-1" / "model.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    name, out, *options = command
    done = weightctl(name, parts, tmp_path / out, *options)
    assert done.returncode == 2
    assert "altered since it was written: rank 1: `" in done.stderr
    assert {each.name for each in tmp_path.iterdir()} == {"parts"}


# A stopped `weightctl shard` reports how to continue, and continues.


def test_a_run_that_is_stopped_says_how_it_goes_on_and_it_does(tmp_path: Path) -> None:
    source, out, again = large_llama(tmp_path / "large"), tmp_path / "out", tmp_path / "again"
    note = stopped(source, out)
    journal = find_journal(str(out))
    assert journal is not None
    assert note == f"note: {journal} lists what is complete; the same command continues from there"
    assert not out.exists()
    partial = journal.removesuffix(".journal")
    message = refusal("--gather", partial, tmp_path / "whole")
    assert "the sharded checkpoint is incomplete: the run that wrote it was stopped" in message
    copy = partial.replace(str(out), str(again))
    shutil.copytree(partial, copy)
    shutil.copy(journal, f"{copy}.journal")
    lines = asked(source, out, "--tp", "2").stdout.splitlines()
    assert re.fullmatch(r"\S+ [kM]B were complete already, from a run that was stopped", lines[-2])
    done = document(source, again, "--pp", "2")
    assert done["kept_bytes"] == 0
    assert "plan" in done["started_over"]
    for path in (source, out, again):
        shutil.rmtree(path)


def large_llama(path: Path) -> Path:
    """Write a llama that takes a moment to cut, though nothing of it is on the disk."""
    path.mkdir()
    width, layers = 1024, 5
    shapes = {"model.embed_tokens.weight": (512, width), "model.norm.weight": (width,)}
    for layer in range(layers):
        for name in ("q", "k", "v", "o"):
            shapes[f"model.layers.{layer}.self_attn.{name}_proj.weight"] = (width, width)
        for name, shape in (("gate", (4 * width, width)), ("up", (4 * width, width)),
                            ("down", (width, 4 * width))):  # fmt: skip
            shapes[f"model.layers.{layer}.mlp.{name}_proj.weight"] = shape
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"model.layers.{layer}.{name}.weight"] = (width,)
    header: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [start, end]}
    raw = safetensors(header)
    with (path / "model.safetensors").open("wb") as file:
        file.write(raw)
        file.truncate(len(raw) + end)
    config = {
        "model_type": "llama", "hidden_size": width, "intermediate_size": 4 * width,
        "num_hidden_layers": layers, "num_attention_heads": 8, "num_key_value_heads": 8,
        "vocab_size": 512, "tie_word_embeddings": True, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 512,
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(config))
    return path


# The command, keeping a journal from its first moment, as runs that last long do.
JOURNALED = """
from weightctl.__main__ import main
from weightctl.write import journal
journal.BEGIN_AFTER = 0.0
main()
"""


def stopped(source: Path, out: Path) -> str:
    """Stop a run by Ctrl-C where some tensors are complete and others are not; return its words."""
    seconds = 0.05
    for _ in range(12):
        process = subprocess.Popen(
            [sys.executable, "-c", JOURNALED, "shard", source, out, "--tp", "2", "-j", "1"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        while process.poll() is None and not find_journal(str(out)):
            time.sleep(0.001)
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        message = process.communicate()[1]
        assert process.returncode in {0, 130}, message
        if find_journal(str(out)):
            return message.strip()
        seconds *= 1.5 if process.returncode else 0.6
        shutil.rmtree(out, ignore_errors=True)
    raise AssertionError("no moment was found at which some tensors are complete, and not all")
