"""Help pages and errors on a terminal. `python tests/cli/test_message_screens.py` writes them."""

from __future__ import annotations

import re
import shlex
import sys
import tempfile
from pathlib import Path
from shutil import copytree, rmtree

if __name__ == "__main__":  # pytest knows these folders
    HERE = Path(__file__).parent
    sys.path += [str(HERE), str(HERE.parent), str(HERE.parent / "support")]

import itertools

import pytest

import small_checkpoints
from commands import run_command as weightctl
from conftest import ROOT
from each import each
from terminal import on_a_terminal
from weightctl.cli import COMMANDS
from weightctl.cli.help import read_page
from weightctl.text.columns import width

SCREENS = Path(__file__).parent / "screens"
HELP, ERRORS = SCREENS / "help", SCREENS / "errors"
SHORT = [name for name in COMMANDS if read_page(name).get("daily")]
PAGES = {
    "weightctl": "--help",
    **{name: f"help {name}" for name in COMMANDS},
    **{f"{name}-short": f"{name} --help" for name in SHORT},
}
WIDTHS = (80, 200)
FAILURES = {
    "no-such-file": "missing.gguf",
    "no-such-directory": "diff small models/missing-model",
    "no-such-command": "info",
    "merge": "merge tiny-llama small out",
    "misspelled-command": "veriy small",
    "no-such-option": "convert small out.gguf --quantize Q4_K_M",
    "missing-argument": "convert small",
    "extra-argument": "convert small out.gguf Q4_K_M",
    "not-a-choice": "ls small --sort age",
    "misspelled-recipe": "convert tiny-llama out.gguf --quant Q4_KM",
    "not-a-type": "convert small out.safetensors --dtype int4",
    "remote-model": "ls hf://gpt2",
    "remote-bucket": "convert s3:///models/llama out.gguf",
    "remote-verify": "verify hf://datasets/HuggingFaceTB/smoltalk",
    "repository-name": "convert HuggingFaceTB/SmolLM2-135M-Instruct smollm2.gguf",
    "no-ranks": "shard tiny-llama out",
    "impossible-ranks": "shard tiny-llama out --tp 7",
    "truncated": "ls truncated.safetensors",
    "web-page": "ls page.gguf",
    "lfs-pointer": "ls pointer.safetensors",
    "contradiction": "ls small --depth 1 --flat",
    "no-such-key": "ls small.gguf --meta general.nam",
    "no-such-check": "verify tiny-llama --check nmaes -q",
    "no-such-tensor": "convert small out.safetensors --include 'nothing.*'",
    "invalid-pattern": "convert small out.safetensors --rename '[=x'",
}


def files(folder: Path) -> None:
    """Write what the commands above are about."""
    small_checkpoints.small(folder)
    small_checkpoints.gguf(folder)
    small_checkpoints.awq(folder)
    copytree(ROOT / "fixtures" / "tiny-llama", folder / "tiny-llama")
    whole = (folder / "tiny-llama" / "model.safetensors").read_bytes()
    (folder / "truncated.safetensors").write_bytes(whole[: len(whole) // 2])
    (folder / "page.gguf").write_text("<!DOCTYPE html><html><body>404 Not Found</body></html>\n")
    (folder / "pointer.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\n"
        f"oid sha256:{'0123456789abcdef' * 4}\nsize 269060552\n"
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made_in = tmp_path_factory.mktemp("messages")
    files(made_in)
    return made_in


def screen(command: str, columns: int, folder: Path) -> str:
    """Return a command as it is typed, and what the terminal shows then."""
    shown = on_a_terminal(columns, *shlex.split(command), cwd=folder, NO_COLOR="1")
    return f"$ weightctl {command}\n{shown}"


@each("columns", WIDTHS)
@each("name", PAGES)
def test_a_help_page_is_what_was_agreed(name: str, columns: int, folder: Path) -> None:
    agreed = (HELP / f"{name}-{columns}.txt").read_text()
    assert screen(PAGES[name], columns, folder) == agreed


@each("name", FAILURES)
def test_an_error_is_what_was_agreed(name: str, folder: Path) -> None:
    assert screen(FAILURES[name], 80, folder) == (ERRORS / f"{name}.txt").read_text()


def test_every_screen_belongs_to_a_command() -> None:
    pages = {f"{name}-{columns}.txt" for name in PAGES for columns in WIDTHS}
    assert {path.name for path in HELP.iterdir()} == pages
    assert {path.name for path in ERRORS.iterdir()} == {f"{name}.txt" for name in FAILURES}


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines()[1:]


@each("columns", WIDTHS)
@each("name", PAGES)
def test_no_line_of_a_help_page_is_longer_than_the_terminal(name: str, columns: int) -> None:
    lines = lines_of(HELP / f"{name}-{columns}.txt")
    assert [line for line in lines if width(line) > columns] == []


@each("name", FAILURES)
def test_a_line_of_an_error_is_longer_than_the_terminal_only_where_a_word_is(name: str) -> None:
    lines = lines_of(ERRORS / f"{name}.txt")
    assert [line for line in lines if width(line) > 80 and " " in line.strip()] == []


@pytest.mark.parametrize("name", PAGES)
def test_no_word_of_a_help_page_is_broken(name: str) -> None:
    texts = [" ".join(lines_of(HELP / f"{name}-{columns}.txt")).split() for columns in WIDTHS]
    assert texts[0] == texts[1]


@each("name", FAILURES)
def test_no_word_of_an_error_is_broken(name: str, folder: Path) -> None:
    done = weightctl(*shlex.split(FAILURES[name]), cwd=folder)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.split() == " ".join(lines_of(ERRORS / f"{name}.txt")).split()
    # Without a terminal a message is one line, but for lists.
    for line in done.stderr.splitlines():
        assert re.match(r"(error|hint|note): |  ", line)


@each("columns", WIDTHS)
@each("name", PAGES)
def test_no_line_of_a_help_page_ends_early(name: str, columns: int) -> None:
    lines = lines_of(HELP / f"{name}-{columns}.txt")
    pairs = itertools.pairwise(lines)
    assert [a for a, b in pairs if _continues(a, b) and _fits_more(a, b, columns)] == []


@each("name", FAILURES)
def test_no_line_of_an_error_ends_early(name: str) -> None:
    lines = lines_of(ERRORS / f"{name}.txt")
    pairs = itertools.pairwise(lines)
    assert [a for a, b in pairs if b.startswith("    ") and _fits_more(a, b, 80)] == []


def _fits_more(line: str, following: str, columns: int) -> bool:
    """Whether the first word of the next line has room, or the number that has its unit there."""
    first, *rest = following.split()
    if first.isdecimal() and rest and re.match(r"%|nats|[kMGT]?i?B\b", rest[0]):
        first = f"{first} {rest[0]}"
    return width(line) + 1 + width(first) <= columns


def _continues(line: str, following: str) -> bool:
    """Whether a line continues the text of the one before: it begins where that text does."""
    if not line or not following or line.endswith(("\\", ":")) or "$ " in line + following:
        return False
    indent = len(following) - len(following.lstrip())
    if indent == 0:
        return not line.startswith(" ")
    return indent > 6 and len(line) > indent and line[indent - 2 : indent] == "  "


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        files(folder)
        for kind in (HELP, ERRORS):
            rmtree(kind, ignore_errors=True)
            kind.mkdir()
        for name, command in PAGES.items():
            for columns in WIDTHS:
                text = screen(command, columns, folder)
                (HELP / f"{name}-{columns}.txt").write_text(text)
        for name, command in FAILURES.items():
            (ERRORS / f"{name}.txt").write_text(screen(command, 80, folder))


if __name__ == "__main__":
    main()
