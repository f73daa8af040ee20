"""Signatures of AWS, version 4, as a server checks them in the Authorization header."""

from __future__ import annotations

import hashlib
import hmac
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qsl, quote, unquote

from servers.messages import RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from servers.messages import Request

ALGORITHM = "AWS4-HMAC-SHA256"
# The difference between the clocks of client and server that S3 accepts.
SKEW_SECONDS = 15 * 60
_CREDENTIALS = re.compile(
    ALGORITHM + r" Credential=([^/]+)/(\d{8})/([^/]+)/([^/]+)/aws4_request,"
    r"\s*SignedHeaders=([^,]+),\s*Signature=([0-9a-f]{64})"
)


class Key(NamedTuple):
    """An access key with its secret; temporary keys have a session token."""

    access: str
    secret: str
    token: str | None = None


def check_signature(request: Request, keys: Iterable[Key]) -> None:
    """Check the Authorization header, and that the body is the one that was signed.

    Raises RefusedError as S3 does: InvalidAccessKeyId, SignatureDoesNotMatch, InvalidToken,
    RequestTimeTooSkewed, XAmzContentSHA256Mismatch, AuthorizationHeaderMalformed.
    """
    headers = request.sent_headers
    match = _CREDENTIALS.fullmatch(headers.get("authorization", ""))
    if not match:
        raise RefusedError(400, "AuthorizationHeaderMalformed", "not a signature of version 4")
    access, day, region, service, signed, signature = match.groups()
    key = next((each for each in keys if each.access == access), None)
    if key is None:
        raise RefusedError(403, "InvalidAccessKeyId", access)
    if headers.get("x-amz-security-token") != key.token:
        raise RefusedError(400, "InvalidToken", "the session token is not the one of the key")
    moment = headers.get("x-amz-date", "")
    _check_clock(moment)
    names = signed.split(";")
    unsigned = {"host", *(name for name in headers if name.startswith("x-amz-"))} - set(names)
    # Trailers come after the signature was made.
    unsigned -= {name.strip() for name in headers.get("x-amz-trailer", "").split(",")}
    if unsigned:
        raise RefusedError(403, "AccessDenied", f"headers that must be signed: {sorted(unsigned)}")
    payload = headers.get("x-amz-content-sha256", "UNSIGNED-PAYLOAD")
    canonical = "\n".join(
        [
            request.method,
            quote(unquote(request.target.partition("?")[0]), safe="/-_.~"),
            _canonical_query(request),
            *(f"{name}:{' '.join(headers.get(name, '').split())}" for name in names),
            "",
            signed,
            payload,
        ]
    )
    scope = f"{day}/{region}/{service}/aws4_request"
    text = "\n".join([ALGORITHM, moment, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    signing = f"AWS4{key.secret}".encode()
    for part in (day, region, service, "aws4_request"):
        signing = hmac.digest(signing, part.encode(), "sha256")
    expected = hmac.digest(signing, text.encode(), "sha256").hex()
    if not hmac.compare_digest(expected, signature):
        raise RefusedError(403, "SignatureDoesNotMatch", "the calculated signature differs")
    _check_payload(request, payload)


def _check_clock(moment: str) -> None:
    try:
        sent = datetime.strptime(moment, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        raise RefusedError(403, "AccessDenied", "x-amz-date is missing or malformed") from None
    if abs((datetime.now(UTC) - sent).total_seconds()) > SKEW_SECONDS:
        raise RefusedError(403, "RequestTimeTooSkewed", moment)


def _canonical_query(request: Request) -> str:
    query = request.target.partition("?")[2]
    # A plus sign is a space, as s3rver reads it too: obstore sends it so, and signs %20.
    pairs = parse_qsl(query, keep_blank_values=True)
    encoded = sorted((quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in pairs)
    return "&".join(f"{name}={value}" for name, value in encoded)


def _check_payload(request: Request, payload: str) -> None:
    if payload.startswith("STREAMING-"):
        declared = request.headers.get("x-amz-decoded-content-length")
        if declared != str(request.body.size):
            raise RefusedError(400, "IncompleteBody", f"{request.body.size} bytes, not {declared}")
    elif payload != "UNSIGNED-PAYLOAD" and request.body.hash("sha256").hex() != payload:
        raise RefusedError(400, "XAmzContentSHA256Mismatch", "the body is not the signed one")
