"""A signal at any moment leaves the old or the new output, and state for the next run."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
from typing import TYPE_CHECKING

import pytest

from each import usual
from outcomes import leftovers, random_model, standing, strikes

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from outcomes import Ended, Strikes


@pytest.fixture(scope="module")
def struck(scratch: Path) -> Generator[Strikes, None, None]:
    with strikes(scratch) as running:
        yield running


class Place:
    """Where an old output stands, or nothing, and a run would put a new one."""

    def __init__(self, scratch: Path, struck: Strikes, *, force: bool) -> None:
        self.path = scratch / "place"
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir()
        (scratch / "plan.toml").write_text("[tensors]\n'.' = 'rowwise'\n")
        self.out = self.path / "out"
        self.old: dict[str, bytes] = {}
        arguments = ("--tp", "2", "--plan", scratch / "plan.toml", "--force", "-q")
        for number in (1, 2):
            shutil.rmtree(scratch / f"{number}", ignore_errors=True)
            model = random_model(scratch / f"{number}", 3, 8, seed=number)
            self.arguments = ("shard", model, self.out, *arguments)
            assert struck.run(*self.arguments).code == 0
            if number == 1 and force:
                self.old = standing(self.out)
        self.new = standing(self.out)
        assert self.new != self.old

    def restore(self) -> None:
        """Put the old output back where it is gone; what is unfinished stays."""
        if self.found() != self.old:
            shutil.rmtree(self.out)
            for name, content in self.old.items():
                (self.out / name).parent.mkdir(parents=True, exist_ok=True)
                (self.out / name).write_bytes(content)

    def found(self) -> dict[str, bytes]:
        """Return the files of the output."""
        return standing(self.out)


@pytest.mark.long
@pytest.mark.parametrize("force", [False, True], ids=["new", "over an old one"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_signal_at_any_call_that_deals_with_names_leaves_the_old_output_or_the_new(
    scratch: Path, struck: Strikes, number: signal.Signals, *, force: bool
) -> None:
    place = Place(scratch, struck, force=force)
    # Only a kill leaves no time to clean up: one of both outputs has it at each call. Ctrl-C comes
    # at every fifth.
    step = 2 if number == signal.SIGKILL else 5
    call = 2 if force else 1
    ended = struck.run(*place.arguments, number=number, call=call)
    while ended.was_struck:
        assert ended.code == (-number if number == signal.SIGKILL else 130), (call, ended.errors)
        assert place.found() in (place.old, place.new), call
        assert {*os.listdir(place.path)} - {"out"} <= {*leftovers(place.path)}, call
        place.restore()
        call += step
        ended = struck.run(*place.arguments, number=number, call=call)
    assert call > 40
    assert ended.code == 0, ended.errors
    assert standing(place.path) == {f"out/{name}": raw for name, raw in place.new.items()}


@pytest.mark.long
def test_a_signal_at_a_random_moment_leaves_the_old_output_or_the_new(
    scratch: Path, struck: Strikes
) -> None:
    place = Place(scratch, struck, force=True)
    span = struck.run(*place.arguments).seconds
    for part in range(1, 6):
        place.restore()
        ended = struck.run(*place.arguments, number=signal.SIGKILL, seconds=span * part / 5)
        assert ended.code in (0, -signal.SIGKILL), ended.errors
        assert place.found() in (place.old, place.new)
    assert struck.run(*place.arguments).code == 0
    assert standing(place.path) == {f"out/{name}": raw for name, raw in place.new.items()}


@pytest.mark.parametrize(("calls", "step"), usual([("names", 40)], [
    ("names", 40), ("names", 11), ("locks", 41),
]))  # fmt: skip
def test_ctrl_c_at_some_calls_ends_the_run_at_once(
    scratch: Path, struck: Strikes, calls: str, step: int
) -> None:
    place = Place(scratch, struck, force=True)
    ends: list[Ended] = []
    for call in itertools.count(3, step):
        place.restore()
        ends.append(struck.run(*place.arguments, number=signal.SIGINT, calls=calls, call=call))
        assert place.found() in (place.old, place.new), call
        if not ends[-1].was_struck:
            break
        assert ends[-1].code == 130, (call, ends[-1].errors)
    assert len(ends) > 3
