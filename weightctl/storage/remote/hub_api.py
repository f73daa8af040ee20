"""Sends requests to the API of the Hugging Face Hub, and explains its errors."""

from __future__ import annotations

import json
import os
import re
import ssl
from http.client import HTTPException
from typing import IO, TYPE_CHECKING, Any, NamedTuple
from urllib import request as urllib_request
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit

from weightctl.errors import FormatError, MissingFileError
from weightctl.storage.local_models import expand, hub_home
from weightctl.storage.remote.failures import (
    HUB,
    HUB_LOGIN,
    HUB_UNKNOWN,
    Refusal,
    find_refusal,
    read_timeout,
)
from weightctl.storage.remote.requests import repeat
from weightctl.storage.traffic import TRAFFIC
from weightctl.text.untyped import is_list

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from email.message import Message
    from http.client import HTTPMessage

    from weightctl.errors import WeightctlError
    from weightctl.storage.remote.hub_url import HubPath

_ENDPOINT = "https://huggingface.co"
_TRUE = {"1", "ON", "YES", "TRUE"}
# The largest size of an answer; a listing has some hundred bytes for each file.
_MOST_READ = 100_000_000
_MOST_PAGES = 1000
_PASSING = (408, 429)
_NEXT = re.compile(r'<([^<>]*)>\s*;\s*rel="next"')


class HubError(Exception):
    """The Hub refused a request; has the HTTP status, the Hub's error code, and its message."""

    def __init__(self, status: int, headers: Message) -> None:
        self.status = status
        self.code = headers.get("X-Error-Code", "")
        self.text = headers.get("X-Error-Message", "")
        super().__init__(f"status {status}: {self.text or self.code}")

    @property
    def names(self) -> set[str]:
        """The names by which the tables of refusals recognize it."""
        names = {self.code, str(self.status)}
        if self.status == 401 and self.text.startswith("Invalid credentials"):
            names.add("WrongToken")
        if "is disabled" in self.text:
            names.add("Disabled")
        if self.status in {400, 422} and self.text:
            names.add("Explained")
        if self.status == 403 and self.code != "GatedRepo":
            names.add("Forbidden")
        return names


class HubPassingError(HubError, ConnectionError):
    """The Hub refused a request that may succeed later."""


class Posted(NamedTuple):
    """The body of a POST request, and its content type."""

    body: bytes
    kind: str = "application/json"


class _Answer(NamedTuple):
    content: Any
    following: str  # the URL of the next page, empty for the last


def is_set(name: str) -> bool:
    """Whether a boolean environment variable of the Hub's tools is set."""
    return os.environ.get(name, "").upper() in _TRUE


def endpoint() -> str:
    """Return the URL of the Hub; raises `FormatError` if `HF_ENDPOINT` is not a URL."""
    url = os.environ.get("HF_ENDPOINT", "").rstrip("/") or _ENDPOINT
    if not url.startswith(("https://", "http://")):
        raise FormatError(
            "HF_ENDPOINT", None, "it is not a URL", hint=f"unset it, or use {_ENDPOINT}"
        )
    return url


def read_token() -> str:
    """Return the token from the environment or the login; empty if there is none.

    Raises `FormatError`, without showing the text, if it cannot be a token.
    """
    if is_set("HF_HUB_DISABLE_IMPLICIT_TOKEN"):
        return ""
    name = next(
        (each for each in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN") if os.environ.get(each)), ""
    )
    token, where = os.environ.get(name, ""), name
    if not name:
        where = expand(os.environ.get("HF_TOKEN_PATH") or os.path.join(hub_home(), "token"))
        try:
            with open(where, encoding="utf-8", errors="replace") as file:
                token = file.read(10_000)
        except OSError:
            return ""
    token = token.strip()
    # The token becomes a part of a request header, so it must be printable.
    if token and not (token.isascii() and token.isprintable() and " " not in token):
        raise FormatError(where, None, "it is not a token of the Hugging Face Hub", hint=HUB_LOGIN)
    return token


class _SameHostRedirects(urllib_request.HTTPRedirectHandler):
    """Follows redirects, and removes the token from requests to other hosts."""

    def redirect_request(  # noqa: PLR0917  # the signature of the library
        self,
        req: urllib_request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib_request.Request | None:
        made = super().redirect_request(req, fp, code, msg, headers, newurl)
        if made is not None and _origin(newurl) != _origin(req.full_url):
            made.remove_header("Authorization")
        return made


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    return scheme, parts.hostname, parts.port or {"https": 443, "http": 80}.get(scheme)


def _open_network() -> urllib_request.OpenerDirector:
    # `build_opener` would add handlers of files and FTP.
    opener = urllib_request.OpenerDirector()
    for handler in (
        urllib_request.ProxyHandler(),
        urllib_request.UnknownHandler(),
        urllib_request.HTTPHandler(),
        urllib_request.HTTPSHandler(),
        urllib_request.HTTPDefaultErrorHandler(),
        urllib_request.HTTPErrorProcessor(),
        _SameHostRedirects(),
    ):
        opener.add_handler(handler)
    opener.addheaders = [("User-Agent", "weightctl")]
    return opener


def explain(error: HubError, place: HubPath, url: str) -> FormatError:
    """Return the error to raise for a refused request."""
    found = find_refusal(HUB, error.names) or HUB_UNKNOWN
    # The Hub answers with 401 or 404 for what does not exist, or is private.
    is_missing = error.status in {401, 404} and error.names.isdisjoint({"GatedRepo", "WrongToken"})
    kind = MissingFileError if is_missing else FormatError
    reason, hint = _fill(found, place, error.status)
    return kind(url, None, reason, hint=hint)


def _fill(found: Refusal, place: HubPath, status: int = 0) -> tuple[str, str]:
    """Return the reason and the hint of a row, with the words of a request."""
    parts = urlsplit(endpoint())
    site = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    has_token = bool(read_token())
    token, private = "and whether your token may read it", f"for a private model, {HUB_LOGIN}"
    words = {
        "repository": place.repository,
        "revision": place.revision,
        "status": status,
        "page": f"{site}/{place.repository}",
        "then_login": "" if has_token else f"; then {HUB_LOGIN}",
        "more_login": "" if has_token else f"; a token allows more: {HUB_LOGIN}",
        "and_access": f", {token}" if has_token else f"; {private}",
    }
    return found.reason.format(**words), found.hint.format(**words)


def ask_hub(route: str, place: HubPath, url: str) -> Any:
    """Return the JSON document at a route of the API for model repositories.

    Raises `FormatError`, which names `url`, if the request fails or the Hub refuses it.
    """
    return ask(f"{endpoint()}/api/models/{route}", place, url).content


def ask_pages(route: str, place: HubPath, url: str) -> Iterator[Any]:
    """Yield the entries of a list that may have several pages; raises the errors of `ask_hub`."""
    following = f"{endpoint()}/api/models/{route}"
    for _ in range(_MOST_PAGES):
        answer = ask(following, place, url)
        if not is_list(answer.content):
            raise unexpected_answer(url)
        yield from answer.content
        following = answer.following
        if not following:
            return
    raise unexpected_answer(url)


def ask(
    address: str,
    place: HubPath,
    url: str,
    posted: Posted | None = None,
    meaning: Callable[[HubError, HubPath, str], WeightctlError] = explain,
) -> _Answer:
    """Send a request about a repository, and return the answer.

    If `posted` is given, it is a POST request. A request is repeated after a temporary failure,
    including a lost answer. Raises `FormatError`, which names `url`, if there is no valid answer,
    and the error that `meaning` returns if the Hub refuses the request.
    """
    try:
        return repeat(lambda: _send(address, posted), url)
    except HubError as error:
        raise meaning(error, place, url) from error
    except FormatError:
        raise
    except ValueError as error:
        raise unexpected_answer(url) from error
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise FormatError(
            url, None, f"the Hugging Face Hub cannot be reached: {reason}",
            hint="check the network connection, and HF_ENDPOINT if it is set; to read "
            "only from the cache, set HF_HUB_OFFLINE=1",
        ) from error  # fmt: skip


def _send(address: str, posted: Posted | None) -> _Answer:
    """Send a request once; raises `HubError` if it is refused, and `OSError` without an answer."""
    body = None if posted is None else posted.body
    request = urllib_request.Request(address, body)  # noqa: S310  # the opener only supports HTTP
    if posted is not None:
        request.add_header("Content-Type", posted.kind)
    token = read_token()
    # The URL of a next page comes from an answer, and may be that of another host.
    if token and _origin(address) == _origin(endpoint()):
        request.add_header("Authorization", f"Bearer {token}")
    # Committing many files takes longer than other requests.
    seconds = read_timeout() * (1 if posted is None else 10)
    try:
        with _open_network().open(request, timeout=seconds) as response:
            raw: bytes = response.read(_MOST_READ)
            TRAFFIC.count(read=len(raw), sent=len(body or b""))
            if response.length and len(raw) < _MOST_READ:
                raise ConnectionError("the answer ends too early")
            linked = _NEXT.search(response.headers.get("Link", ""))
            return _Answer(json.loads(raw), linked[1] if linked else "")
    except HTTPError as error:
        error.close()
        is_passing = error.code >= 500 or error.code in _PASSING
        kind = HubPassingError if is_passing else HubError
        raise kind(error.code, error.headers) from None
    except URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            raise
        raise ConnectionError(str(error.reason)) from error
    except HTTPException as error:
        raise ConnectionError(str(error) or type(error).__name__) from error


def unexpected_answer(url: str) -> FormatError:
    """Return the error for an answer that does not have the form of the Hub's answers."""
    return FormatError(
        url, None, "the answer of the Hugging Face Hub is not in the expected form",
        hint="check HF_ENDPOINT, if it is set",
    )  # fmt: skip


def explain_gate(place: HubPath, url: str) -> FormatError:
    """Return the error for a gated model whose conditions the user has not accepted."""
    reason, hint = _fill(HUB[0], place)
    return FormatError(url, None, reason, hint=hint)


def quote_segment(text: str) -> str:
    """Encode text as one segment of a URL's path."""
    return quote(text, safe="")
