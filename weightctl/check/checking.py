"""Applies all rules to a model, and corrects its JSON files."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.check.model import DOCUMENTS, CheckedModel
from weightctl.check.rules import RULES
from weightctl.errors import ConversionError, WeightctlError
from weightctl.storage.files import is_file, open_reader
from weightctl.storage.location import is_remote, parse_location
from weightctl.system.registry import load
from weightctl.text.rows import Tabular
from weightctl.verify.subject import require_there
from weightctl.write.partial import write_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from weightctl.check.rules import JsonChange, RuleFinding


# A correction can show another fault: with a right index, the tensors can be compared.
_MOST_PASSES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked(Tabular):
    """The result of `check`: what the rules find, in the order of the table.

    `findings` are left. `fixed` are corrected, or would be with `dry_run`; `written` are the paths
    of files that were written. `notes` say what could not be checked, or is unusual.
    """

    path: str
    findings: tuple[RuleFinding, ...]
    fixed: tuple[RuleFinding, ...] = ()
    dry_run: bool = False
    written: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def _records(self) -> Sequence[RuleFinding]:
        return self.findings


def check(
    path: str | os.PathLike[str],
    *,
    source_format: str | None = None,
    fix: bool = False,
    dry_run: bool = False,
) -> Checked:
    """Check the files of a model against all rules, as `weightctl check` does.

    With `fix`, JSON files are corrected where that is safe; each run writes all files or none. With
    `dry_run`, they are not written, and `fixed` has what would be corrected first. Raises
    `FormatError` if there is no model at the path, `ConversionError` if files at a URL would have
    to be corrected, and `OutputError` if a file cannot be written.
    """
    where = parse_location(os.fspath(path)).name
    findings, notes = _apply_rules(where, source_format)
    fixed: list[RuleFinding] = []
    written: dict[str, None] = {}
    for _ in range(_MOST_PASSES if fix else 0):
        # A finding that is left after its correction is not corrected again.
        found = [each for each in findings if each.changes and each not in fixed]
        if not found:
            break
        contents = _change_files([change for each in found for change in each.changes])
        fixed += found
        if dry_run:
            findings = tuple(each for each in findings if not each.changes)
            break
        write_files(contents, force=True)
        written |= dict.fromkeys(contents)
        findings, notes = _apply_rules(where, source_format)
    return Checked(
        path=where,
        findings=findings,
        fixed=tuple(fixed),
        dry_run=dry_run,
        written=tuple(written),
        notes=notes,
    )


def list_inputs(path: str, source_format: str | None = None) -> list[str]:
    """Return the files that `check` reads: weights, index, and JSON files that exist."""
    model = CheckedModel(path, source_format)
    header = model.header
    files = [] if header is None else [*header.files]
    if model.index_path is not None:
        files.append(model.index_path)
    if model.directory is not None:
        files += filter(is_file, map(model.locate, DOCUMENTS))
    return files


def _apply_rules(
    path: str, format_name: str | None
) -> tuple[tuple[RuleFinding, ...], tuple[str, ...]]:
    model = CheckedModel(path, format_name)
    if not model.damaged_documents and model.index is None:
        require_there(model.subject)
    findings: list[RuleFinding] = []
    for name, rule in RULES.items():
        find: Callable[[CheckedModel], Iterable[RuleFinding]] = load(rule.find)
        try:
            findings += [replace(each, rule=name, level=rule.level) for each in find(model)]
        except WeightctlError as error:
            model.notes.append(f"the rule {name} was not applied: {error.message}")
    return tuple(findings), tuple(dict.fromkeys(model.notes))


def _change_files(changes: Sequence[JsonChange]) -> dict[str, bytes]:
    """Return the new contents of changed files, by their real paths."""
    by_path: dict[str, list[JsonChange]] = {}
    for change in changes:
        if is_remote(change.path):
            raise ConversionError(
                f"{change.path} is not on this machine, so it cannot be corrected",
                hint="leave out --fix (fix in Python), or copy the files first",
            )
        by_path.setdefault(os.path.realpath(change.path), []).append(change)
    contents: dict[str, bytes] = {}
    for path, each in by_path.items():
        file = open_reader(path)
        text = str(file.read(0, file.size), "utf-8")
        contents[path] = change_text(text, each).encode()
    return contents


# Changes the text of a JSON file, and keeps its layout and the order of its keys.


_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


class _Member(NamedTuple):
    """An entry of a JSON object: its key, and where the key and the value begin and end."""

    key: str
    start: int
    key_end: int
    value: int
    end: int


def change_text(text: str, changes: Iterable[JsonChange]) -> str:
    """Return the text of a JSON object with changed entries.

    A new entry is added at the end of its object, in the layout of the other entries. Only the text
    of changed entries differs. Raises `ValueError` if the text is not a JSON object.
    """
    for change in changes:
        start = _skip_space(text, 0)
        if text[start : start + 1] != "{":
            raise ValueError("the file is not a JSON object")
        text = _change(text, start, change.keys, change, 1)
    return text


def _change(text: str, start: int, keys: tuple[str, ...], change: JsonChange, depth: int) -> str:
    """Change an entry of the object whose brace is at `start`."""
    members, close = _read_members(text, start)
    key, *rest = keys
    # If a key is repeated, readers take the last value.
    found = next((each for each in reversed(members) if each.key == key), None)
    if found is not None and rest and text[found.value] == "{":
        return _change(text, found.value, tuple(rest), change, depth + 1)
    if change.removed:
        if found is None or rest:
            return text
        # If only the last one went, an earlier one would count.
        return _change(_remove(text, start, members, found, close), start, keys, change, depth)
    value = change.value
    for name in reversed(rest):
        value = {name: value}
    shown = _format_value(value, text, start, members, depth)
    if found is not None:
        return text[: found.value] + shown + text[found.end :]
    entry = f"{_format_value(key, text, start, members, depth)}{_find_colon(text, members)}{shown}"
    if not members:
        return text[: start + 1] + entry + text[close:]
    last = members[-1].end
    return text[:last] + _find_separator(text, start, members) + entry + text[last:]


def _read_members(text: str, start: int) -> tuple[list[_Member], int]:
    """Return the entries of the object whose brace is at `start`, and the place of its end."""
    members: list[_Member] = []
    place = _skip_space(text, start + 1)
    while text[place : place + 1] == '"':
        key, key_end = _DECODER.raw_decode(text, place)
        value = _skip_space(text, _skip_space(text, key_end) + 1)
        _, end = _DECODER.raw_decode(text, value)
        members.append(_Member(key, place, key_end, value, end))
        place = _skip_space(text, end)
        if text[place : place + 1] == ",":
            place = _skip_space(text, place + 1)
    return members, place


def _remove(text: str, start: int, members: list[_Member], found: _Member, close: int) -> str:
    place = members.index(found)
    if place:
        return text[: members[place - 1].end] + text[found.end :]
    if len(members) > 1:
        return text[: found.start] + text[members[1].start :]
    return text[: start + 1] + text[close:]


def _find_separator(text: str, start: int, members: list[_Member]) -> str:
    """Return what is between two entries, a comma and spaces."""
    if len(members) > 1:
        return text[members[-2].end : members[-1].start]
    return "," + (text[start + 1 : members[0].start] or " ")


def _find_colon(text: str, members: list[_Member]) -> str:
    return text[members[-1].key_end : members[-1].value] if members else ": "


def _format_value(value: Any, text: str, start: int, members: list[_Member], depth: int) -> str:
    """Return a value as JSON, indented as the entries of the object are."""
    is_ascii = text.isascii()
    lead = text[start + 1 : members[0].start] if members else ""
    if "\n" not in lead:
        return json.dumps(value, ensure_ascii=is_ascii)
    indent = lead.rpartition("\n")[2]
    unit = indent[: max(len(indent) // depth, 1)] or None
    newline = "\r\n" if "\r\n" in lead else "\n"
    shown = json.dumps(value, ensure_ascii=is_ascii, indent=unit)
    return shown.replace("\n", newline + indent)


def _skip_space(text: str, place: int) -> int:
    found = _SPACE.match(text, place)
    return place if found is None else found.end()
