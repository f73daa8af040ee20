"""Azurite with bearer tokens, which it accepts over encrypted connections of its own only."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from servers.base import ForwardingServer, RefusedError, Request, Response

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["AZURE_TOKEN", "AzureTokenServer"]

AZURE_TOKEN = "test-azure-token"
_SOURCE = "x-ms-copy-source"


class AzureTokenServer(ForwardingServer):
    """Accepts requests with a bearer token, and no others.

    The emulator gets each of them with a `signature` instead. `tokens` are accepted.
    """

    def __init__(
        self, port: int, signature: str, *, tokens: Iterable[str] = (AZURE_TOKEN,), **options: Any
    ) -> None:
        super().__init__(port, **options)
        self.signature = signature
        self.tokens = set(tokens)

    def answer(self, request: Request) -> Response:
        """Return the answer of the emulator. Raises RefusedError without a valid token."""
        headers = dict(request.headers)
        self._check(headers.pop("authorization", ""), 401, "InvalidAuthenticationInfo")
        if _SOURCE in headers:
            self._check(headers.pop(f"{_SOURCE}-authorization", ""), 403, "CannotVerifyCopySource")
            # The emulator copies from where requests are sent to.
            headers["host"] = f"127.0.0.1:{self.upstream}"
            path = urlsplit(headers[_SOURCE]).path
            headers[_SOURCE] = f"http://{headers['host']}{path}?{self.signature}"
        joint = "&" if "?" in request.target else "?"
        target = f"{request.target}{joint}{self.signature}"
        return super().answer(replace(request, target=target, headers=headers))

    def _check(self, authorization: str, status: int, code: str) -> None:
        if authorization.removeprefix("Bearer ") not in self.tokens:
            raise RefusedError(status, code, "the token is invalid or missing")

    def refuse(self, request: Request, refusal: RefusedError) -> Response:
        """Return an error with the code in a header, as Azure does."""
        found = super().refuse(request, refusal)
        return replace(found, headers=found.headers | {"x-ms-error-code": refusal.code})
