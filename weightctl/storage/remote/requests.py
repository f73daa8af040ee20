"""Options of the clients that send requests, and repetition after temporary failures."""

from __future__ import annotations

import os
import random
import time
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from obstore import exceptions

from weightctl.storage.remote.failures import (
    NO_BUCKET,
    NO_CREDENTIALS,
    MissingBucketError,
    find_failure,
    has_status,
    read_timeout,
)
from weightctl.storage.traffic import TRAFFIC

if TYPE_CHECKING:
    from collections.abc import Callable

    from obstore.store import ClientConfig, RetryConfig

_Made = TypeVar("_Made")

# The number of attempts of a request. The waits between them double, and their sum is about half a
# minute.
_ATTEMPTS = 8
_FIRST_WAIT, _LONGEST_WAIT = 0.25, 10.0
# obstore must not repeat requests: `repeat` does, and counts them.
NO_RETRIES: RetryConfig = {"max_retries": 0, "retry_timeout": timedelta(seconds=180)}


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


def repeat(call: Callable[[], _Made], path: str) -> _Made:
    """Call a function that sends a request, and repeat it after temporary failures.

    Return its result. Raises obstore's exceptions or `OSError` if a failure is not temporary, or if
    all attempts fail. `path` is used in errors.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        TRAFFIC.count(requests=1, retries=attempt > 1)
        try:
            return call()
        except FileNotFoundError as error:
            if find_failure(error) is NO_BUCKET:
                raise MissingBucketError(str(error)) from error
            raise
        except (exceptions.GenericError, ConnectionError, TimeoutError) as error:
            failure = find_failure(error)
            if failure is NO_BUCKET:
                raise MissingBucketError(str(error)) from error
            if failure is NO_CREDENTIALS:
                raise
            # obstore has its own exceptions for these errors, except when it lists objects.
            if has_status(error, 401, 403):
                raise exceptions.PermissionDeniedError(str(error)) from error
            if has_status(error, 404):
                raise FileNotFoundError(path) from error
            if attempt == _ATTEMPTS or (failure and failure.is_final):
                raise
        time.sleep(wait_before(attempt))
    raise AssertionError(path)


def wait_before(retry: int) -> float:
    """Return the number of seconds to wait before a retry; retries are counted from 1."""
    longest = min(_FIRST_WAIT * 2.0 ** (retry - 1), _LONGEST_WAIT)
    return longest * random.uniform(0.5, 1)  # noqa: S311  # spreads requests
