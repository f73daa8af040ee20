"""Manual pages in troff, made of the help pages that commands print."""

from __future__ import annotations

import re

# A help page of so many columns has each text on one line.
COLUMNS = 100_000
_NAMES = {"Exit codes": "EXIT STATUS"}
_MARKS = {"\\": r"\e", "-": r"\-", "'": r"\(aq", "^": r"\(ha", "~": r"\(ti", "`": r"\(ga"}
_BOLD = re.compile(r"`([^`]+)`")
_ROW = re.compile(r"(?:  |      (?=-))(?! )(?P<name>.*?)(?:  +(?P<text>.*))?")
_SENTENCE = re.compile(r"(?<=[.:;]) (?=\S)")


def make_page(name: str, help_page: str, commands: tuple[str, ...]) -> str:
    """Return the manual page `name`: `weightctl` or `weightctl-COMMAND`.

    `help_page` is what `weightctl help COMMAND` prints on a terminal with `COLUMNS` columns.
    `commands` are the names of all commands.
    """
    usage, about, *blocks = help_page.strip("\n").split("\n\n")
    lines = [
        f'.TH "{_escape(name.upper())}" 1 "" "weightctl" "User Commands"',
        ".nh",
        ".ad l",
        ".SH NAME",
        f"{_escape(name)} \\- {_format(about[:1].lower() + about[1:].rstrip('.'))[0]}",
        ".SH SYNOPSIS",
        rf"\fB{_escape(name.replace('-', ' ', 1))}\fP "
        + _escape(usage.removeprefix(f"Usage: {name.replace('-', ' ', 1)} ")),
        ".SH DESCRIPTION",
        *_format(about),
    ]
    for block in blocks:
        title, *rows = block.split("\n")
        if not rows:
            lines += [".PP", *_format(title)]
            continue
        title = title.removesuffix(":")
        lines.append(f'.SH "{_escape(_NAMES.get(title, title.upper()))}"')
        lines += _list_examples(rows) if rows[0].startswith("  $ ") else _list_rows(rows)
    others = ["weightctl", *(f"weightctl-{each}" for each in commands)]
    shown = [rf"\fB{_escape(each)}\fP(1)" for each in others if each != name]
    return "\n".join([*lines, '.SH "SEE ALSO"', ",\n".join(shown), ""])


def _list_rows(rows: list[str]) -> list[str]:
    """Return a list of names with texts; the text of a long name is on the next line."""
    lines: list[str] = []
    for row in rows:
        if match := _ROW.fullmatch(row):
            names = re.sub(r"--?[a-z][\w-]*", r"`\g<0>`", match["name"].strip())
            lines += [".TP", *_format(names)]
        lines += _format((match["text"] or "") if match else row)
    return lines


def _list_examples(rows: list[str]) -> list[str]:
    return [".nf", *(_escape(row.removeprefix("  ")) for row in rows), ".fi"]


def _format(text: str) -> list[str]:
    """Return a text, each sentence on a line, with what is in backticks in bold."""
    parts = _BOLD.split(text.strip())
    shown = "".join(
        rf"\fB{_escape(part)}\fP" if at % 2 else _escape(part) for at, part in enumerate(parts)
    )
    return [rf"\&{line}" if line[0] == "." else line for line in _SENTENCE.split(shown) if line]


def _escape(text: str) -> str:
    return "".join(_MARKS.get(mark, mark) for mark in text).replace('"', r"\(dq")
