"""A conversion that is killed at any moment is continued by the same command."""

from __future__ import annotations

import json
import random
import shutil
import signal
import statistics
from typing import TYPE_CHECKING

import pytest

from outcomes import KINDS, Kind, leftovers, random_model, random_weights, standing, strikes
from weightctl import save

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from outcomes import Strikes


# The calls that write of which kills are chosen: fewer than a long conversion has.
_CALLS = 500


@pytest.fixture(scope="module")
def struck(scratch: Path) -> Generator[Strikes, None, None]:
    with strikes(scratch, begin_after=0) as running:
        yield running


def kill_at_random_moments(
    kind: Kind, struck: Strikes, scratch: Path, moments: int, rows: int, calls: int = 0
) -> int:
    """Kill conversions at moments that are spread over a run; return how many were continued.

    After each the same command is run again, whose output is that of an undisturbed run. `calls` is
    the number of further kills before calls that write, which do not depend on how busy the machine
    is.
    """
    place = scratch / "place"
    shutil.rmtree(place, ignore_errors=True)
    shutil.rmtree(scratch / "model", ignore_errors=True)
    place.mkdir()
    model = random_model(scratch / "model", 3, rows)
    report = scratch / "report.json"
    arguments = ("convert", model, f"{place}/{kind.name}", *kind.options, "--force", "-q")
    arguments += ("--report", report)
    assert struck.run(*arguments).code == 0
    new = standing(place)
    # Neither the number of threads nor the memory changes the plan.
    slowly = (*arguments, "-j", "1", "--mem", "4MB")
    spans = [struck.run(*slowly).seconds for _ in range(3 if moments > 3 else 1)]
    chance = random.Random(kind.name)
    continued = 0
    for part in range(moments + calls):
        restore(place, kind)
        old = standing(place)
        if part < moments:
            moment = statistics.median(spans) * (part + chance.random()) / moments
            ended = struck.run(*slowly, number=signal.SIGKILL, seconds=moment)
        else:
            call = int(_CALLS * (part - moments + chance.random()) / calls) + 1
            ended = struck.run(*slowly, number=signal.SIGKILL, calls="writes", call=call)
        assert ended.code in (0, -signal.SIGKILL), ended.errors
        if not kind.is_split:  # of a set, some files may have their names already
            assert standing(place) in (old, new)
        assert struck.run(*arguments).code == 0
        assert standing(place) == new
        assert leftovers(place) == []
        continued += json.loads(report.read_text())["kept_bytes"] > 0
    return continued


def restore(place: Path, kind: Kind) -> None:
    """Put an old output in the place of what is there."""
    shutil.rmtree(place)
    place.mkdir()
    save(*kind.plan(random_weights(3, 8, seed=1), place))


@pytest.mark.parametrize("kind", [KINDS["file"], KINDS["set"]], ids=str)
def test_kill_9_at_some_moments_is_continued(kind: Kind, struck: Strikes, scratch: Path) -> None:
    kill_at_random_moments(kind, struck, scratch, 2, rows=1024)


@pytest.mark.long
@pytest.mark.parametrize("kind", [*KINDS.values(), Kind("out.pt", "F16")], ids=str)
def test_kill_9_at_many_random_moments_is_continued(
    kind: Kind, struck: Strikes, scratch: Path
) -> None:
    assert kill_at_random_moments(kind, struck, scratch, 24, rows=8192, calls=8) >= 2
