"""`weightctl check`: check the files of a model against rules, and correct what is safe."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Annotated

import typer

from weightctl.cli import options
from weightctl.cli.costs import show_document
from weightctl.cli.render import columns, is_terminal, show_lines, show_notes
from weightctl.errors import ConversionError
from weightctl.text.columns import Cell, hung
from weightctl.text.wording import join_names, pluralize, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from weightctl.check.checking import Checked
    from weightctl.check.rules import JsonChange, RuleFinding

_MOST_NAMED = 3
_LONGEST_VALUE = 60
_STYLES = {"error": "red", "warning": "yellow"}

app = typer.Typer(add_completion=False)


@app.command()
def check(
    *,
    path: options.Path,
    fix: Annotated[bool, typer.Option("--fix")] = False,
    dry_run: options.DryRun = False,
    sarif: options.OutputFile = None,
    force: options.Force = False,
    source_format: options.From = None,
    anonymous: options.Anonymous = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Check config, tokenizer and files of a model against rules, and correct what is safe.

    The rules are about the weights, the index, config.json, generation_config.json, the tokenizer,
    chat templates, the model card, and adapter_config.json. They include the checks 'structure' and
    'names' of 'weightctl verify'. Chat templates are parsed if the package jinja2 is installed; no
    template is run.
    """
    del anonymous  # its callback has taken effect
    from weightctl.check.checking import check as apply_rules
    from weightctl.check.checking import list_inputs

    if dry_run and not fix:
        raise ConversionError(
            "--dry-run can only be used with --fix", hint="without --fix, nothing is written"
        )
    if sarif is not None:
        from weightctl.cli.sarif import check_sarif

        check_sarif(sarif, list_inputs(path, source_format), {}, force=force)
    checked = apply_rules(path, source_format=source_format, fix=fix, dry_run=dry_run)
    code = int(bool(checked.findings or (dry_run and checked.fixed)))
    if sarif is not None:
        found = [*checked.findings, *(checked.fixed if dry_run else ())]
        _write_sarif(sarif, found, exit_code=code, force=force)
    if as_json:
        show_document(checked)
    else:
        show_lines([*_list_lines(checked, fix=fix, dry_run=dry_run, quiet=quiet)])
    show_notes(checked.notes, quiet=quiet)
    if code:
        raise typer.Exit(code)


def _list_lines(checked: Checked, *, fix: bool, dry_run: bool, quiet: bool) -> Iterator[list[Cell]]:
    # Lines for a pipe are not wrapped, unless COLUMNS sets their length.
    room = columns() if (is_terminal() or "COLUMNS" in os.environ) and not quiet else None
    if not quiet:
        yield [Cell(_summarize(checked, fix=fix, dry_run=dry_run), "bold")]
    for finding in checked.fixed:
        verb = "would be fixed" if dry_run else "fixed"
        yield from hung([Cell(f"{verb}: ", "green")], _describe(finding), room)
        if not quiet:
            for text in _list_changes(finding.changes):
                yield from hung([Cell("  ")], text, room, "dim")
    for finding in checked.findings:
        level = _level(finding)
        yield from hung([Cell(f"{level}: ", _STYLES[level])], _describe(finding), room)
        if finding.hint and not quiet:
            yield from hung([Cell("  hint: ", "dim")], finding.hint, room)


def _summarize(checked: Checked, *, fix: bool, dry_run: bool) -> str:
    from weightctl.check.rules import RULES

    head = printable(checked.path)
    count = len(checked.findings)
    if fix and checked.fixed:
        files = len({change.path for each in checked.fixed for change in each.changes})
        verb = "would be fixed" if dry_run else "fixed"
        left = f"; {count} left" if count else ""
        return (
            f"{head}: {pluralize(len(checked.fixed), 'finding')} {verb} in "
            f"{pluralize(files, 'file')}{left}"
        )
    if not count:
        return f"{head}: no findings ({len(RULES)} rules; verify checks the values)"
    fixable = sum(bool(each.changes) for each in checked.findings)
    with_fix = f"; --fix corrects {fixable}" if fixable else ""
    return f"{head}: {pluralize(count, 'finding')}{with_fix}"


def _level(finding: RuleFinding) -> str:
    return finding.level.value if finding.level else ""


def _describe(finding: RuleFinding) -> str:
    where = f" `{finding.where}`" if finding.where else ""
    text = " ".join(finding.text.split())
    return f"{finding.path}:{where} {text} [{finding.rule}]"


def _list_changes(changes: Iterable[JsonChange]) -> Iterator[str]:
    texts: list[str] = []
    for change in changes:
        name = ".".join(change.keys)
        shown = json.dumps(change.value, ensure_ascii=False)
        if len(shown) > _LONGEST_VALUE:
            shown = shown[: _LONGEST_VALUE - 1] + "…"
        texts.append(f"removed {name}" if change.removed else f"{name} = {shown}")
    if texts:
        yield join_names(texts, _MOST_NAMED)


def _write_sarif(
    path: str, findings: Sequence[RuleFinding], *, exit_code: int, force: bool
) -> None:
    """Write a report with all rules, and a result for each finding."""
    from weightctl.check.rules import RULES
    from weightctl.cli.sarif import make_location, make_result, make_rule, write_sarif

    order = [*RULES]
    rules = [
        make_rule(
            name,
            rule.level.value,
            f"{rule.about[:1].upper()}{rule.about[1:]}.",
            f"{rule.details[:1].upper()}{rule.details[1:]}.",
        )
        for name, rule in RULES.items()
    ]
    results = [
        make_result(
            (order.index(each.rule), each.rule, _level(each)),
            f"{printable(each.where)} {printable(each.text)}".strip(),
            make_location(each.path, each.where),
        )
        for each in findings
    ]
    write_sarif(path, rules, results, exit_code=exit_code, force=force)
