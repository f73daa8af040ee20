"""An executor that runs calls on the workers of a Ray cluster."""

from __future__ import annotations

import os
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from weightctl.errors import ConversionError
from weightctl.system.registry import name_install
from weightctl.write.executors import WorkerLostError, make_portable

if TYPE_CHECKING:
    from collections.abc import Callable

_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")

# The variables and the file in which Ray looks for a token, which a cluster may require.
_AUTH_VARIABLES = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
_AUTH_FILE = "~/.ray/auth_token"
# Settings that Ray reads when it is imported. By default, it reports usage and hides GPUs.
_SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


def start(address: str) -> RayExecutor:
    """Return an executor of the cluster at `address`, such as "//host:10001".

    If the address is empty, the cluster is that of RAY_ADDRESS, or a new one on this machine. An
    existing connection of this process is used, and not closed.
    """
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    if address and _has_token():
        # If a token exists, `ray start` requires it, but Ray's client only sends it with this mode.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    try:
        import ray
    except ModuleNotFoundError as error:
        raise ConversionError(
            "--on ray needs the package ray", hint=f"install it: {name_install('ray')}"
        ) from error
    if address and not address.removeprefix("//"):
        raise ConversionError(
            f"`ray:{address}` has no address of a cluster",
            hint="write the host and the port, such as ray://127.0.0.1:10001, or only ray",
        )
    found: Any = ray
    is_ours = not found.is_initialized()
    if is_ours:
        place = f"ray://{address.removeprefix('//')}" if address else None
        try:
            found.init(place, log_to_driver=False, logging_level="error")
        except (OSError, ImportError, RuntimeError, ValueError) as error:
            reason = str(error).strip()
            if "Traceback" in reason:  # of the server; it ends in the reason
                reason = reason.splitlines()[-1]
            raise ConversionError(
                f"the Ray cluster {place or ''} cannot be reached: {reason}".replace("  ", " "),
                hint="check the address, which `ray start --head` prints when it starts; a cluster "
                f"that asks for a token needs a copy of its {_AUTH_FILE} on this machine",
            ) from error
    return RayExecutor(found, is_ours=is_ours)


def _has_token() -> bool:
    has_variable = any(name in os.environ for name in _AUTH_VARIABLES)
    return has_variable or os.path.isfile(os.path.expanduser(_AUTH_FILE))


class RayExecutor(Executor):
    """Runs calls on the workers of a Ray cluster; each call takes one CPU.

    If a worker ends during a call, the call raises `WorkerLostError`. `shutdown` closes the
    connection if `is_ours` is set.
    """

    def __init__(self, ray: Any, *, is_ours: bool) -> None:
        self._ray = ray
        self._is_ours = is_ours
        self._answer = ray.remote(num_cpus=1, max_retries=0)(_answer)
        self._running: dict[Future[Any], Any] = {}

    def submit(
        self, fn: Callable[_Given, _Made], /, *args: _Given.args, **kwargs: _Given.kwargs
    ) -> Future[_Made]:
        """Call a function on a worker; the future gets its result or its error."""
        found: Future[_Made] = Future()
        found.set_running_or_notify_cancel()
        call = self._running[found] = self._answer.remote(fn, args, kwargs)
        self._watch(call.future(), found)
        return found

    def _watch(self, done: Future[tuple[bool, Any]], found: Future[_Made]) -> None:
        done.add_done_callback(lambda ended: self._settle(found, ended))

    def _settle(self, found: Future[_Made], done: Future[tuple[bool, Any]]) -> None:
        self._running.pop(found, None)
        error = done.exception()
        if error is not None:
            # Errors of the call are returned as results; Ray's errors concern the worker.
            text = str(error).partition("\n")[0]
            found.set_exception(WorkerLostError(f"{type(error).__name__}: {text}"))
            return
        is_result, made = done.result()
        if is_result:
            found.set_result(made)
        else:
            found.set_exception(made)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Leave the cluster; with `cancel_futures`, drop calls that have not ended."""
        calls = list(self._running.values())
        if cancel_futures:
            for call in calls:
                self._ray.cancel(call, force=True)
        elif wait and calls:
            self._ray.wait(calls, num_returns=len(calls))
        if self._is_ours:
            self._ray.shutdown()


def _answer(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[bool, Any]:
    """Run a call; return True and its result, or False and its error."""
    try:
        return True, fn(*args, **kwargs)
    except Exception as error:  # noqa: BLE001
        return False, make_portable(error)
