"""Applies all rules to a model, and corrects its JSON files."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from weightctl.check.json_text import change_text
from weightctl.check.model import DOCUMENTS, CheckedModel
from weightctl.check.rules import RULES
from weightctl.errors import ConversionError, WeightctlError
from weightctl.storage.files import is_file, open_reader
from weightctl.storage.location import is_remote, parse_location
from weightctl.system.registry import load
from weightctl.verify.mistakes import require_there
from weightctl.write.partial import write_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from weightctl.check.findings import JsonChange, RuleFinding

# A correction can show another fault: with a right index, the tensors can be compared.
_MOST_PASSES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The result of `check`: what the rules find, in the order of the table.

    `findings` are left. `fixed` are corrected, or would be with `dry_run`; `written` are the paths
    of files that were written. `notes` say what could not be checked, or is unusual.
    """

    path: str
    findings: tuple[RuleFinding, ...]
    fixed: tuple[RuleFinding, ...] = ()
    written: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


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
        path=where, findings=findings, fixed=tuple(fixed), written=tuple(written), notes=notes
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
            findings += [replace(each, rule=name) for each in find(model)]
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
