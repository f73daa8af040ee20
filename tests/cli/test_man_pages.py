"""The manual pages are the help pages. `python tests/cli/test_man_pages.py` writes them anew."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

if __name__ == "__main__":  # pytest knows these folders
    TESTS = Path(__file__).parents[1]
    sys.path += [str(TESTS.parent), str(TESTS), str(TESTS / "support")]

import pytest

from commands import run_command
from man_pages import COLUMNS, make_page
from weightctl.cli import COMMANDS

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "man"


def make_pages() -> dict[str, str]:
    """Return the manual pages by their file names."""
    made = {}
    for words in ([], *([name] for name in COMMANDS)):
        name = "-".join(["weightctl", *words])
        page = run_command("help", *words, COLUMNS=str(COLUMNS)).stdout
        made[f"{name}.1"] = make_page(name, page, tuple(COMMANDS))
    return made


def test_the_manual_pages_are_those_of_the_help() -> None:
    made = make_pages()
    assert {path.name for path in PAGES.iterdir()} == made.keys()
    old = [name for name, page in made.items() if (PAGES / name).read_text() != page]
    assert old == [], f"run: python {Path(__file__).relative_to(ROOT)}"


@pytest.mark.skipif(shutil.which("mandoc") is None, reason="mandoc is not installed")
def test_mandoc_finds_no_fault() -> None:
    found = subprocess.run(
        # A page of the source has no date.
        ["mandoc", "-T", "lint", "-W", "warning", *sorted(PAGES.iterdir())],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    faults = [line for line in found.stdout.splitlines() if "missing date" not in line]
    assert faults == []


if __name__ == "__main__":
    PAGES.mkdir(exist_ok=True)
    for name, page in make_pages().items():
        (PAGES / name).write_text(page)
