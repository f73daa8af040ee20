"""Faults on demand: which requests, and what goes wrong with them."""

from __future__ import annotations

import random
import re
import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from servers.messages import RefusedError, Response

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from servers.messages import Request


class Break(NamedTuple):
    """How an answer is interrupted: after so many bytes of its body, None is before its head.

    After the pause the rest follows, unless the connection `ends`: "reset" (RST) or "close" (FIN).
    """

    after: int | None
    pause: float = 0
    ends: str = ""


class Action:
    """What goes wrong with a request. The methods of this class change nothing."""

    upload_limit: int | None = None
    interruption: Break | None = None

    def before(self, request: Request) -> Request:
        """Return the request as the server is to see it. Raises RefusedError to answer at once."""
        return request

    def after(self, response: Response) -> Response:
        """Return the response as it is to be sent."""
        return response


@dataclass(frozen=True)
class Answer(Action):
    """The request is not done, and is answered with an error status.

    With status 200, the body is an error: S3 does so where a long request fails late. An expired
    token is `Answer(400, "ExpiredToken")` on S3, and status 401 or 403 elsewhere. The answer comes
    after `pause` seconds.
    """

    status: int
    code: str = ""
    retry_after: float | None = None
    pause: float = 0

    def before(self, request: Request) -> Request:
        time.sleep(self.pause)
        after = self.retry_after
        headers = {} if after is None else {"Retry-After": f"{after:g}"}
        names = {503: "SlowDown", 500: "InternalError", 429: "TooManyRequests"}
        code = self.code or names.get(self.status, "AccessDenied")
        raise RefusedError(self.status, code, f"{request.method} fails on purpose", headers)


@dataclass(frozen=True)
class Redirect(Action):
    """The request is sent to the same target at another base URL."""

    base: str
    status: int = 302

    def before(self, request: Request) -> Request:
        headers = {"Location": self.base.rstrip("/") + request.target}
        raise RefusedError(self.status, "TemporaryRedirect", "", headers)


@dataclass(frozen=True)
class Reset(Action):
    """The connection is reset after so many bytes of the body of the answer."""

    bytes_sent: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "interruption", Break(self.bytes_sent, ends="reset"))


@dataclass(frozen=True)
class Close(Action):
    """The connection is closed after so many bytes: the body is shorter than Content-Length."""

    bytes_sent: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "interruption", Break(self.bytes_sent, ends="close"))


@dataclass(frozen=True)
class LoseAnswer(Action):
    """The request takes effect, but the connection is reset before the answer."""

    interruption: Break | None = field(default=Break(None, ends="reset"), init=False)


@dataclass(frozen=True)
class Stall(Action):
    """No byte comes for some seconds, after so many bytes of the body; then the rest follows."""

    seconds: float
    bytes_sent: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "interruption", Break(self.bytes_sent, self.seconds))


@dataclass(frozen=True)
class CutUpload(Action):
    """The connection is reset when the server has so many bytes of the body of the request."""

    upload_limit: int | None = 0


@dataclass(frozen=True)
class Truncate(Action):
    """The body has only its first bytes, and Content-Length agrees with it."""

    size: int

    def after(self, response: Response) -> Response:
        headers = {k: v for k, v in response.headers.items() if k.lower() != "content-length"}
        return replace(response, headers=headers, body=response.body.cut(0, self.size))


@dataclass(frozen=True)
class OtherETag(Action):
    """The answer has another ETag, and a precondition on the former one fails."""

    etag: str = '"replaced"'

    def before(self, request: Request) -> Request:
        expected = request.headers.get("if-match")
        if expected not in {None, "*", self.etag}:
            raise RefusedError(412, "PreconditionFailed", "the object has another ETag")
        headers = {k: v for k, v in request.headers.items() if k != "if-match"}
        return replace(request, headers=headers)

    def after(self, response: Response) -> Response:
        if response.status >= 300:
            return response
        headers = {k: v for k, v in response.headers.items() if k.lower() != "etag"}
        return replace(response, headers=headers | {"ETag": self.etag})


@dataclass(frozen=True)
class IgnoreRange(Action):
    """The request is answered as if it had no Range: status 200 and the whole object."""

    def before(self, request: Request) -> Request:
        headers = {k: v for k, v in request.headers.items() if k != "range"}
        return replace(request, headers=headers)


@dataclass(frozen=True)
class Call(Action):
    """A function runs before the request is done: to replace the object between two requests."""

    function: Callable[[], object]

    def before(self, request: Request) -> Request:
        self.function()
        return request


@dataclass
class Fault:
    """An action, and the requests it happens to. `seen` and `done` count them.

    `path` is a regular expression that is searched in the target (path and query); `nth` says
    which of the matching requests, counted from 0; `times` is how often at most.
    """

    action: Action
    method: str | None = None
    path: str = ""
    nth: int | Collection[int] | None = None
    probability: float = 1
    seed: int = 0
    times: int | None = None
    when: Callable[[Request], bool] | None = None
    seen: int = 0
    done: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._lock = threading.Lock()
        self._pattern = re.compile(self.path)

    def strikes(self, request: Request) -> bool:
        """Count a request if it matches; return whether the action happens to it."""
        if self.method not in {None, request.method} or not self._pattern.search(request.target):
            return False
        if self.when and not self.when(request):
            return False
        with self._lock:
            number, drawn = self.seen, self._random.random()
            self.seen += 1
            numbers = {self.nth} if isinstance(self.nth, int) else self.nth
            wanted = numbers is None or number in numbers
            left = self.times is None or self.done < self.times
            strikes = wanted and left and drawn < self.probability
            self.done += strikes
            return strikes
