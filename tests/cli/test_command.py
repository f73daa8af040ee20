"""The command as a whole: options before the subcommand, completion, and help."""

from __future__ import annotations

import json
import re
import shutil
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import small_checkpoints
from commands import TINY
from commands import run_command as weightctl
from documented import make_example_files, run
from each import each
from weightctl import cli as weightctl_cli
from weightctl.cli import COMMANDS, app
from weightctl.cli.help import describe, read_page
from weightctl.cli.usage import unknown_command_error
from weightctl.dtype import Encoding
from weightctl.formats import FORMATS
from weightctl.plan.recipe_lines import Recipe
from weightctl.plan.type_names import block_types, list_recipes, plain_types
from weightctl.plan.types import type_or_recipe
from weightctl.verify import CHECKS


def test_a_path_alone_is_listed(tmp_path: Path) -> None:
    small_checkpoints.small(tmp_path)
    listed = weightctl("ls", "small", "--flat", cwd=tmp_path)
    assert weightctl("small", "--flat", cwd=tmp_path).stdout == listed.stdout
    assert weightctl("./small", cwd=tmp_path).stdout.startswith("./small: llama")
    assert weightctl(".", cwd=tmp_path / "small").stdout.startswith(".: llama")


def test_a_misspelled_path_is_not_an_unknown_command() -> None:
    done = weightctl("modle.gguf")
    assert done.returncode == 2
    assert done.stderr.startswith("error: modle.gguf: No such file or directory")


def test_a_misspelled_command_suggests_the_right_one() -> None:
    done = weightctl("lss")
    assert done.returncode == 2
    assert done.stderr == (
        "error: `lss` is neither a command nor an existing file\n"
        "hint: did you mean `weightctl ls`? `weightctl --help` lists the commands\n"
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
    "fit": "`weightctl ls MODEL --fit 24GiB`",
    "chat": "`weightctl convert MODEL OUT.gguf`",
    "upload": "hf://ORG/NAME",
    "models": "`weightctl ls`",
    "nothing-like-it": "`weightctl --help`",
}


@each("typed", MEANT)
def test_an_unknown_command_gets_the_nearest_by_meaning_or_the_list(typed: str) -> None:
    error = unknown_command_error(typed, list(COMMANDS))
    assert error.message == f"`{typed}` is neither a command nor an existing file"
    assert MEANT[typed] in error.hint
    has_list = f"commands: {', '.join(COMMANDS)}" in error.hint
    assert has_list == (typed == "nothing-like-it")


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
    typed: str, error: str
) -> None:
    done = weightctl(*typed.split())
    assert done.returncode == 2
    assert done.stdout == ""
    first, hint = done.stderr.splitlines()
    assert first == f"error: {error}"
    assert "--help` describes the options" in hint


def test_a_command_is_one_even_where_a_file_has_its_name(tmp_path: Path) -> None:
    shutil.copy(small_checkpoints.gguf(tmp_path), tmp_path / "stat")
    assert "MODEL is missing" in weightctl("stat", cwd=tmp_path).stderr
    assert weightctl("stat", "stat", cwd=tmp_path).returncode == 0


def test_nothing_at_all_gets_the_help() -> None:
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
def test_the_shell_completes_what_is_typed(typed: str, offered: list[str]) -> None:
    done = weightctl(
        _WEIGHTCTL_COMPLETE="complete_bash", COMP_WORDS=typed, COMP_CWORD=str(typed.count(" "))
    )
    assert done.stdout.split() == offered


@pytest.mark.parametrize(
    "asked",
    ["convert tiny-llama out.gguf", "shard tiny-llama out --tp 2", "shard --gather set out"],
)
def test_the_time_of_a_summary_is_that_of_the_whole_command(tmp_path: Path, asked: str) -> None:
    (tmp_path / "tiny-llama").symlink_to(TINY)
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


# Help pages: their wrapping, what they list, and that their examples work.


EXAMPLE = re.compile(r"^  \$ ((?:.*\\\n)*.*)$", re.MULTILINE)
# What a user has before the first example of a page; the others make what later ones need.
BEFORE = {
    "": ["model", "model.gguf", "downloaded.pt"],
    "ls": ["model", "model.gguf", "checkpoint.pt"],
    "diff": ["model", "copy", "model.gguf"],
    "apply": ["model", "tuned.patch"],
    "convert": ["model", "recipe.toml"],
    "imatrix": ["model", "notes.txt"],
    "merge": ["model", "model.gguf", "adapter"],
    "extract": ["model", "tuned"],
    "shard": ["model", "rules.toml"],
    "edit": ["model", "model.gguf", "template.jinja"],
    "check": ["model", "model.gguf"],
    "verify": ["model", "model-q4.gguf", "model-q8.gguf"],
}


def help_of(name: str, columns: int = 80) -> str:
    done = weightctl("help", *name.split(), COLUMNS=str(columns))
    assert done.returncode == 0
    assert done.stderr == ""
    return done.stdout


@pytest.mark.usefixtures("short_texts")
@pytest.mark.parametrize("name", BEFORE)
def test_the_examples_of_each_help_page_work_one_after_the_other(name: str, tmp_path: Path) -> None:
    make_example_files(tmp_path, BEFORE[name])
    commands = EXAMPLE.findall(help_of(name).partition("Examples:")[2])
    assert len(commands) >= 3
    for command in commands:
        assert f"{command} ".startswith(f"weightctl {name}".rstrip() + " ")
        shown, code = run(command.replace("\\\n", " "), tmp_path)
        # The download is an attack, which a scan finds.
        expected = 1 if "downloaded.pt --scan" in command else 0
        assert code == expected, f"{command}\n{shown}"
        assert shown


@pytest.mark.parametrize("name", BEFORE)
def test_every_help_page_ends_in_examples_that_fit_80_columns(name: str) -> None:
    shown = help_of(name).partition("\nExamples:\n")[2]
    assert shown
    for line in shown.rstrip("\n").splitlines():
        assert re.match(r"  \$ weightctl |      ", line), line
        assert len(line) <= 80


def test_every_command_lists_its_exit_codes() -> None:
    for name in BEFORE:
        codes = help_of(name).partition("\nExit codes:\n")[2]
        listed = re.findall(r"^  (\d+) ", codes, re.MULTILINE)
        with_findings = name in {"", "ls", "diff", "check", "verify"}
        assert listed == ["0", *(["1"] if with_findings else []), "2", "130"]


def test_the_page_of_weightctl_lists_commands_and_where_the_documents_are() -> None:
    shown = help_of("")
    for name in COMMANDS:
        assert re.search(rf"^  {name} +\S", shown, re.MULTILINE)
    assert "Documentation: README.md and the docs/ folder" in shown


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_is_the_page_or_a_short_one_that_names_it(name: str) -> None:
    short, whole = weightctl(name, "--help").stdout, weightctl("help", name).stdout
    assert short == weightctl(name, "-h").stdout
    if short != whole:
        assert f"`weightctl help {name}` shows all" in short
        assert len(short.splitlines()) < len(whole.splitlines())
    assert len(short.splitlines()) <= 56
    options = re.findall(r"--[a-z][\w-]*", short.partition("Options:")[2].partition("\n\n")[0])
    assert {*options} <= {*re.findall(r"--[a-z][\w-]*", whole)}


def test_short_pages_name_parameters_of_their_commands() -> None:
    pages = {name: read_page(name).get("daily", ()) for name in COMMANDS}
    unknown = {
        name: {*daily} - {param.name for param in command_of(name).params}
        for name, daily in pages.items()
    }
    assert not any(unknown.values()), unknown
    assert len(pages["convert"]) == 12


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("ls a --vram 24", "`weightctl ls MODEL --fit 24GiB`"),
        ("stat a --format csv", "--json prints results as JSON"),
        ("ls a -o json", "--json prints results as JSON"),
        ("convert a b -q Q4_K_M", "to quantize, use --quant Q4_K_M"),
        ("convert a b --outtype q8_0", "--quant Q4_K_M"),
        ("show a --meta general.name", "`weightctl ls MODEL --meta KEY` prints a value"),
    ],
)
def test_an_option_of_another_program_gets_what_to_type(typed: str, hint: str) -> None:
    done = weightctl(*typed.split())
    assert done.returncode == 2
    assert hint in done.stderr


def test_help_alone_shows_the_page_of_weightctl_with_all_commands() -> None:
    whole, short = weightctl("help").stdout, weightctl("--help").stdout
    listed, others = whole.split("\n  tasks ")
    assert short.startswith(listed)
    assert short.endswith(others.partition("\n\n")[2])


def test_the_help_of_an_unknown_command_is_an_error() -> None:
    done = weightctl("help", "info")
    assert done.returncode == 2
    assert done.stderr.startswith("error: `info` is neither a command nor an existing file\n")


def test_the_page_of_convert_lists_all_recipes_types_and_formats() -> None:
    words = set(re.findall(r"\w+", help_of("convert")))
    assert {*list_recipes(), *block_types(), *plain_types(), *FORMATS} <= words


def test_the_page_of_convert_lists_each_name_once_as_a_recipe_or_a_type() -> None:
    listed = help_of("convert", 400).partition("\nRecipes and types for --quant:\n")[2]
    recipes, types = (
        line.removeprefix(f"  {heading}").strip().split(", ")
        for heading, line in zip(("recipes", "types only"), listed.splitlines(), strict=False)
    )
    names = [*recipes, *types]
    assert len(names) == len(set(names))
    assert {*names} == {*list_recipes(), *block_types()}
    assert all(isinstance(type_or_recipe(name), Recipe) for name in recipes)
    assert all(isinstance(type_or_recipe(name), Encoding) for name in types)


def test_the_page_of_verify_lists_all_checks() -> None:
    listed = help_of("verify").partition("\nChecks:\n")[2]
    assert {*CHECKS} <= set(re.findall(r"^  (\w+) ", listed, re.MULTILINE))


def test_checkpoints_to_read_have_one_name_in_all_commands() -> None:
    first = {name: help_of(name).splitlines()[0] for name in COMMANDS}
    assert {name: line.partition("[OPTIONS] ")[2] for name, line in first.items()} == {
        "ls": "[MODEL...]",
        "stat": "MODEL",
        "show": "MODEL TENSOR [SLICE]",
        "diff": "MODEL OTHER",
        "apply": "MODEL PATCH OUT",
        "convert": "MODEL [OUT]",
        "imatrix": "[MODEL]",
        "merge": "MODEL ADAPTER[:WEIGHT]... OUT",
        "extract": "BASE TUNED OUT",
        "shard": "MODEL [OUT]",
        "edit": "MODEL",
        "check": "MODEL",
        "verify": "MODEL",
        "tasks": "MODEL [OUT]",
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_a_sentence_of_help(name: str) -> None:
    for param in command_of(name).params:
        assert re.match(r"[A-Za-z].*(\.|\])$", param.help, re.DOTALL), param.name


def command_of(name: str) -> Any:
    """Return a command with the texts of its page."""
    command = get_command(app).get_command(None, name)
    describe(command)
    return command


PAGES = Path(weightctl_cli.__file__).parent / "pages"


def test_every_command_has_a_page_of_its_name() -> None:
    assert {path.stem for path in PAGES.iterdir()} == {*COMMANDS, "common", "weightctl", "words"}
    for name in COMMANDS:
        assert command_of(name).epilog.rpartition("\n\n")[2].startswith("Examples:\n")


def test_every_text_of_a_page_is_about_a_parameter() -> None:
    known = {name: {param.name for param in command_of(name).params} for name in COMMANDS}
    known["weightctl"] = {"version"}
    known["common"] = set[str]().union(*known.values())
    for name, params in known.items():
        page = tomllib.loads((PAGES / f"{name}.toml").read_text())
        assert page.get("parameters", {}).keys() <= params, name


def test_show_prints_the_tensors_that_a_pattern_matches(tmp_path: Path) -> None:
    done = weightctl("show", TINY, "*.[0-1].*q_proj*", ":2, :2", "--json")
    documents = [json.loads(line) for line in done.stdout.splitlines()]
    names = [f"model.layers.{layer}.self_attn.q_proj.weight" for layer in (0, 1)]
    assert [each["name"] for each in documents] == names
    assert [each["selected"] for each in documents] == [[2, 2], [2, 2]]
    one = tmp_path / "one.npy"
    refused = weightctl("show", TINY, "*norm*", "--npy", one)
    assert (refused.returncode, one.exists()) == (2, False)
    assert "7 tensors match `*norm*`, and --npy writes one" in refused.stderr
    assert weightctl("show", TINY, "model.no*", "--npy", one).returncode == 0
    assert one.exists()
    assert "no tensor matches `*absent*`" in weightctl("show", TINY, "*absent*").stderr
