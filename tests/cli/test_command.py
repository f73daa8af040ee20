"""The command as a whole: options before the subcommand, completion, and help."""

from __future__ import annotations

import json
import shutil
import time
from typing import TYPE_CHECKING

import pytest

import small_checkpoints
from weightctl.cli import COMMANDS
from weightctl.cli.usage import unknown_command_error

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]


def test_a_path_alone_is_listed(weightctl: Run, tmp_path: Path) -> None:
    small_checkpoints.small(tmp_path)
    listed = weightctl("ls", "small", "--flat", cwd=tmp_path)
    assert weightctl("small", "--flat", cwd=tmp_path).stdout == listed.stdout
    assert weightctl("./small", cwd=tmp_path).stdout.startswith("./small: llama")
    assert weightctl(".", cwd=tmp_path / "small").stdout.startswith(".: llama")


def test_a_misspelled_path_is_not_an_unknown_command(weightctl: Run) -> None:
    done = weightctl("modle.gguf")
    assert done.returncode == 2
    assert done.stderr.startswith("error: modle.gguf: No such file or directory")


def test_a_misspelled_command_suggests_the_right_one(weightctl: Run) -> None:
    done = weightctl("lss")
    assert done.returncode == 2
    assert done.stderr == (
        "error: `lss` is neither a command nor an existing file\n"
        "hint: did you mean `weightctl ls`? commands: ls, stat, show, diff, apply, convert, "
        "imatrix, merge, extract, shard, edit, check, verify, tasks; "
        "`weightctl --help` describes them\n"
    )


MEANT = {
    "info": "`weightctl ls MODEL`",
    "stats": "`weightctl stat MODEL`",
    "print": "`weightctl show MODEL TENSOR`",
    "list": "`weightctl ls MODEL`",
    "Inspect": "`weightctl ls MODEL`",
    "lora": "`weightctl merge MODEL ADAPTER OUT`",
    "svd": "`weightctl extract BASE TUNED OUT`",
    "gather": "`weightctl shard --gather DIR OUT`",
    "join": "`weightctl convert MODEL OUT`",
    "quantize": "`weightctl convert MODEL OUT.gguf --quant Q4_K_M`",
    "quantizze": "`weightctl convert MODEL OUT.gguf --quant Q4_K_M`",
    "split": "`weightctl convert MODEL OUT --max-shard-size 5GB`",
    "cut": "`weightctl shard MODEL OUT --tp 2`",
    "patch": "`weightctl apply MODEL PATCH OUT`",
    "delta": "`weightctl diff MODEL OTHER --patch FILE`",
    "version": "`weightctl --version`",
    "compare": "`weightctl diff MODEL OTHER`",
    "cmp": "`weightctl verify MODEL --against OTHER`",
    "lint": "`weightctl check MODEL`",
    "validate": "`weightctl verify MODEL`",
    "set": "`weightctl edit MODEL --set KEY=VALUE`",
    "rename": "`weightctl edit MODEL --rename OLD=NEW`",
    "scan": "`weightctl ls MODEL --scan`",
    "verfy": "`weightctl verify`",
    "nothing-like-it": "`weightctl --help`",
}


@pytest.mark.parametrize("typed", MEANT)
def test_an_unknown_command_gets_the_nearest_by_meaning_and_the_list(typed: str) -> None:
    error = unknown_command_error(typed, list(COMMANDS))
    assert error.message == f"`{typed}` is neither a command nor an existing file"
    assert MEANT[typed] in error.hint
    assert f"commands: {', '.join(COMMANDS)}" in error.hint


@pytest.mark.parametrize(
    ("typed", "error"),
    [
        ("convert a", "OUT is missing"),
        ("convert a b c d", "unexpected argument: c d"),
        ("ls a --bogus", "weightctl ls has no option `--bogus`"),
        ("--bogus", "weightctl has no option `--bogus`"),
        ("ls a --sort age", "--sort: 'age' is not one of 'name', 'size', 'offset'"),
        ("ls a --depth 0", "--depth: 0 is less than 1"),
        ("ls a --depth one", "--depth: `one` is not an integer"),
        ("convert a b --bpw x", "--bpw: `x` is not a number"),
        ("ls a --depth", "option '--depth' requires an argument"),
    ],
)
def test_a_call_that_is_not_valid_says_what_is_wrong_and_where_help_is(
    weightctl: Run, typed: str, error: str
) -> None:
    done = weightctl(*typed.split())
    assert done.returncode == 2
    assert done.stdout == ""
    first, hint = done.stderr.splitlines()
    assert first == f"error: {error}"
    assert "--help` describes the options" in hint


def test_a_command_is_one_even_where_a_file_has_its_name(weightctl: Run, tmp_path: Path) -> None:
    shutil.copy(small_checkpoints.gguf(tmp_path), tmp_path / "ls")
    assert "MODEL is missing" in weightctl("ls", cwd=tmp_path).stderr
    assert weightctl("ls", "ls", cwd=tmp_path).returncode == 0


def test_nothing_at_all_gets_the_help(weightctl: Run) -> None:
    done = weightctl()
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == weightctl("--help").stdout


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("weightctl ", list(COMMANDS)),
        ("weightctl ls --sort ", ["name", "size", "offset"]),
        ("weightctl model.gguf --sort ", ["name", "size", "offset"]),
        (
            "weightctl ls --from ",
            ["safetensors", "gguf", "pytorch", "whisper.cpp", "dcp", "npz", "keras"],
        ),
        ("weightctl convert --to ", ["safetensors", "gguf", "pytorch", "whisper.cpp", "dcp"]),
        ("weightctl shard --layout ", ["ranks", "vllm"]),
        ("weightctl shard --to ", ["safetensors", "gguf"]),
        ("weightctl shard --tp ", ["auto"]),
    ],
)
def test_the_shell_completes_what_is_typed(weightctl: Run, typed: str, offered: list[str]) -> None:
    done = weightctl(
        _WEIGHTCTL_COMPLETE="complete_bash", COMP_WORDS=typed, COMP_CWORD=str(typed.count(" "))
    )
    assert done.stdout.split() == offered


@pytest.mark.parametrize(
    "asked",
    ["convert tiny-llama out.gguf", "shard tiny-llama out --tp 2", "shard --gather set out"],
)
def test_the_time_of_a_summary_is_that_of_the_whole_command(
    weightctl: Run, tiny_llama: Path, tmp_path: Path, asked: str
) -> None:
    (tmp_path / "tiny-llama").symlink_to(tiny_llama)
    if "--gather" in asked:
        assert weightctl("shard", "tiny-llama", "set", "--tp", "2", cwd=tmp_path).returncode == 0
    started = time.monotonic()
    done = weightctl(*asked.split(), "--json", cwd=tmp_path)
    whole = time.monotonic() - started
    document = json.loads(done.stdout)
    # Imports alone take longer than a tenth of the whole; the writing of so little does not.
    assert whole / 4 < document["seconds"] < whole
    written = document["bytes_per_second"] * document["seconds"]
    assert written == pytest.approx(document["bytes"], rel=0.02)
