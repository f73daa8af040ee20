"""Shared fixtures: the command, run as a user runs it, and checkpoints to run it on."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from commands import Completed, run_command, start_command

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

# Models of tests are small: threads of torch would wait for each other. Processes that tests start
# inherit this setting.
os.environ["OMP_NUM_THREADS"] = "1"
# A run in the background or under `nohup` ignores these signals, and so would processes that tests
# start. A handler is not inherited, so they have the default action.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)
# pytest-xdist sets the width of the terminal for its workers; this must not affect tests.
os.environ.pop("COLUMNS", None)

pytest_plugins = [
    "real_files",  # the others import it
    "costs",
    "crossing_fixtures",
    "each",
    "full_disks",
    "hub_fixtures",
    "ready_children",
    "simulated_macos",
]

# Examples are derived from the code of a test: a commit passes on every machine or fails on every
# one. With `HYPOTHESIS_PROFILE=thorough`, as in CI, there are twice as many; `search` draws many at
# random, to find other failures. There is no deadline, because the time of an example depends on
# the load of the machine.
settings.register_profile(
    "repeatable",
    deadline=None,
    derandomize=True,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("thorough", settings.get_profile("repeatable"), max_examples=100)
settings.register_profile(
    "search", settings.get_profile("repeatable"), derandomize=False, max_examples=1000
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

ROOT = Path(__file__).parent.parent


MEMORY, ROOM = "/dev/shm", 8 << 30


def pytest_configure(config: pytest.Config) -> None:
    """Have temporary files in memory if there is room, so that usual tests wait for no disk."""
    is_usual = config.option.markexpr == "not long" and "TMPDIR" not in os.environ
    if is_usual and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM:
        # The path is short, since names of sockets are limited.
        place = tempfile.mkdtemp(dir=MEMORY, prefix="tests-")
        os.environ["TMPDIR"] = tempfile.tempdir = place
        if not config.option.basetemp:
            config.option.basetemp = Path(place, "t")
        # Libraries leave files, and what a test that failed leaves would stay in memory.
        config.add_cleanup(lambda: shutil.rmtree(place, ignore_errors=True))


@pytest.hookimpl(optionalhook=True)  # pytest-xdist may not be installed
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Run files that are named without workers, which take seconds to start."""
    return None if all(Path(name).is_dir() for name in config.args) else 0


def pytest_collection_finish() -> None:
    """Keep what stays until the end out of garbage collections, which some tests ask for.

    The others are rarer than usual: with torch and transformers, each looks at a million objects.
    """
    gc.freeze()
    gc.set_threshold(5_000, 10, 50)


@pytest.fixture(scope="session", autouse=True)
def state_of_their_own(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep what weightctl remembers of edits out of the home directory."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="session")
def weightctl() -> Callable[..., Completed]:
    """Run `weightctl` in this process, without a terminal."""
    return run_command


@pytest.fixture(scope="session")
def weightctl_process() -> Callable[..., Completed]:
    """Run `weightctl` in a process of its own, without a terminal."""
    return start_command


@pytest.fixture(scope="session")
def tiny_llama() -> Path:
    return ROOT / "fixtures" / "tiny-llama"


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that is cut for two ranks."""
    import sharded_files

    return sharded_files.two_ranks(tmp_path_factory.mktemp("sound"))


@pytest.fixture
def parts(two_ranks: Path, tmp_path: Path) -> Path:
    """A copy of `two_ranks` that a test can change."""
    return Path(shutil.copytree(two_ranks, tmp_path / "parts"))


@pytest.fixture
def journal_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make runs keep a journal from the start, as long runs do."""
    monkeypatch.setattr("weightctl.write.journal.BEGIN_AFTER", 0.0)


@pytest.fixture
def short_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run models on the first sentences of the built-in texts, where the numbers do not matter."""
    from weightctl.verify.run import prompt

    monkeypatch.setattr(prompt, "TEXT", prompt.TEXT[:200])
    monkeypatch.setattr("weightctl.budget.type_search._BUILT_IN_TOKENS", 32)


@pytest.fixture(scope="module")
def scratch() -> Generator[Path, None, None]:
    """A directory in memory if possible, so that hundreds of runs do not wait for a disk."""
    memory = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory, prefix="weightctl-test-") as directory:
        yield Path(directory)
