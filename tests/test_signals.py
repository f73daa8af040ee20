"""A signal at any moment leaves the old output or the new one, and nothing else."""

from __future__ import annotations

import itertools
import random
import shutil
import signal
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from copying import contents
from each import usual
from outcomes import KINDS, begun, leftovers, random_model, standing, strikes
from weightctl import open_weights
from weightctl.system.temporary import SWITCH
from weightctl.write.save import save

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from outcomes import Ended, Kind, Strikes

    Files = dict[str, bytes]

TENSORS = 3
FIRST = [(KINDS["file"], signal.SIGINT)]


@pytest.fixture(scope="module")
def struck(scratch: Path) -> Generator[Strikes, None, None]:
    with strikes(scratch) as running:
        yield running


class Models(NamedTuple):
    """Directories of models whose outputs have the same file names."""

    old: Path
    small: Path
    large: Path


@pytest.fixture(scope="module")
def models(scratch: Path) -> Models:
    return Models(
        random_model(scratch / "old", TENSORS, 8, seed=1),
        random_model(scratch / "small", TENSORS, 8, seed=2),
        random_model(scratch / "large", TENSORS, 1024, seed=3),
    )


class Place:
    """A directory with an old output and another file, in which a run writes a new output."""

    def __init__(self, path: Path, kind: Kind, models: Models, source: Path) -> None:
        self.path = path
        self.arguments = ("convert", source, f"{path}/{kind.name}", *kind.options, "--force", "-q")
        self.new = self._made(kind, source)
        self.old = self._made(kind, models.old)
        assert self.old.keys() == self.new.keys()
        self.held = [held_by(files) for files in (self.old, self.new)] if kind.is_split else []

    def _made(self, kind: Kind, source: Path) -> Files:
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir()
        (self.path / "thesis.tex").write_text("years of work")
        save(*kind.plan(open_weights(source), self.path))
        return standing(self.path)

    def restore(self) -> None:
        """Restore the old output if it is gone; keep temporary files.

        The record of a decided replacement is removed, because it does not apply to the restored
        files.
        """
        for record in self.path.glob(f"*{SWITCH}"):
            record.unlink()
        if standing(self.path) != self.old:
            for name in standing(self.path):
                (self.path / name).unlink()
            for name, content in self.old.items():
                (self.path / name).parent.mkdir(exist_ok=True)
                (self.path / name).write_bytes(content)


@pytest.fixture
def place(kind: Kind, models: Models, scratch: Path, request: pytest.FixtureRequest) -> Place:
    source = models.large if "moments" in request.node.name else models.small
    return Place(scratch / "place", kind, models, source)


def is_old_or_new(place: Place) -> bool:
    return standing(place.path) in (place.old, place.new)


def reads_as_old_or_new(place: Place) -> bool:
    """Whether all existing names lead to the old set, or all to the new set."""
    names = standing(place.path).keys() - {"thesis.tex"}
    read = [contents(open_weights(place.path / name)) for name in names]
    return bool(read) and read in ([held] * len(read) for held in place.held)


def held_by(files: Files) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Return the tensors of an output."""
    with tempfile.TemporaryDirectory() as directory:
        for name, content in files.items():
            (Path(directory) / name).write_bytes(content)
        return contents(open_weights(directory))


def spread(number: int, span: float, count: int) -> Iterator[float]:
    """Yield random moments, one in each of several equal parts of a time span."""
    moments = random.Random(number)
    yield from (span * (part + moments.random()) / count for part in range(count))


@pytest.mark.parametrize(
    ("kind", "number", "count"),
    [
        *((*each, 4) for each in FIRST),
        *(
            pytest.param(KINDS[kind], number, 20, marks=pytest.mark.long)
            for kind in ("file", "directory", "set")
            for number in (signal.SIGINT, signal.SIGKILL)
        ),
    ],
)
def test_a_signal_at_random_moments_leaves_the_old_output_or_the_new(
    place: Place, kind: Kind, struck: Strikes, number: signal.Signals, count: int
) -> None:
    span = statistics.median(struck.run(*place.arguments).seconds for _ in range(3))
    codes = []
    for moment in spread(number, span, count):
        place.restore()
        ended = struck.run(*place.arguments, number=number, seconds=moment)
        codes.append(ended.code)
        was_killed = number == signal.SIGKILL
        assert ended.code in (0, -number if was_killed else 128 + number)
        # Python prints this if a signal arrives while it frees an object, and continues.
        assert ended.errors == "" or ended.errors.startswith("Exception ignored in")
        assert is_old_or_new(place) or (kind.is_split and was_killed and reads_as_old_or_new(place))
        assert was_killed or leftovers(place.path) == []
    assert codes.count(0) < count
    assert struck.run(*place.arguments).code == 0
    assert standing(place.path) == place.new
    assert leftovers(place.path) == []


@pytest.mark.parametrize(
    ("kind", "number", "every"),
    [
        *((*each, 7) for each in FIRST),
        # Ctrl-C leaves time to clean up, and a set has more states than one file.
        *(
            pytest.param(
                kind,
                number,
                3 if number == signal.SIGINT else 1 if kind.is_split else 2,
                marks=pytest.mark.long,
            )
            for kind in KINDS.values()
            for number in (signal.SIGINT, signal.SIGKILL)
        ),
    ],
)
def test_a_signal_at_any_call_that_deals_with_names_leaves_the_old_output_or_the_new(
    place: Place, kind: Kind, struck: Strikes, number: signal.Signals, every: int
) -> None:
    was_killed = number == signal.SIGKILL
    for call, _ in at_calls(place, struck, number, every):
        assert is_old_or_new(place) or (
            kind.is_split and was_killed and reads_as_old_or_new(place)
        ), call
        assert was_killed or leftovers(place.path) == [], call
    assert standing(place.path) == place.new
    assert leftovers(place.path) == []


@pytest.mark.parametrize("kind", [KINDS["file"]], ids=["file"])
@pytest.mark.parametrize("every", [9, pytest.param(2, marks=pytest.mark.long)])
def test_ctrl_c_at_any_call_of_a_lock_ends_the_run_at_once(
    place: Place, struck: Strikes, every: int
) -> None:
    # An exception within such a call leaves the lock locked, and a thread waiting.
    for call, ended in at_calls(place, struck, signal.SIGINT, every, "locks"):
        assert ended.code == 130, (call, ended.errors)
        assert is_old_or_new(place)


def at_calls(
    place: Place, struck: Strikes, number: signal.Signals, every: int, calls: str = "names"
) -> Iterator[tuple[int, Ended]]:
    """Send the signal at every n-th call, over the old output, until a run has no such call."""
    for call in itertools.count(1, every):
        place.restore()
        ended = struck.run(*place.arguments, number=number, calls=calls, call=call)
        if not ended.was_struck:
            assert call > 10
            return
        yield call, ended


@pytest.mark.parametrize(
    ("number", "code"),
    usual(
        [(signal.SIGINT, 130), (signal.SIGTERM, 143)],
        [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
    ),
)
def test_a_signal_that_ends_a_run_shows_in_its_exit_code_and_in_nothing_else(
    models: Models, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    process = begun(tmp_path, models.large, tmp_path / "out.gguf")
    process.send_signal(number)
    output, errors = process.communicate()
    assert process.returncode == code
    assert (output, errors.count(b"\n")) == (b"", 1)  # the note before the conversion
    assert list(tmp_path.iterdir()) == []
