"""Repeats requests after temporary failures, and translates their errors."""

from __future__ import annotations

import os
import random
import re
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from obstore import exceptions

from weightctl.errors import FormatError, MissingFileError, OutputError
from weightctl.storage.location import STORAGES
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


class _Failure(NamedTuple):
    """A failure by what obstore says of it, which is only text; a final one would happen again."""

    pattern: str
    reason: str
    hint: str
    is_final: bool = True


_DOWNLOAD_HINT = "download the file with another program first"
_ADDRESS_HINT = "check the URL"
_LATER_HINT = "try again later"
_NO_BUCKET = _Failure(
    "NoSuchBucket|ContainerNotFound|bucket does not exist",
    "the bucket does not exist",
    "check the name of the bucket, and the endpoint",
)
_FAILURES = (
    _NO_BUCKET,
    _Failure("UnexpectedRange|NoContentRange|ParseContentRange",
             "the server sends another range than was requested", _DOWNLOAD_HINT),
    _Failure("MissingContentLength", "the server does not state the length of the file",
             _DOWNLOAD_HINT),
    _Failure("InvalidListResponse", "the answer is not a list of files", _ADDRESS_HINT, False),
    _Failure("TooManyRedirects", "the redirects of the server do not end", _ADDRESS_HINT),
    _Failure(r"BadScheme|status code: 3\d\d |redirect without LOCATION",
             "the server redirects to an address that cannot be read",
             "check the URL, and for buckets the region"),
    _Failure(r"Parse\(\s*TooLarge", "the headers of the answer are too large", _ADDRESS_HINT),
    _Failure(r"hyper::Error\(\s*Parse", "the answer is not HTTP", _ADDRESS_HINT),
    _Failure("Name or service not known|nodename nor servname|No address associated",
             "the host does not exist", "check the name of the host in the URL"),
    _Failure("InvalidCertificate|UnknownIssuer|invalid peer certificate",
             "the certificate of the server is not valid", "check the URL and the clock"),
    _Failure("dns error", "the name of the host cannot be looked up", NETWORK_HINT, False),
    _Failure("ConnectionRefused", "the server refuses connections", "check the port in the URL",
             False),
    _Failure("kind: Timeout|TimedOut", "timed out after {timeout:g} s", NETWORK_HINT, False),
    _Failure("IncompleteMessage|ConnectionReset|BrokenPipe|UnexpectedEof",
             "the server closed the connection", NETWORK_HINT, False),
    _Failure(r"status code: (?:400|405|409|41[01346]|451) ",
             "the server refuses the request with status {status}", _ADDRESS_HINT),
    _Failure(r"status code: \d\d\d ", "the server answers with status {status}", _LATER_HINT,
             False),
)  # fmt: skip


class MissingBucketError(Exception):
    """The bucket does not exist."""


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
        except FileNotFoundError as error:
            if _find_failure(error) is _NO_BUCKET:
                raise MissingBucketError(str(error)) from error
            raise
        except (exceptions.GenericError, ConnectionError, TimeoutError) as error:
            failure = _find_failure(error)
            if failure is _NO_BUCKET:
                raise MissingBucketError(str(error)) from error
            # obstore has its own exceptions for these errors, except when it lists objects.
            if _has_status(error, (401, 403)):
                raise exceptions.PermissionDeniedError(str(error)) from error
            if _has_status(error, (404,)):
                raise FileNotFoundError(path) from error
            if attempt == _ATTEMPTS or (failure and failure.is_final):
                raise
        time.sleep(wait_before(attempt))
    raise AssertionError(path)


def wait_before(retry: int) -> float:
    """Return the number of seconds to wait before a retry; retries are counted from 1."""
    longest = min(_FIRST_WAIT * 2.0 ** (retry - 1), _LONGEST_WAIT)
    return longest * random.uniform(0.5, 1)  # noqa: S311  # spreads requests


def _find_failure(error: BaseException) -> _Failure | None:
    text = str(error)
    return next((each for each in _FAILURES if re.search(each.pattern, text)), None)


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
    if isinstance(error, FileNotFoundError | MissingBucketError):
        return MissingFileError(path, None, reason, hint=hint)
    return FormatError(path, None, f"cannot be {action}: {reason}", hint=hint)


def _explain(error: BaseException, path: str) -> tuple[str, str]:
    scheme = path.partition("://")[0].lower().replace("https", "http")
    login = LOGIN_HINTS.get(scheme, LOGIN_HINTS["http"])
    if scheme in STORAGES and STORAGES[scheme].anonymous in os.environ:
        login = login.partition("; for a public")[0]
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
        (MissingBucketError, _NO_BUCKET.reason, _NO_BUCKET.hint),
        (TimeoutError, "the server did not answer in time", NETWORK_HINT),
    ]  # fmt: skip
    for kind, reason, hint in explanations:
        if isinstance(error, kind):
            return reason, hint
    if failure := _find_failure(error):
        status = re.search(r"status code: (\d\d\d) ", str(error))
        words = {"timeout": read_timeout(), "status": status[1] if status else ""}
        return failure.reason.format(**words), failure.hint
    return _shorten(error), NETWORK_HINT


def _shorten(error: BaseException) -> str:
    """Return the first line of an error's text, without URLs, which may have signatures."""
    line = str(error).strip().partition("\n")[0]
    words = ["(URL)" if "://" in word else word for word in line.split()]
    return " ".join(words)[:300] or type(error).__name__


def as_seconds(value: Any) -> float:
    """Return a time of obstore in seconds since 1970."""
    return float(value.timestamp())
