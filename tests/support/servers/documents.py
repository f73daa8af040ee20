"""XML of object stores: requests are parsed, answers are built from nested pairs."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from servers.blobs import Blob
from servers.messages import RefusedError, Response

if TYPE_CHECKING:
    from collections.abc import Iterable

    from servers.messages import Request

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
Content = str | int | bool | list[tuple[str, "Content"]]
Fields = list[tuple[str, Content]]


def document(
    name: str, content: Content, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """Return an answer whose body is an XML document."""
    root = ET.Element(name) if name == "Error" else ET.Element(name, xmlns=NAMESPACE)
    _fill(root, content)
    body: bytes = ET.tostring(root, encoding="UTF-8", xml_declaration=True)
    return Response(status, {"Content-Type": "application/xml"} | (headers or {}), Blob.of(body))


def error(request: Request, refusal: RefusedError) -> Response:
    """Return an error as S3 writes it."""
    content: Content = [
        ("Code", refusal.code),
        ("Message", refusal.message),
        ("Resource", request.path),
        ("RequestId", "0123456789ABCDEF"),
    ]
    return document("Error", content, refusal.status, refusal.headers)


def parse(request: Request) -> ET.Element:
    """Parse the body of a request. Raises RefusedError MalformedXML."""
    try:
        return ET.fromstring(bytes(request.body))
    except ET.ParseError as fault:
        raise RefusedError(400, "MalformedXML", str(fault)) from fault


def text(element: ET.Element, name: str) -> str:
    """Return the text of a child in any namespace. Raises RefusedError MalformedXML without it."""
    found = element.findtext(f"{{*}}{name}")
    if found is None:
        raise RefusedError(400, "MalformedXML", f"{name} is missing")
    return found


def children(element: ET.Element, name: str) -> Iterable[ET.Element]:
    """Return the children of a name in any namespace."""
    return element.findall(f"{{*}}{name}")


def timestamp(seconds: float) -> str:
    """Return a time as documents of S3 write it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def _fill(element: ET.Element, content: Content) -> None:
    if isinstance(content, list):
        for name, inner in content:
            _fill(ET.SubElement(element, name), inner)
    else:
        element.text = str(content).lower() if isinstance(content, bool) else str(content)
