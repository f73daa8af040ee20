"""The weights of a loaded graph: read when they are used, before that, or once."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import local
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from weightctl.device import CPU
from weightctl.engine.products import EncodedMatrix, is_encoded_matrix
from weightctl.engine.stored_weights import InFiles, InMemory
from weightctl.engine.weight_forms import is_kept_as_stored, make_tensor, place_of_stored
from weightctl.graph.ops.lowering import torch_device

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence
    from concurrent.futures import Future

    import torch
    from torch import Tensor

    from weightctl.device import DeviceRef
    from weightctl.engine.stored_weights import StoredWeight
    from weightctl.engine.weight_forms import WeightForm
    from weightctl.weights.info import TensorInfo


class _RunState(local):
    """What belongs to the run of one thread, because several threads can run a graph."""

    def __init__(self) -> None:
        self.ahead = WeightsAhead()


class BoundWeights:
    """The weights of a graph, each with the place where its bytes are stored.

    `found` has the places by base forms. A weight is read on each use and not kept. The weights of
    `resident` are read once, in the constructor: values are kept on their device in the form in
    which the graph reads them. Blocks, and matrices that products decode, are kept as stored. Of
    other weights, up to `memory` bytes are kept as stored after their first use. `rounds_bf16` is
    that of `EncodedMatrix`.
    """

    def __init__(
        self,
        found: Mapping[WeightForm, StoredWeight],
        resident: Sequence[WeightForm] = (),
        memory: int = 0,
        *,
        rounds_bf16: bool = False,
    ) -> None:
        self._rounds_bf16 = rounds_bf16
        self._found = dict(found)
        self._ready: dict[WeightForm, Tensor] = {}
        # What was found for forms before, by their identity: to compare them takes longer.
        self._seen: dict[int, tuple[WeightForm, Tensor | None]] = {}
        self._matrices: dict[int, tuple[WeightForm, EncodedMatrix]] = {}
        self._sources = list({
            id(place.source): place.source for place in found.values() if place.source is not None
        }.values())  # fmt: skip
        self._room = memory
        self._held: dict[Hashable, StoredWeight] = {}
        self._run = _RunState()
        self._read_all(resident)

    def ready(self, form: WeightForm) -> Tensor | None:
        """Return a resident weight as the graph reads it; None if it is not kept as values."""
        seen = self._seen.get(id(form))
        if seen is None:
            seen = self._seen[id(form)] = form, self._ready.get(form)
        return seen[1]

    @property
    def is_resident(self) -> bool:
        """Whether weights are kept as values, so that none need to be read ahead."""
        return bool(self._ready)

    def tensor(self, form: WeightForm) -> Tensor:
        """Return a weight in the requested form, read now or in advance."""
        return make_tensor(self._take(form.base), form)

    def matrix(self, form: WeightForm) -> EncodedMatrix | None:
        """Return a weight that is decoded within a product; None for other weights."""
        if (seen := self._matrices.get(id(form))) is not None:
            return seen[1]
        if not is_encoded_matrix(self._found[form.base].info, form):
            return None
        place = self._take(form.base)
        matrix = EncodedMatrix(place, form, rounds_bf16=self._rounds_bf16)
        if isinstance(place, InMemory) and self._found[form.base] is place:
            self._matrices[id(form)] = form, matrix
        return matrix

    def pick_rows(self, form: WeightForm, numbers: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the rows of a weight that `numbers` selects, and the index of each number in them.

        Only these rows are read. Returns None if single rows cannot be read: if the weight is in
        memory or transposed, if it is stored with another number of rows (blocks stored as plain
        bytes may be), if a row does not start on a byte, or if a number is out of range.
        """
        place, (count, *row) = self._found[form.base], form.shape
        if not isinstance(place, InFiles) or place.is_borrowed or form in self._ready:
            return None
        if form.is_transposed:
            return None
        stored_count, *stored_row = place.info.shape
        if stored_count != count or not place.info.encoding.fits(stored_row):
            return None
        import torch

        # torch has no annotations for `unique`.
        wanted, among = cast("Any", torch).unique(numbers, return_inverse=True)
        chosen: list[int] = wanted.tolist()
        if not all(0 <= number < count for number in chosen):
            return None
        return make_tensor(place.rows(chosen), form._replace(shape=(len(chosen), *row))), among

    def is_borrowed(self, form: WeightForm) -> bool:
        """Whether the result of `tensor` shares memory that other code uses."""
        return form in self._ready or self._found[form.base].is_borrowed

    def expect(self, forms: Sequence[WeightForm]) -> None:
        """Announce the weights of the next operation that uses weights.

        Those for a GPU are read on a thread, and the operating system is asked to read those for
        the CPU: a thread did not make runs on the CPU faster.
        """
        reads: dict[InFiles, torch.device] = {}
        for form in forms:
            place = self._found[form.base]
            if not isinstance(place, InFiles) or place.is_borrowed or form in self._ready:
                continue
            if reads_ahead(form.device):
                reads[place] = self._place_of(place, form)
            else:
                place.expect()
        self._run.ahead.start(reads)

    def stop_reading(self) -> None:
        """Drop the weights that were read in advance and not used."""
        self._run.ahead.stop()

    def _take(self, base: WeightForm) -> StoredWeight:
        """Return a weight that was read in advance, or the place where it is stored."""
        place = self._found[base]
        if not isinstance(place, InFiles) or place.is_borrowed:
            return place
        held = self._held.get(place.key)
        if held is None:
            held = self._run.ahead.take(place, self._place_of(place, base))
            if place.info.nbytes > self._room:
                return held
            self._room -= place.info.nbytes
            held = self._held[place.key] = InMemory(place.info, held.raw())
        self._found[base] = held
        return held

    def _place_of(self, place: InFiles, form: WeightForm) -> torch.device:
        """Return the device to which a weight is read: the CPU if it is kept for further runs."""
        is_kept = place.info.nbytes <= self._room
        return torch_device(CPU) if is_kept else place_of_stored(place.info, form)

    def refuse_change(self) -> None:
        """Raise `FormatError` if a file has been written to since it was opened."""
        for source in self._sources:
            source.refuse_change()

    def _read_all(self, reads: Sequence[WeightForm]) -> None:
        together: dict[object, list[WeightForm]] = {}
        for form in reads:
            together.setdefault(self._found[form.base].key, []).append(form)
        for forms in together.values():
            place = self._found[forms[0].base]
            held = InMemory(place.info, place.raw())
            same: dict[object, Tensor] = {}
            moved: dict[object, StoredWeight] = {}
            for form in forms:
                if is_encoded_matrix(place.info, form):
                    self._found[form.base] = held
                    continue
                if is_kept_as_stored(place.info, form):
                    where = place_of_stored(place.info, form)
                    if where not in moved:
                        moved[where] = InMemory(place.info, held.raw().to(where))
                    self._found[form.base] = moved[where]
                    continue
                # Only the values are kept: the bytes that they were decoded from are freed.
                upright = form._replace(is_transposed=False)
                kind = upright._replace(name="", weight=0, whole=None, second_names=())
                if kind not in same:
                    same[kind] = make_tensor(held, upright)
                self._ready[form] = same[kind].T if form.is_transposed else same[kind]


# Reading of the next weights on a thread, while the device computes with the current ones.


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
