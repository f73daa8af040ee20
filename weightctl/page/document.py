"""Renders a whole HTML page, which loads no resources and runs only its own script."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from importlib.resources import files

from weightctl.page.markup import Markup, element

# With this policy, a browser does not load resources, whatever the page contains.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def render_document(title: str, main: Markup, script: str = "") -> str:
    """Return a page with its style; a browser runs `script`, and no other script on the page."""
    policy, scripts = _POLICY, list[Markup]()
    if script:
        digest = b64encode(sha256(script.encode()).digest()).decode()
        policy += f"; script-src 'sha256-{digest}'"
        scripts = [element("script", Markup(script))]
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        # In the style, the class of problems comes last, so that its color overrides others.
        element("style", Markup(read_asset("style.css"))),
    )
    page = element("html", head, element("body", main, *scripts), lang="en")
    return f"<!DOCTYPE html>\n{page}\n"


def read_asset(name: str) -> str:
    """Return the style or a script of pages, a file of this package, without line breaks."""
    return files("weightctl.page").joinpath(name).read_text("utf-8").replace("\n", "")
