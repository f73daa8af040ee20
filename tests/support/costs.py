"""What each test costs: `pytest --costs FILE` prints the most costly tests, and writes all.

The seconds are those of processors: of the test's process, and of the processes that it started.
The time of a fixture counts for the test that asked first. A FILE that ends with `.md` has a line
for each test file, any other one for each test function; `-` writes none.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

PRINTED = 20
_TICKS = os.sysconf("SC_CLK_TCK")
_HEAD = """# What the tests cost

Seconds of processors by file, written by `pytest --costs tests/costs.md`. With two workers, the run
takes half of the sum, and the time of imports and collection.

| seconds | cases | file |
|--:|--:|---|
"""


class Costs:
    """Adds up the costs of tests, in the process that runs them and in the one that reports."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.spent = _count_seconds()
        self.seconds = defaultdict[str, float](float)
        self.cases = Counter[str]()

    def pytest_collection_finish(self) -> None:
        self.spent = _count_seconds()  # collection is the cost of no test

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        before, self.spent = self.spent, _count_seconds()
        # It is less than before if a process ended for which its parent did not wait.
        report.user_properties.append(("seconds", max(0.0, self.spent - before)))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        function = report.nodeid.split("[", 1)[0]
        self.seconds[function] += dict(report.user_properties)["seconds"]
        self.cases[function] += report.when == "call"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        costly = sorted(self.seconds, key=self.seconds.__getitem__, reverse=True)
        terminalreporter.section("most costly tests (seconds of processors)")
        for function in costly[:PRINTED]:
            terminalreporter.line(f"{self.seconds[function]:8.1f}  {function}")
        if self.target.endswith(".md"):
            Path(self.target).write_text(self._summarize())
        elif self.target != "-":
            lines = [f"{self.seconds[each]:.2f}\t{self.cases[each]}\t{each}\n" for each in costly]
            Path(self.target).write_text("".join(lines))

    def _summarize(self) -> str:
        files: Counter[str] = Counter()
        cases = Counter[str]()
        for function, seconds in self.seconds.items():
            file = function.partition("::")[0].removeprefix("tests/")
            files[file] += seconds
            cases[file] += self.cases[function]
        lines = [
            f"| {seconds:.1f} | {cases[name]} | {name} |\n" for name, seconds in files.most_common()
        ]
        total = f"| {sum(files.values()):.0f} | {sum(cases.values())} | all |\n"
        return f"{_HEAD}{total}{''.join(lines)}"


def _count_seconds() -> float:
    """Return the seconds of this process and of all that it started, whether or not they ended."""
    return sum(os.times()[:4]) + sum(map(_count_seconds_of, _list_children(os.getpid())))


def _count_seconds_of(process: int) -> float:
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except OSError:  # it ended meanwhile
        return 0.0
    # After the name: the times of the process, and of the children that it waited for.
    ticks = sum(map(int, status.rpartition(")")[2].split()[11:15]))
    return ticks / _TICKS + sum(map(_count_seconds_of, _list_children(process)))


def _list_children(process: int) -> list[int]:
    found: list[int] = []
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, path.read_text().split())
    return found


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", metavar="FILE", help="print and write what each test costs")


def pytest_configure(config: pytest.Config) -> None:
    if target := config.getoption("--costs"):
        config.pluginmanager.register(Costs(target), "costs-of-tests")
