"""What each test costs: `pytest --costs FILE` writes the seconds of each test function as TOML.

Seconds are those of processors, of the test's process and of the processes that it waited for; the
time of a fixture counts for the test that asked first. With `--costs -`, only the most costly
functions are printed.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

PRINTED = 20


class Costs:
    """Adds up the costs of tests, in the process that runs them and in the one that reports."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.spent = _count_seconds()
        self.seconds = defaultdict[str, float](float)
        self.waited = defaultdict[str, float](float)
        self.cases = Counter[str]()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        before, self.spent = self.spent, _count_seconds()
        report.user_properties.append(("seconds", self.spent - before))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        function = report.nodeid.split("[", 1)[0]
        self.seconds[function] += dict(report.user_properties)["seconds"]
        self.waited[function] += report.duration
        self.cases[function] += report.when == "call"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        costly = sorted(self.seconds, key=self.seconds.__getitem__, reverse=True)
        terminalreporter.section("most costly tests (seconds of processors)")
        for function in costly[:PRINTED]:
            terminalreporter.line(f"{self.seconds[function]:8.1f}  {function}")
        if self.target == "-":
            return
        with Path(self.target).open("w") as file:
            for function in costly:
                seconds, waited = self.seconds[function], self.waited[function]
                file.write(f"{seconds:.2f}\t{waited:.2f}\t{self.cases[function]}\t{function}\n")


def _count_seconds() -> float:
    return sum(os.times()[:4])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", metavar="FILE", help="print and write what each test costs")


def pytest_configure(config: pytest.Config) -> None:
    if target := config.getoption("--costs"):
        config.pluginmanager.register(Costs(target), "costs-of-tests")
