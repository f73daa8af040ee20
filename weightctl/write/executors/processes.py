"""An executor that runs calls in processes on this machine, and replaces processes that die."""

from __future__ import annotations

import os
import pickle
import signal
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from subprocess import PIPE
from threading import Lock, Thread, local
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, ParamSpec, TypeVar

from weightctl.errors import ConversionError
from weightctl.system.children import start_python
from weightctl.write.executors import WorkerLostError, make_portable

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO

_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")

_MOST = 1024
# `-c` is used and not `-m`, because a module that is run would be loaded again by its importers.
_PROGRAM = "from weightctl.write.executors.processes import serve; serve()"


def start(address: str) -> ProcessExecutor:
    """Return an executor; `address` is the number of processes, such as "4"."""
    count = int(address) if address.isascii() and address.isdecimal() else 0
    if not 1 <= count <= _MOST:
        raise ConversionError(
            f"the number of processes in `processes:{address}` must be from 1 to {_MOST}",
            hint="for example, processes:4",
        )
    return ProcessExecutor(count)


class ProcessExecutor(Executor):
    """Runs calls in `count` processes; functions, arguments and results are pickled.

    A process starts when it gets its first call. If it dies during a call, the call raises
    `WorkerLostError`, and the next call starts another process. The processes end when this process
    ends, even if it is killed.
    """

    # The processes are on this machine, which therefore waits for its disk itself.
    is_local = True

    def __init__(self, count: int) -> None:
        self.count = count
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="weightctl")
        self._own = local()
        self._lock = Lock()
        self._running: set[_Worker] = set()
        self._has_ended = False

    def submit(
        self, fn: Callable[_Given, _Made], /, *args: _Given.args, **kwargs: _Given.kwargs
    ) -> Future[_Made]:
        """Call a function in a process; the future gets its result or its error."""
        return self._threads.submit(self._call, fn, args, kwargs)

    def process_ids(self) -> list[int]:
        """Return the ids of the processes that are running."""
        with self._lock:
            return [worker.process.pid for worker in self._running]

    def _call(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        worker: _Worker | None = getattr(self._own, "worker", None)
        if worker is None:
            worker = self._own.worker = self._start()
        try:
            is_result, made = worker.call(fn, args, kwargs)
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            self._own.worker = None
            with self._lock:
                self._running.discard(worker)
            worker.end()
            raise WorkerLostError(f"process {worker.process.pid} has ended") from error
        if is_result:
            return made
        raise made

    def _start(self) -> _Worker:
        with self._lock:
            if self._has_ended:
                raise WorkerLostError("the executor has ended")
            worker = _Worker()
            self._running.add(worker)
        return worker

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes: immediately with `cancel_futures`, otherwise after their calls."""
        if cancel_futures:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._end_workers()
        self._threads.shutdown(wait=wait)
        if wait:
            self._end_workers()

    def _end_workers(self) -> None:
        with self._lock:
            self._has_ended = True
            running, self._running = self._running, set()
        for worker in running:
            worker.end()


class _ProcessCall(NamedTuple):
    """A function and its arguments."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class _Worker:
    """A process that runs one call at a time."""

    def __init__(self) -> None:
        self.process = start_python("-c", _PROGRAM, stdin=PIPE, stdout=PIPE, stderr=None)

    def call(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[bool, Any]:
        """Run a call; return True and its result, or False and its error."""
        stdin, stdout = self.process.stdin, self.process.stdout
        if stdin is None or stdout is None:
            raise EOFError  # both are pipes
        pickle.dump((fn, args, kwargs), stdin)
        stdin.flush()
        found: tuple[bool, Any] = pickle.load(stdout)  # noqa: S301 # from a process of our own
        return found

    def end(self) -> None:
        """Kill the process, and wait until it has ended."""
        self.process.kill()
        self.process.wait()
        for pipe in filter(None, (self.process.stdin, self.process.stdout)):
            with suppress(OSError):
                pipe.close()


def serve() -> None:
    """Run the calls that arrive on stdin until it ends; results go to stdout."""
    # Ctrl-C reaches all processes of a terminal; the parent process ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    calls, results = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # Other output to stdout must not mix with the results.
    os.dup2(2, 1)
    waiting: SimpleQueue[_ProcessCall] = SimpleQueue()
    Thread(target=_receive, args=(calls, waiting), daemon=True).start()
    while True:
        call = waiting.get()
        try:
            answer = pickle.dumps((True, call.fn(*call.args, **call.kwargs)))
        except Exception as error:  # noqa: BLE001
            answer = pickle.dumps((False, make_portable(error)))
        results.write(answer)
        results.flush()


def _receive(calls: BinaryIO, waiting: SimpleQueue[_ProcessCall]) -> None:
    """Receive calls; end this process at the end of the pipe, since the parent has ended then."""
    while True:
        try:
            waiting.put(_ProcessCall(*pickle.load(calls)))  # noqa: S301 # from our own process
        except (OSError, EOFError):
            os._exit(1)
        except Exception as error:  # noqa: BLE001 # such as a module that cannot be imported
            waiting.put(_ProcessCall(_raise, (error,), {}))


def _raise(error: Exception) -> NoReturn:
    raise error
