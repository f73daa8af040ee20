"""An executor that runs calls on the workers of a Dask cluster."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from weightctl.errors import ConversionError
from weightctl.system.registry import name_install
from weightctl.write.executors import WorkerLostError

if TYPE_CHECKING:
    from collections.abc import Callable

# The number of seconds to wait for the scheduler.
_TIMEOUT = 10

_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")


def start(address: str) -> DaskExecutor:
    """Return an executor of the cluster whose scheduler is at `address`, such as "//host:8786"."""
    try:
        from distributed import Client
    except ModuleNotFoundError as error:
        raise ConversionError(
            "--on dask needs the package distributed", hint=f"install it: {name_install('dask')}"
        ) from error
    place = address.removeprefix("//")
    if not place:
        raise ConversionError(
            f"`dask:{address}` has no address of a scheduler",
            hint="write the host and the port, such as dask://127.0.0.1:8786",
        )
    try:
        client: Any = Client(f"tcp://{place}", set_as_default=False, timeout=_TIMEOUT)  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:
        raise ConversionError(
            f"the Dask scheduler at {place} cannot be reached: {error}",
            hint="check the address; `dask scheduler` prints it when it starts",
        ) from error
    return DaskExecutor(client)


class DaskExecutor(Executor):
    """Runs calls on the workers of a `distributed.Client`; `shutdown` closes the client.

    If several workers end during a call, it raises `WorkerLostError`.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._executor: Executor = client.get_executor(pure=False)

    def submit(
        self, fn: Callable[_Given, _Made], /, *args: _Given.args, **kwargs: _Given.kwargs
    ) -> Future[_Made]:
        """Call a function on a worker; the future gets its result or its error."""
        found: Future[_Made] = Future()
        found.set_running_or_notify_cancel()
        inner = self._executor.submit(fn, *args, **kwargs)
        inner.add_done_callback(lambda done: _settle(found, done))
        return found

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Leave the cluster; with `cancel_futures`, drop calls that have not ended."""
        self._executor.shutdown(wait=wait and not cancel_futures)
        self._client.close()


def _settle(found: Future[_Made], done: Future[_Made]) -> None:
    from distributed import KilledWorker

    if done.cancelled():
        found.set_exception(WorkerLostError("the Dask cluster has dropped a task"))
        return
    error = done.exception()
    if isinstance(error, KilledWorker):
        found.set_exception(WorkerLostError(str(error)))
    elif error is not None:
        found.set_exception(error)
    else:
        found.set_result(done.result())
