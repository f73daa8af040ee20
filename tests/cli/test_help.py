"""Help pages: their wrapping, what they list, and that their examples work."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from documented import make_example_files
from weightctl.cli import COMMANDS
from weightctl.dtype import Encoding
from weightctl.formats import FORMATS
from weightctl.plan.recipe_lines import Recipe
from weightctl.plan.type_names import block_types, list_recipes, plain_types
from weightctl.plan.types import type_or_recipe
from weightctl.verify import CHECKS

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Completed

    Run = Callable[..., Completed]

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
    "verify": ["model", "model-q8.gguf"],
}


def help_of(run: Run, name: str, columns: int = 80) -> str:
    done = run(*name.split(), "--help", COLUMNS=str(columns))
    assert done.returncode == 0
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("name", BEFORE)
def test_the_examples_of_each_help_page_work_one_after_the_other(
    name: str, tmp_path: Path, weightctl: Run
) -> None:
    make_example_files(tmp_path, BEFORE[name])
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    commands = EXAMPLE.findall(help_of(weightctl, name).partition("Examples:")[2])
    assert len(commands) >= 3
    for command in commands:
        assert command.startswith(f"weightctl {name}".rstrip() + " ")
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env=os.environ | {"PATH": path},
        )
        # The download is an attack, which a scan finds.
        expected = 1 if "downloaded.pt --scan" in command else 0
        assert done.returncode == expected, f"{command}\n{done.stderr}"
        assert done.stdout


@pytest.mark.parametrize("name", BEFORE)
def test_every_help_page_ends_in_examples_that_fit_80_columns(name: str, weightctl: Run) -> None:
    shown = help_of(weightctl, name).partition("\nExamples:\n")[2]
    assert shown
    for line in shown.rstrip("\n").splitlines():
        assert re.match(r"  \$ weightctl |      ", line), line
        assert len(line) <= 80


def test_every_command_lists_its_exit_codes(weightctl: Run) -> None:
    for name in BEFORE:
        codes = help_of(weightctl, name).partition("\nExit codes:\n")[2]
        listed = re.findall(r"^  (\d+) ", codes, re.MULTILINE)
        with_findings = name in {"", "ls", "diff", "check", "verify"}
        assert listed == ["0", *(["1"] if with_findings else []), "2", "130"]


def test_the_page_of_weightctl_lists_commands_and_where_the_documents_are(weightctl: Run) -> None:
    shown = help_of(weightctl, "")
    for name in COMMANDS:
        assert re.search(rf"^  {name} +\S", shown, re.MULTILINE)
    assert "Documentation: README.md and the docs/ folder" in shown


@pytest.mark.parametrize("name", COMMANDS)
def test_help_and_the_name_of_a_command_show_its_page(name: str, weightctl: Run) -> None:
    assert weightctl("help", name).stdout == weightctl(name, "--help").stdout
    assert weightctl("help", name).stdout == weightctl(name, "-h").stdout


def test_help_alone_shows_the_page_of_weightctl(weightctl: Run) -> None:
    assert weightctl("help").stdout == weightctl("--help").stdout


def test_the_help_of_an_unknown_command_is_an_error(weightctl: Run) -> None:
    done = weightctl("help", "info")
    assert done.returncode == 2
    assert done.stderr.startswith("error: `info` is neither a command nor an existing file\n")


def test_the_page_of_convert_lists_all_recipes_types_and_formats(weightctl: Run) -> None:
    words = set(re.findall(r"\w+", help_of(weightctl, "convert")))
    assert {*list_recipes(), *block_types(), *plain_types(), *FORMATS} <= words


def test_the_page_of_convert_lists_each_name_once_as_a_recipe_or_a_type(weightctl: Run) -> None:
    listed = help_of(weightctl, "convert", 400).partition("\nRecipes and types for --quant:\n")[2]
    recipes, types = (
        line.removeprefix(f"  {heading}").strip().split(", ")
        for heading, line in zip(("recipes", "types only"), listed.splitlines(), strict=False)
    )
    names = [*recipes, *types]
    assert len(names) == len(set(names))
    assert {*names} == {*list_recipes(), *block_types()}
    assert all(isinstance(type_or_recipe(name), Recipe) for name in recipes)
    assert all(isinstance(type_or_recipe(name), Encoding) for name in types)


def test_the_page_of_verify_lists_all_checks(weightctl: Run) -> None:
    listed = help_of(weightctl, "verify").partition("\nChecks:\n")[2]
    assert {*CHECKS} <= set(re.findall(r"^  (\w+) ", listed, re.MULTILINE))


def test_checkpoints_to_read_have_one_name_in_all_commands(weightctl: Run) -> None:
    first = {name: help_of(weightctl, name).splitlines()[0] for name in COMMANDS}
    assert {name: line.partition("[OPTIONS] ")[2] for name, line in first.items()} == {
        "ls": "MODEL...",
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
    from typer.main import get_command

    from weightctl.cli import app

    command = get_command(app).get_command(None, name)
    for param in command.params:
        assert re.match(r"[A-Za-z].*(\.|\])$", param.help, re.DOTALL), param.name


def test_a_command_imports_its_help_from_its_module() -> None:
    for name in COMMANDS:
        (command,) = importlib.import_module(f"weightctl.cli.{name}").app.registered_commands
        assert command.epilog.rpartition("\n\n")[2].startswith("Examples:\n")
