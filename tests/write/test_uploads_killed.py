"""An upload that is killed at any moment is continued by the same command."""

from __future__ import annotations

import random
import shutil
import signal
import statistics
from itertools import product
from typing import TYPE_CHECKING

import pytest

from outcomes import random_model, strikes
from tested_stores import PART, serve, visible
from weightctl import convert

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from outcomes import Strikes
    from tested_stores import TestedStore

# By name: the output, and options.
OUTPUTS = {
    "a file": ("out.safetensors", ()),
    "a directory with parts": ("out/", ("--dtype", "f32", "--max-shard-size", "5MB")),
}


@pytest.fixture(scope="module")
def model(scratch: Path) -> Path:
    """A model of 12 MB, so that it has dozens of parts of the size that uploads have."""
    return random_model(scratch / "model", 3, 1024)


@pytest.fixture
def store(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, ports: Callable[[str], int]
) -> Generator[TestedStore, None, None]:
    with serve(request.param, monkeypatch, ports) as found:
        yield found


@pytest.fixture
def struck(store: TestedStore, scratch: Path) -> Generator[Strikes, None, None]:
    # The runs are processes of their own, with the environment that leads to the server.
    assert store.server.port
    with strikes(scratch, begin_after=0, limit=60, part=PART) as running:
        yield running


@pytest.mark.parametrize(
    ("store", "source", "kind", "moments"),
    [
        ("s3", "local", "a directory with parts", 1),
        *(
            pytest.param(*row, 12 if row[0] == "s3" else 6, marks=pytest.mark.long)
            for row in product(["s3", "gs", "azurite"], ["local", "the store"], OUTPUTS)
        ),
    ],
    indirect=["store"],
)
def test_kill_9_at_random_moments_is_continued(
    kind: str,
    source: str,
    moments: int,
    store: TestedStore,
    struck: Strikes,
    model: Path,
    scratch: Path,
) -> None:
    name, options = OUTPUTS[kind]
    read = str(model)
    if source != "local":
        read = f"{store.url}/in"
        for path in model.iterdir():
            store.put(f"in/{path.name}", path.read_bytes())
    (here := scratch / "here").mkdir()
    convert(
        model, f"{here}/{name}", **({"dtype": "f32", "max_shard_size": "5MB"} if options else {})
    )
    whole = {
        str(path.relative_to(here)): path.read_bytes() for path in here.rglob("*") if path.is_file()
    }
    shutil.rmtree(here)
    options = (*options, "-q", "-j", "1")
    spans = [
        struck.run("convert", read, f"{store.url}/span{number}/{name}", *options)
        for number in range(1 if moments == 1 else 2)
    ]
    assert not any(span.code for span in spans), spans[0].errors
    span = statistics.median(each.seconds for each in spans)
    chance = random.Random(f"{kind} {source}")
    stopped = 0
    for moment in range(moments):
        place = f"{moment}/"
        arguments = ("convert", read, f"{store.url}/{place}{name}", *options)
        # The run that is measured first is the slowest: a single moment is not a late one.
        seconds = span * (0.4 if moments == 1 else (moment + chance.random()) / moments)
        ended = struck.run(*arguments, number=signal.SIGKILL, seconds=seconds)
        assert ended.code in (0, -signal.SIGKILL), ended.errors
        stopped += ended.code != 0
        complete = {place + key: content for key, content in whole.items()}
        found = store.read(place)
        assert visible(found).items() <= complete.items()
        there = store.list_arrived()
        store.server.forget()
        # A run may be killed when nothing is left to do but to exit.
        if ended.code and found != complete:
            again = struck.run(*arguments)
            assert again.code == 0, again.errors
        assert store.read(place) == complete
        assert not store.list_arrived()
        assert not there & {*store.list_sent()}
    assert stopped
