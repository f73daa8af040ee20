"""What holds for every format in the table also holds behind every kind of URL."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from copying import contents, copied, held, spoken
from each import each, usual
from hub_fixtures import NEW_MODEL
from strategies import INTERPRETED
from tested_stores import serve, serve_web
from weightctl import open_weights
from weightctl.formats import FORMATS, format_module
from weightctl.plan.plan import Plan
from weightctl.weights import TensorInfo
from weightctl.weights.metadata import MetadataValue
from weightctl.write.save import save
from weightctl.write.targets import target

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from servers.hub import HubServer
    from weightctl import Weights

SHAPES: dict[str, Callable[[int], tuple[int, ...]]] = {
    "one-block": lambda block: (block,),
    "matrix": lambda block: (3, 2 * block),
    "four-dimensions": lambda block: (2, 1, 3, block),
    "no-rows": lambda block: (0, block),
    "nothing": lambda _: (0,),
    "large": lambda block: (70, 64 * block),
}
METADATA = {"name": MetadataValue("string", "größe"), "count": MetadataValue("u32", 7)}


class Place(NamedTuple):
    """A URL below which files can be written, and what returns the bytes of one by its name."""

    url: str
    read: Callable[[str], bytes]


@pytest.fixture(
    params=[
        "file",
        "s3",
        "hf",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("gs", "azurite", "moto")),
    ]
)
def place(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    ports: Callable[[str], int],
    tmp_path: Path,
) -> Generator[Place, None, None]:
    if request.param == "file":
        (tmp_path / "a b").mkdir()
        yield Place(f"file://{tmp_path}/a%20b", lambda name: (tmp_path / "a b" / name).read_bytes())
    elif request.param == "hf":
        hub: HubServer = request.getfixturevalue("xet_hub")
        yield Place(f"hf://{NEW_MODEL}", lambda name: hub.repositories[NEW_MODEL][name])
    else:
        with serve(request.param, monkeypatch, ports) as store:
            yield Place(f"{store.url}/a", lambda name: store.read()[f"a/{name}"])


def filled(length: int) -> bytes:
    return (bytes(range(1, 252)) * (length // 251 + 1))[:length]


def tree(name: str, shape: str) -> Weights:
    """Return a tensor of every encoding that a format holds."""
    unfit = format_module(name).unfit
    encodings = [e for e in INTERPRETED if not unfit([TensorInfo("a", (e.block,), e)])]
    tensors = {
        each.name: (each, sizes, filled(each.nbytes(sizes)))
        for each in encodings
        for sizes in [SHAPES[shape](each.block)]
    }
    return held(tensors, METADATA)


@each("name", FORMATS)
@each("shape", usual(["four-dimensions", "nothing", "large"], SHAPES))
def test_what_is_written_to_a_url_has_the_bytes_of_a_local_file_and_reads_back_equal(
    name: str, shape: str, place: Place, tmp_path: Path
) -> None:
    weights, file = tree(name, shape), f"{shape}{FORMATS[name].suffix}"
    local = copied(weights, tmp_path / file)
    save(Plan.copy(weights, name), target(f"{place.url}/{file}"))
    assert place.read(file) == (tmp_path / file).read_bytes()
    back = open_weights(f"{place.url}/{file}")
    assert back.header.format == name
    assert contents(back) == contents(weights)
    assert spoken(back.metadata) == spoken(local.metadata)


@each("name", FORMATS)
@each("shape", usual(["four-dimensions", "nothing", "large"], SHAPES))
def test_what_a_web_server_has_reads_as_a_local_file_does(
    name: str, shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve_web(monkeypatch, tmp_path) as server:
        weights, file = tree(name, shape), f"{shape}{FORMATS[name].suffix}"
        local = copied(weights, tmp_path / file)
        back = open_weights(f"{server.url}/{file}")
        assert back.header.format == name
        assert contents(back) == contents(weights)
        assert spoken(back.metadata) == spoken(local.metadata)
