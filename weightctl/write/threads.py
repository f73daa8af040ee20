"""Runs work on several threads, and returns results in order."""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from itertools import chain, islice
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread, local
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeVar

from weightctl.errors import ConversionError
from weightctl.system.processes import defer_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")

FEWER_THREADS = "use fewer threads, which take less memory: -j 2 (threads=2 in Python)"


class StoppedError(Exception):
    """Raised in a thread whose work is no longer needed."""


class _Handed(NamedTuple):
    """A result of item `number`; `taken` gets True when the caller has used the result.

    It gets False if the thread should stop.
    """

    number: int
    made: Any
    taken: SimpleQueue[bool]


class _Done(NamedTuple):
    """A message that an item is done."""

    number: int


def run_all(
    do: Callable[[_Item, Event], object],
    items: Sequence[_Item],
    *,
    threads: int,
    release: Callable[[], object] = lambda: None,
) -> None:
    """Call a function with each item, started in order, and return when all calls have ended.

    Each call also gets an event, which is set after an error or Ctrl-C: the call should then end as
    soon as possible, and its errors are ignored. `release` must end the waiting of calls for other
    calls. With a single item or thread, the calls run in the caller's thread.

    Raises the error of the first call that fails, and `ConversionError` if no thread can be started
    or memory runs out.
    """
    ended = Event()
    threads = min(threads, len(items))
    if threads <= 1:
        with _name_missing_memory(1):
            for item in items:
                do(item, ended)
        return
    with (
        _name_missing_memory(threads),
        _Threads(lambda item, _: do(item, ended), items, threads, ended, release) as workers,
    ):
        workers.wait()


def run_in_order(
    make: Callable[[_Item], Iterable[_Made]],
    items: Iterable[_Item],
    *,
    threads: int,
    results: int = 1,
) -> Generator[_Made, None, None]:
    """Yield the results of `make` for each item, in order, while threads work ahead.

    Each result is valid until the next is requested. At most `results` results of a thread are
    valid at a time, including the one that is being made, so `make` needs this number of buffers
    per thread. Raises the errors of `run_all`.
    """
    following = iter(items)
    first = list(islice(following, 2))
    with _name_missing_memory(threads):
        if len(first) < 2:
            for item in first:
                yield from make(item)
            return
        with _Ordered(make, chain(first, following), threads, results) as workers:
            yield from workers


class _Threads(Generic[_Item]):
    """Threads that process items in order, and send messages to the caller."""

    def __init__(
        self,
        do: Callable[[_Item, int], object],
        items: Iterable[_Item],
        threads: int,
        ended: Event | None = None,
        release: Callable[[], object] = lambda: None,
    ) -> None:
        self._do = do
        self._release_waits = release
        self._items = enumerate(items)
        self._taking = Lock()
        self._most = threads
        self._begun: list[Thread] = []
        self._ended = ended or Event()
        # Waiting for this queue works with Ctrl-C, and needs the fewest imports.
        self.messages: SimpleQueue[_Handed | _Done | BaseException | None] = SimpleQueue()

    def __enter__(self) -> Self:
        try:
            with defer_signals():
                self._start()
        except BaseException:  # a deferred Ctrl-C, or no thread could be started
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with defer_signals():
            self._ended.set()
            self._release()
            for thread in self._begun:
                thread.join()

    def _start(self) -> None:
        for _ in range(self._most):
            # Threads are daemons, so that a process does not wait at exit for unneeded work.
            thread = Thread(target=self._run, name="weightctl", daemon=True)
            try:
                thread.start()
            except (RuntimeError, MemoryError) as error:
                if not self._begun:
                    raise ConversionError(
                        f"cannot start a thread: {error}", hint=FEWER_THREADS
                    ) from error
                return
            self._begun.append(thread)

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                with self._taking:
                    following = next(self._items, None)
                if following is None:
                    break
                number, item = following
                self._do(item, number)
        except BaseException as error:  # noqa: BLE001
            self.messages.put(error)
        else:
            self.messages.put(None)

    def wait(self) -> None:
        """Wait until all threads have ended; raise the error of one of them, if any."""
        for _ in tuple(self._begun):
            failure = self.messages.get()
            if isinstance(failure, BaseException):
                raise failure

    def _release(self) -> None:
        """Release threads that wait for other threads or the caller."""
        self._release_waits()

    @property
    def count(self) -> int:
        return len(self._begun)


class _Untaken(local):
    """The number of a thread's results that were not taken yet, and its queue of answers."""

    def __init__(self) -> None:
        self.count = 0
        self.answers: SimpleQueue[bool] = SimpleQueue()


class _Ordered(_Threads[_Item], Generic[_Item, _Made]):
    """Threads whose results are taken in the order of the items."""

    def __init__(
        self,
        make: Callable[[_Item], Iterable[_Made]],
        items: Iterable[_Item],
        threads: int,
        results: int,
    ) -> None:
        super().__init__(self._hand_over, items, threads)
        self._make = make
        self._results = results
        self._untaken = _Untaken()
        self._waiting: dict[int, deque[_Handed]] = {}

    def _hand_over(self, item: _Item, number: int) -> None:
        """Pass on each result of an item; wait while too many results were not taken."""
        untaken = self._untaken
        for made in self._make(item):
            self.messages.put(_Handed(number, made, untaken.answers))
            untaken.count += 1
            # The results of a thread are taken in the order in which it passes them on.
            while untaken.count >= self._results:
                if not untaken.answers.get():
                    raise StoppedError
                untaken.count -= 1
        self.messages.put(_Done(number))

    def __iter__(self) -> Iterator[_Made]:
        number, running = 0, self.count
        done: set[int] = set()
        while running or number in self._waiting or number in done:
            handed = self._waiting.get(number)
            if handed:
                yield handed[0].made
                with defer_signals():
                    handed.popleft().taken.put(True)
            elif number in done:
                self._waiting.pop(number, None)
                done.remove(number)
                number += 1
            else:
                message = self.messages.get()
                if isinstance(message, BaseException):
                    raise message
                if isinstance(message, _Handed):
                    self._waiting.setdefault(message.number, deque()).append(message)
                elif isinstance(message, _Done):
                    done.add(message.number)
                else:
                    running -= 1

    def _release(self) -> None:
        for handed in chain.from_iterable(self._waiting.values()):
            handed.taken.put(False)
        # This releases threads that wait for a result to be taken; they do not start another item.
        while any(thread.is_alive() for thread in self._begun):
            try:
                message = self.messages.get(timeout=0.01)
            except Empty:
                continue
            if isinstance(message, _Handed):
                message.taken.put(False)


@contextmanager
def _name_missing_memory(threads: int) -> Generator[None, None, None]:
    """Raise `ConversionError` in place of `MemoryError`."""
    try:
        yield
    except MemoryError as error:
        raise ConversionError(
            f"not enough memory for {threads} threads", hint=FEWER_THREADS
        ) from error
