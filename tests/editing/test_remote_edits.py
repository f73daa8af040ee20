"""Edits of objects in a store, which copies the data itself if it can.

azurite is a server that others wrote. Google Cloud Storage copies whole objects only.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
import safetensors.numpy

from tested_stores import serve
from weightctl import convert, edit, open_weights
from weightctl.editing.edit import Way
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from tested_stores import TestedStore

TENSORS = {
    name: np.random.default_rng(1).standard_normal((512, 512), np.float32)
    for name in ("a.weight", "b.weight", "c.weight", "d.weight")
}
SIZE = sum(each.nbytes for each in TENSORS.values())


@pytest.fixture(params=["s3", "azurite", "gs"])
def store(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    ports: Callable[[str], int],
) -> Generator[TestedStore, None, None]:
    with serve(request.param, monkeypatch, ports) as found:
        yield found


def test_an_object_is_replaced_by_an_edited_one(store: TestedStore, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    convert(TENSORS, path)
    store.put("m.safetensors", path.read_bytes())
    store.put("m-00001-of-00002.safetensors", b"another file")
    url = f"{store.url}/m.safetensors"
    edited = edit(url, metadata={"note": "x" * 999}, rename="a.weight=first.weight")
    assert [part.way for part in edited.parts] == [Way.UPLOAD]
    assert edited.written_bytes is not None
    if not store.url.startswith("gs"):
        assert edited.written_bytes < 0.2 * SIZE
        assert (edited.shared_bytes or 0) > 0.8 * SIZE
    objects = store.read()
    assert objects.keys() == {"m.safetensors", "m-00001-of-00002.safetensors"}
    loaded = safetensors.numpy.load(objects["m.safetensors"])
    assert loaded.keys() == {"first.weight", "b.weight", "c.weight", "d.weight"}
    assert all((loaded[name] == TENSORS[name]).all() for name in ("b.weight", "d.weight"))
    assert header_of(open_weights(url)).metadata["note"].content == "x" * 999


@pytest.mark.parametrize("store", ["s3"], indirect=True)
def test_parts_that_do_not_change_are_left_alone(store: TestedStore, tmp_path: Path) -> None:
    convert(TENSORS, tmp_path / "model", max_shard_size="2.2MB")
    for path in (tmp_path / "model").iterdir():
        store.put(f"model/{path.name}", path.read_bytes())
    before = store.read()
    edited = edit(f"{store.url}/model/", drop="d.weight")
    assert [part.way for part in edited.parts] == [Way.UNCHANGED, Way.UPLOAD]
    after = store.read()
    first, last = (f"model/model-0000{number}-of-00002.safetensors" for number in (1, 2))
    assert after[first] == before[first]
    assert safetensors.numpy.load(after[last]).keys() == {"c.weight"}
    index = json.loads(after["model/model.safetensors.index.json"])
    assert index["weight_map"].keys() == {"a.weight", "b.weight", "c.weight"}
    assert after.keys() == before.keys()
