"""What a reader of a page has before them: elements and texts, whatever the markup looks like."""

from __future__ import annotations

from functools import cache
from html.parser import HTMLParser
from typing import TYPE_CHECKING
from xml.etree.ElementTree import fromstring

from markdown_it import MarkdownIt

from reports import MADE
from weightctl.verify.report.html import render_page

if TYPE_CHECKING:
    from collections.abc import Iterator
    from xml.etree.ElementTree import Element


@cache
def page_of(name: str) -> str:
    """Return the page of one of the reports that are made by hand."""
    return render_page(MADE[name]())


def parsed(text: str) -> Element:
    """Return the root of a page that is well formed, to the strictest of parsers."""
    return fromstring(text.removeprefix("<!DOCTYPE html>\n"))


def text_of(element: Element) -> str:
    return "".join(element.itertext())


def pictures(text: str) -> dict[str, Element]:
    """Return the pictures of a page by what they say that they show."""
    return {svg.get("aria-label", ""): svg for svg in parsed(text).iter("svg")}


def of_class(root: Element, name: str) -> list[Element]:
    return [each for each in root.iter() if name in each.get("class", "").split()]


def section(text: str, title: str) -> Element:
    """Return the section of a page that has a title."""
    for found in parsed(text).iter("section"):
        if found.findtext("h2") == title:
            return found
    raise AssertionError(title)


_MARKDOWN = MarkdownIt("commonmark").enable("table")


class Rendered(HTMLParser):
    """Markdown as a browser would have it: its tags, and the cells of its tables' rows."""

    def __init__(self, markdown: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.rows: list[list[str]] = []
        self.text = ""
        self._in_cell = False
        self.feed(_MARKDOWN.render(markdown))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del attrs
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in {"td", "th"}:
            self.rows[-1].append("")
            self._in_cell = True

    def handle_endtag(self, tag: str) -> None:
        self._in_cell = self._in_cell and tag not in {"td", "th"}

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._in_cell:
            self.rows[-1][-1] += data

    def tables(self) -> Iterator[int]:
        """Yield how many cells each row has."""
        yield from map(len, self.rows)
