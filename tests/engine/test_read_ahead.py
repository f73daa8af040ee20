"""The next weights are read on a thread; fakes stand in for the files and for the GPU here."""

from __future__ import annotations

from threading import Event
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from arrays import stored
from each import each
from engine_graphs import counted, loaded, numbers, ran, stack, stack_weights
from graphics import on_a_gpu
from weightctl import DeviceRef, open_weights
from weightctl.dtype import ENCODINGS
from weightctl.engine import InferenceSession, bound_weights
from weightctl.engine.read_ahead import Arrival, WeightsAhead
from weightctl.engine.stored import InFiles
from weightctl.errors import EngineError
from weightctl.weights.info import TensorInfo

if TYPE_CHECKING:
    from pathlib import Path

HERE = torch.device("cpu")
LIMIT = 30.0


class Place(InFiles):
    """A weight in no file."""

    def __init__(self, name: str) -> None:
        self.info = TensorInfo(name, (1,), ENCODINGS["U8"])

    @property
    def key(self) -> str:
        return self.info.name


class Reading:
    """A copy function that notes the order, and waits for `go`."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.begun, self.go = Event(), Event()

    def __call__(self, place: Any, device: torch.device) -> Arrival:
        assert device == HERE
        self.order.append(place.key)
        self.begun.set()
        assert self.go.wait(LIMIT)
        if place.key == "bad":
            raise EngineError("the file is gone")
        return Arrival(torch.tensor([len(self.order)], dtype=torch.uint8), None)


def places(*names: str) -> dict[Any, torch.device]:
    return {Place(name): HERE for name in names}


def test_weights_are_read_in_the_order_in_which_they_are_announced() -> None:
    reading = Reading()
    ahead = WeightsAhead(reading)
    reading.go.set()
    ahead.start(places("a", "b", "c"))
    found = [ahead.take(Place(name), HERE).raw().tolist() for name in ("c", "a", "b")]
    assert reading.order == ["a", "b", "c"]
    assert found == [[3], [1], [2]]


def test_a_weight_that_is_announced_twice_is_read_once() -> None:
    reading = Reading()
    ahead = WeightsAhead(reading)
    reading.go.set()
    ahead.start(places("a"))
    ahead.start(places("a", "b"))
    for name in ("a", "b"):
        ahead.take(Place(name), HERE)
    assert reading.order == ["a", "b"]


def test_only_the_weights_of_the_last_announcement_are_in_memory() -> None:
    reading = Reading()
    ahead = WeightsAhead(reading)
    ahead.start(places("a", "b"))
    assert reading.begun.wait(LIMIT)
    ahead.start(places("c"))
    reading.go.set()
    (place,) = places("b")
    # It was not being read yet, so it never is.
    assert ahead.take(place, HERE) is place
    assert ahead.take(Place("c"), HERE).raw().tolist() == [2]
    assert reading.order == ["a", "c"]


def test_a_weight_that_was_not_announced_is_read_where_it_is_stored() -> None:
    ahead = WeightsAhead(Reading())
    place = Place("a")
    assert ahead.take(place, HERE) is place


def test_an_error_is_raised_where_the_weight_is_used() -> None:
    reading = Reading()
    reading.go.set()
    ahead = WeightsAhead(reading)
    ahead.start(places("bad"))
    with pytest.raises(EngineError, match="the file is gone"):
        ahead.take(Place("bad"), HERE)
    ahead.start(places("bad"))
    ahead.stop()  # nobody uses it


@each("memory", [0, 700, "1MB"])
def test_a_run_that_reads_ahead_gives_the_same(
    memory: int | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, x = stack_weights(), numbers(5, 8)
    expected = ran(stack(), x, registry=weights)
    tree, reads = counted(open_weights(stored(tmp_path / "a.safetensors", **weights)))
    monkeypatch.setattr(bound_weights, "reads_ahead", lambda _: True)
    waiting: list[int] = []
    start: Any = WeightsAhead.start

    def watch(ahead: WeightsAhead, given: Any) -> None:
        waiting.append(len(given))
        start(ahead, given)

    monkeypatch.setattr(WeightsAhead, "start", watch)
    model = loaded(stack(), tree, memory=memory)
    for _ in range(2):
        np.testing.assert_array_equal(model.execute(x)[0].to_numpy(), expected)
    counts = set(reads.values())
    assert counts == ({2} if not memory else {1} if memory == "1MB" else {1, 2})
    assert max(waiting) == 1


@on_a_gpu
@each("memory", [0, "1MB"])
def test_weights_are_copied_to_a_gpu_while_it_computes(memory: int | str, tmp_path: Path) -> None:
    gpu, width, layers = DeviceRef.GPU(0), 512, 6
    weights = {
        name: array / 16 for name, array in stack_weights(layers=layers, width=width).items()
    }
    x = numbers(5, width)
    expected = ran(stack(layers, width), x, registry=weights)
    tree = open_weights(stored(tmp_path / "a.safetensors", **weights))
    model = InferenceSession([gpu]).load(stack(layers, width, gpu), tree, memory=memory)
    for _ in range(3):
        found = model.execute(x)[0].to_numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
