"""Repeats requests after temporary failures, and translates their errors."""

from __future__ import annotations

import os
import random
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from obstore import exceptions

from weightctl.errors import FormatError, MissingFileError, OutputError
from weightctl.storage.traffic import TRAFFIC

if TYPE_CHECKING:
    from collections.abc import Callable

    from obstore.store import ClientConfig, RetryConfig

__all__ = [
    "LOGIN_HINTS",
    "NETWORK_HINT",
    "NO_RETRIES",
    "ChangedObjectError",
    "ExistingObjectError",
    "MissingObjectError",
    "as_seconds",
    "client_options",
    "cloud_environment",
    "read_timeout",
    "repeat",
    "translate_error",
    "wait_before",
]

_Made = TypeVar("_Made")

# The number of attempts of a request. The waits between them double, and their sum is about half a
# minute.
_ATTEMPTS = 8
_FIRST_WAIT, _LONGEST_WAIT = 0.25, 10.0
# obstore must not repeat requests: `repeat` does, and counts them.
NO_RETRIES: RetryConfig = {"max_retries": 0, "retry_timeout": timedelta(seconds=180)}
# Statuses of refused requests, which would fail again if repeated.
_REFUSED = (400, 405, 409, 410, 411, 413, 414, 416)
LOGIN_HINTS = {
    "hf": "set HF_TOKEN, or log in with `hf auth login`; for some models, you must also ask for "
    "access on their page",
    "s3": "check AWS_PROFILE, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and AWS_SESSION_TOKEN "
    "for temporary credentials; for a public bucket, use --anonymous",
    "gs": "check GOOGLE_APPLICATION_CREDENTIALS, or log in with `gcloud auth application-default "
    "login`; for a public bucket, use --anonymous",
    "az": "check AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or AZURE_STORAGE_SAS_"
    "TOKEN; for a public container, use --anonymous",
    "http": "the server requires a login, or the link has expired",
}
NETWORK_HINT = "check the network connection and try again"


class ChangedObjectError(Exception):
    """The object has changed since it was opened."""


class ExistingObjectError(OutputError):
    """The object exists, and must not be replaced."""


class MissingObjectError(OutputError):
    """The object does not exist."""


def client_options(url: str = "") -> ClientConfig:
    """Return the options of all clients; `url` is the URL to connect to, if known.

    Plain HTTP is allowed if the URL has its scheme. If a connection does not receive data for
    `WEIGHTCTL_TIMEOUT` seconds, 30 by default, it is closed, and its request is repeated.
    """
    options: ClientConfig = {
        "connect_timeout": timedelta(seconds=10),
        "read_timeout": timedelta(seconds=read_timeout()),
        # The limit of a whole request: a slow connection needs minutes for a chunk.
        "timeout": timedelta(minutes=15),
        "user_agent": "weightctl",
        "allow_http": url.startswith("http://"),
    }
    return options


def cloud_environment() -> tuple[tuple[str, str], ...]:
    """Return the environment variables that clients depend on, as a key for caching clients."""
    prefixes = ("AWS_", "AZURE_", "GOOGLE_", "WEIGHTCTL_")
    return tuple(sorted(item for item in os.environ.items() if item[0].startswith(prefixes)))


def read_timeout() -> float:
    """Return the number of seconds without data after which a connection is closed."""
    return float(os.environ.get("WEIGHTCTL_TIMEOUT", "30"))


def repeat(call: Callable[[], _Made], path: str) -> _Made:
    """Call a function that sends a request, and repeat it after temporary failures.

    Return its result. Raises obstore's exceptions or `OSError` if a failure is not temporary, or if
    all attempts fail. `path` is used in errors.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        TRAFFIC.count(requests=1, retries=attempt > 1)
        try:
            return call()
        except (exceptions.GenericError, ConnectionError, TimeoutError) as error:
            # obstore has its own exceptions for these errors, except when it lists objects.
            if _has_status(error, (401, 403)):
                raise exceptions.PermissionDeniedError(str(error)) from error
            if _has_status(error, (404,)):
                raise FileNotFoundError(path) from error
            if attempt == _ATTEMPTS or _has_status(error, _REFUSED):
                raise
        time.sleep(wait_before(attempt))
    raise AssertionError(path)


def wait_before(retry: int) -> float:
    """Return the number of seconds to wait before a retry; retries are counted from 1."""
    longest = min(_FIRST_WAIT * 2.0 ** (retry - 1), _LONGEST_WAIT)
    return longest * random.uniform(0.5, 1)  # noqa: S311  # spreads requests


def _has_status(error: Exception, statuses: tuple[int, ...]) -> bool:
    # obstore only gives the status in the error's text.
    return any(f"status code: {status} " in str(error) for status in statuses)


def translate_error(
    error: BaseException, path: str, action: Literal["read", "written", "listed"] = "read"
) -> FormatError | OutputError:
    """Return the error to raise for a failed request, without credentials in its text."""
    if isinstance(error, FormatError) and action != "written":
        return error  # raised by weightctl, with a hint
    reason, hint = _explain(error, path)
    if action == "written":
        return OutputError(f"{path} cannot be written: {reason}", hint=hint)
    if isinstance(error, FileNotFoundError):
        return MissingFileError(path, None, "No such file or directory", hint=hint)
    return FormatError(path, None, f"cannot be {action}: {reason}", hint=hint)


def _explain(error: BaseException, path: str) -> tuple[str, str]:
    scheme = path.partition("://")[0].lower().replace("https", "http")
    login = LOGIN_HINTS.get(scheme, LOGIN_HINTS["http"])
    explanations: list[tuple[type[BaseException] | tuple[type[BaseException], ...], str, str]] = [
        (FileNotFoundError, "No such file or directory", "check the URL"),
        (ChangedObjectError, "it changed while it was read", "try again when nothing writes to it"),
        (exceptions.PreconditionError, "it changed while it was read",
         "try again when nothing writes to it"),
        (exceptions.AlreadyExistsError, "it exists",
         "to replace it, use --force (force=True in Python)"),
        (exceptions.UnauthenticatedError, "the server did not accept the credentials", login),
        (exceptions.PermissionDeniedError, "access is denied", login),
        (exceptions.NotSupportedError, "the server does not support range requests",
         "download the file first"),
        (TimeoutError, "the server did not answer in time", NETWORK_HINT),
    ]  # fmt: skip
    for kind, reason, hint in explanations:
        if isinstance(error, kind):
            return reason, hint
    return _shorten(error), NETWORK_HINT


def _shorten(error: BaseException) -> str:
    """Return the first line of an error's text, without URLs, which may have signatures."""
    line = str(error).strip().partition("\n")[0]
    words = ["(URL)" if "://" in word else word for word in line.split()]
    return " ".join(words)[:300] or type(error).__name__


def as_seconds(value: Any) -> float:
    """Return a time of obstore in seconds since 1970."""
    return float(value.timestamp())
