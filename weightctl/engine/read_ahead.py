"""Reading of the next weights on a thread, while the device computes with the current ones."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.engine.stored import InFiles, InMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence
    from concurrent.futures import Future

    import torch
    from torch import Tensor

    from weightctl.device import DeviceRef
    from weightctl.engine.stored import StoredWeight
    from weightctl.weights.info import TensorInfo


def reads_ahead(device: DeviceRef) -> bool:
    """Whether weights for a device are read on a thread before they are used."""
    return device.kind != "cpu"


class Arrival(NamedTuple):
    """The bytes of a weight, and the event after which they are on their device, if it is a GPU."""

    raw: Tensor
    event: Any


class WeightsAhead:
    """The weights that are being read for the next operation, each on its way to a device.

    A weight for a GPU is read into pinned memory and copied on a stream of its own, so that neither
    the copy nor the computation waits for the other. Only the weights of the last `start` are in
    memory: those that were not taken are dropped.
    """

    def __init__(self, copy: Callable[[InFiles, torch.device], Arrival] | None = None) -> None:
        self._copy = copy or _read
        self._coming: dict[Hashable, tuple[TensorInfo, Future[Arrival]]] = {}

    def start(self, places: Mapping[InFiles, torch.device]) -> None:
        """Begin to read weights, one after another, instead of those announced before."""
        wanted = {(place.key, device): place for place, device in places.items()}
        for key in [key for key in self._coming if key not in wanted]:
            self._coming.pop(key)[1].cancel()
        for key, place in wanted.items():
            if key not in self._coming:
                future = _pool(os.getpid()).submit(self._copy, place, key[1])
                self._coming[key] = (place.info, future)

    def take(self, place: StoredWeight, device: torch.device) -> StoredWeight:
        """Return a weight in memory if it has been announced; waits until it is there."""
        if not isinstance(place, InFiles):
            return place
        found = self._coming.pop((place.key, device), None)
        if found is None:
            return place
        info, future = found
        arrival = future.result()
        if arrival.event is not None:
            _wait_for(arrival)
        return InMemory(info, arrival.raw)

    def stop(self) -> None:
        """Drop the weights that were not taken, and wait until none is being read."""
        futures: Sequence[Future[Arrival]] = [future for _, future in self._coming.values()]
        self._coming.clear()
        for future in futures:
            if not future.cancel():
                future.exception()


def _read(place: InFiles, device: torch.device) -> Arrival:
    """Read a weight and start to copy it to its device."""
    if device.type == "cpu":
        return Arrival(place.raw(), None)
    import torch

    # torch has no annotations for streams and events.
    cuda: Any = torch.cuda
    stream = _stream(device)
    with torch.inference_mode(), cuda.stream(stream):
        # torch frees pinned memory for others only after the copies from it.
        raw = place.raw(pinned=True).to(device, non_blocking=True)
        event = cuda.Event()
        event.record(stream)
    return Arrival(raw, event)


def _wait_for(arrival: Arrival) -> None:
    """Let the current stream of the device wait for a copy, not the CPU."""
    import torch

    cuda: Any = torch.cuda
    stream = cuda.current_stream(arrival.raw.device)
    stream.wait_event(arrival.event)
    # The memory belongs to the stream of copies, and is used by this one.
    raw: Any = arrival.raw
    raw.record_stream(stream)


@cache
def _stream(device: torch.device) -> Any:
    """Return the stream of copies to a device."""
    import torch

    cuda: Any = torch.cuda
    return cuda.Stream(device)


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """Return the thread of a process: that of its parent does not exist in a forked process."""
    del process
    return ThreadPoolExecutor(1, thread_name_prefix="weightctl-weights")
