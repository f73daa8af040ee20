"""A copy of the package that a recipe of docs/architecture.md was followed in, to run programs on.

Each edit of the copy is checked against the row of the recipe: it names every file that is edited,
and no other.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).parents[2]
_PAGE = ROOT / "docs" / "architecture.md"
_FILE = re.compile(r"`([\w/]+\.(?:py|toml))`")
# Runs commands, and programs after `-c`, one after the other: each line of stdin is one.
_PROGRAM = """
import contextlib, io, json, sys
from commands import Path, run_command
for line in sys.stdin:
    arguments = json.loads(line)
    if arguments[0] == "-c":
        sys.argv, out = arguments[1:], io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(arguments[1], {"__name__": "program"})
        found = 0, out.getvalue(), ""
    else:
        done = run_command(*arguments, cwd=Path.cwd())
        found = done.returncode, done.stdout, done.stderr
    print(json.dumps(found), flush=True)
"""


class Line(NamedTuple):
    """A line that is added to a file, before the first line that ends with `before`."""

    text: str
    before: str


class PackageProcess:
    """A process that runs commands of a package, which it imports from the first of some paths."""

    def __init__(self, folder: Path, *paths: Path, **environment: str) -> None:
        self.folder, self._paths, self._environment = folder, paths, environment

    @cached_property
    def _process(self) -> subprocess.Popen[str]:
        paths = [str(path) for path in (*self._paths, ROOT / "tests" / "support")]
        return subprocess.Popen(
            [sys.executable, "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env={**os.environ, **self._environment, "PYTHONPATH": os.pathsep.join(paths)},
        )

    def answer(self, *arguments: str | Path) -> tuple[int, str, str]:
        """Run a command, or a program after `-c`; return its exit code, stdout and stderr."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([*map(str, arguments)]) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, self._process.communicate()[1]
        code, out, errors = json.loads(answer)
        return code, out, errors

    def command(self, *arguments: str | Path) -> str:
        """Run a command of the package, or a program after `-c`; return what it prints."""
        code, out, errors = self.answer(*arguments)
        assert code == 0, errors
        return out

    def end(self) -> None:
        """End the process; no edit is seen before."""
        self._process.communicate()


class ExtendedPackage(PackageProcess):
    """The package with modules that were added to it, and lines that were added to its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, folder)
        self._package = folder / "weightctl"
        shutil.copytree(ROOT / "weightctl", self._package)

    def follow(
        self,
        recipe: str,
        name: str,
        modules: Mapping[str, str],
        lines: Mapping[str, Sequence[Line]],
    ) -> int:
        """Add modules, and lines to the files that the recipe names; return how many lines.

        The text of a module that is there is added to its end.
        """
        named = read_recipe(recipe, name)
        assert {*modules, *lines} == named, f"{recipe}: the recipe names {sorted(named)}"
        for path, text in modules.items():
            with (self._package / path).open("a", encoding="utf-8") as stream:
                stream.write(text)
        for path, added in lines.items():
            self._add(self._package / path, added)
        return sum(map(len, lines.values()))

    @staticmethod
    def _add(path: Path, lines: Sequence[Line]) -> None:
        content = path.read_text().split("\n")
        for line in lines:
            assert "\n" not in line.text
            places = [place for place, each in enumerate(content) if each.endswith(line.before)]
            content.insert(places[0], line.text)
        path.write_text("\n".join(content))


def read_recipe(recipe: str, name: str) -> set[str]:
    """Return the files that the page says to write or edit to add what is called `name`.

    What is behind a semicolon is not always needed.
    """
    rows = [line for line in _PAGE.read_text().splitlines() if line.startswith(f"| {recipe} |")]
    assert len(rows) == 1, recipe
    always = re.sub(r";[^|]*", "", rows[0])
    return {re.sub("NAME|KIND", name, path) for path in _FILE.findall(always)}
