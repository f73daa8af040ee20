"""Describes the result of `verify` as text: problems and their causes, or that none were found."""

from __future__ import annotations

import math
from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING

from weightctl.text.chart import Bar, chart
from weightctl.text.columns import Cell, hung, in_columns, shape_text, width
from weightctl.text.wording import join_names, number, percent, pluralize, printable, say_more
from weightctl.verify.figures import (
    ForwardFigures,
    ValuesFigures,
    choose_title,
    show_cosine,
    sort_strangest_first,
    sort_worst_first,
)
from weightctl.verify.report import list_remedies

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.verify.figures import Divergence, NextToken
    from weightctl.verify.results import Problem, Report, Result

_WORST = 5
# On terminals with fewer columns, the table of tensors leaves out a column.
_FOR_ALL = 100
_SHORT = {"embedding": "in", "output": "out"}
Lines = list[list[Cell]]

# If many tensors have the same problem, at most this number of them are named.
_MOST_PLACES = 12
# At most this number of problems of a check are shown; a report lists all.
_MOST_LISTED = 24


def verdict(report: Report, columns: int, *, wraps: bool, plain: bool = False) -> Lines:
    """Return the lines of a report: verdicts, problems and causes, figures, and remedies.

    Charts have at most `columns` columns. If `wraps` is set, sentences are wrapped to the same
    width. `plain` is for terminals that only have ASCII.
    """
    room = columns if wraps else None
    headline = report.headline
    lines = _head(report, headline, room)
    lines += [[], *_checks(report, room)]
    found = [each for each in (*report.problems, *report.differences) if each != headline]
    for name, problems in groupby(found, key=lambda problem: problem.check):
        lines += [[], [Cell(name, "bold")], *_problems(list(problems), room, headline)]
    # If there is a headline, figures would not add anything to it.
    lines += [] if headline else behavior(report, columns, room, plain=plain)
    lines += [[], *_last(report, room)]
    for advice in list_remedies(report):
        lines += hung([Cell("next: ", "cyan")], advice, room)
    return lines


def _head(report: Report, headline: Problem | None, room: int | None) -> Lines:
    """Return the headline, if any, and the paths of the checkpoints.

    The checkpoint is A and the reference B, as in the sentences of a report.
    """
    lines: Lines = []
    if headline is not None:
        lines += hung([], headline.text, room, "red bold")
        if headline.hint:
            lines += hung([Cell("hint: ", "cyan")], headline.hint, room)
        lines.append([])
    first = [Cell("A: ", "dim") if report.reference is not None else Cell("")]
    title = Cell(printable(report.path), "bold")
    if report.description:
        lines += _under([*first, title, Cell(": ")], report.description, room)
    else:
        lines += hung(first, report.path, room, "bold")
    if report.reference is not None:
        lines += hung([Cell("B: ", "dim")], report.reference, room)
    return lines


def brief(report: Report, in_vain: Sequence[str] = ()) -> Lines:
    """Return a line for each group of equal problems, and for each check in `in_vain`.

    `in_vain` are the requested checks that were skipped.
    """
    skipped: Lines = []
    listed = [*report.problems, *report.differences]
    for check, found in groupby(listed, key=lambda problem: problem.check):
        for (cause, text), alike in groupby(
            found, key=lambda problem: (problem.cause, problem.statement)
        ):
            places = ", ".join(problem.where for problem in alike if problem.where)
            sentence = f"{places}: {text}" if places else text
            why = f" ({cause.text})" if cause else ""
            skipped.append([Cell(f"{check}: "), Cell(_one_line(sentence + why))])
    return [
        *skipped,
        *([Cell(f"{name}: "), Cell(f"skipped: {_one_line(report.results[name].skipped)}")]
          for name in in_vain),
    ]  # fmt: skip


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()))


def _checks(report: Report, room: int | None) -> Lines:
    lines: Lines = []
    widest = max((len(name) for name in report.results), default=0)
    summaries = {name: _summarize_result(result) for name, result in report.results.items()}
    second = max((len(cell.text) for cell in summaries.values()), default=0)
    for name, result in report.results.items():
        heads = [
            Cell(f"  {name:<{widest}}  "),
            summaries[name]._replace(text=f"{summaries[name].text:<{second}}"),
            Cell("  "),
        ]
        lines += hung(heads, result.summary, room, "dim")
    return lines


def _summarize_result(result: Result) -> Cell:
    if result.problems:
        return Cell(result.verdict, "red bold")
    if result.differences:
        return Cell(result.verdict, "yellow bold")
    is_fine = result.verdict == "ok"
    return Cell("ok", "green") if is_fine else Cell(result.verdict, "yellow")


def _problems(problems: list[Problem], room: int | None, headline: Problem | None) -> Lines:
    """Return the lines of a check's problems.

    Consecutive problems with the same text, hint or cause share it. The headline's cause is not
    repeated.
    """
    lines: Lines = []
    left = len(problems)
    shown = 0
    for cause, caused in groupby(problems, key=lambda problem: problem.cause):
        if shown == _MOST_LISTED:
            break
        for hint, hinted in groupby(caused, key=lambda problem: problem.hint):
            for text, group in groupby(hinted, key=lambda problem: problem.statement):
                if shown == _MOST_LISTED:
                    break
                alike = list(group)
                shown += 1
                left -= len(alike)
                places = [printable(problem.where) for problem in alike if problem.where]
                lines += _problem(join_names(places, _MOST_PLACES), text, room)
            if hint:
                lines += hung([Cell("    "), Cell("hint: ", "cyan")], hint, room)
        if cause is not None and not (headline and cause == headline.cause):
            lines += hung([Cell("    likely cause: ", "yellow")], cause.text, room)
    if left:
        lines += hung([Cell("  ")], f"{say_more(left)}; --report FILE lists all", room)
    return lines


def _problem(places: str, text: str, room: int | None) -> Lines:
    first, *rest = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    heads = [Cell("  "), *([Cell(places, "red"), Cell(": ")] if places else [])]
    lines = _under(heads, first, room)
    for line in rest:
        lines += hung([Cell("    ")], line, room)
    return lines


def _under(heads: list[Cell], text: str, room: int | None) -> Lines:
    """Return a text after `heads` if both fit on one line; otherwise on lines below them."""
    if room is None or sum(width(head.text) for head in heads) + width(printable(text)) <= room:
        return hung(heads, text, room)
    first, *others = heads
    head = "".join(other.text for other in others).rstrip()
    above = hung([first], head, room, others[0].style) if others else []
    return [*above, *hung([Cell("    ")], text, room)]


def _doubt(report: Report) -> str:
    """Return a note on what cannot be detected without a reference.

    The note is empty if there is a reference, or if the model did not run.
    """
    forward = report.figures(ForwardFigures)
    if report.reference is not None or forward is None or not forward.activations:
        return ""
    ask = ""
    if forward.perplexity is not None:
        ask = f"; check whether perplexity {number(forward.perplexity)} is right for this model"
    return (
        "without a reference, swapped or slightly wrong weights cannot be detected: "
        f"--against ORIGINAL{ask}"
    )


def _last(report: Report, room: int | None) -> Lines:
    listed = [*report.problems, *report.differences]
    noun = "difference" if report.comparison else "problem"
    skipped = [name for name, result in report.results.items() if result.skipped]
    without = f"; skipped: {', '.join(skipped)}" if skipped else ""
    if not listed:
        checked = len(report.results) - len(skipped)
        if not checked:
            return hung([Cell("nothing was checked", "yellow")], without, room)
        text = f"no {noun}s found in {pluralize(checked, 'check')}"
        found = hung([Cell(text, "yellow" if skipped else "green bold")], without, room)
        return [*found, *(hung([], doubt, room) if (doubt := _doubt(report)) else [])]
    by_check = Counter(problem.check for problem in listed)
    where = ", ".join(f"{count} in {name}" for name, count in by_check.items())
    style = "yellow bold" if report.comparison else "red bold"
    heads = [Cell(pluralize(len(listed), noun), style)]
    if len(by_check) == 1:
        return hung([*heads, Cell(" in ")], next(iter(by_check)) + without, room)
    return hung([*heads, Cell(": ")], where + without, room)


def behavior(report: Report, columns: int, room: int | None, *, plain: bool = False) -> Lines:
    """Return the lines that show the errors of tensors and the figures of the model's run.

    Charts have at most `columns` columns. Sentences and tables have at most `room` columns; if
    `room` is None, they are not wrapped.
    """
    values, forward = report.figures(ValuesFigures), report.figures(ForwardFigures)
    # A comparison lists its tensors as differences.
    blocks = [_worst_tensors(values, room)] if values and not report.comparison else []
    if forward:
        divergence = forward.divergence
        blocks += [
            _activations(forward, columns, plain=plain),
            _divergences(divergence, columns, plain=plain) if divergence else [],
            _agreement(divergence, room) if divergence else [],
            _gains(forward, room),
            _next_tokens(forward, room),
        ]
    return [line for block in blocks if block for line in ([], *block)]


def _worst_tensors(values: ValuesFigures, room: int | None) -> Lines:
    off = [error for error in values.tensors if error.relative_rmse or error.is_problem]
    worst = sort_worst_first(off)[:_WORST]
    if not worst:
        return []
    heads = [Cell("  tensor", "dim"), Cell("")]
    heads += [
        Cell("relative RMSE", "dim", short="RMSE", right=True),
        *(
            Cell(text, "dim", right=True)
            for text in ("expected", "ratio", "max difference", "cosine")
        ),
    ]
    rows = [heads]
    for error in worst:
        style = "red" if error.is_problem else ""
        pair = " ~ ".join(dict.fromkeys((error.encoding, error.reference_encoding)))
        rows.append(
            [
                Cell(f"  {error.name}", style),
                Cell(pair, "cyan", short=error.encoding),
                Cell(percent(error.relative_rmse), style, right=True),
                Cell(percent(error.expected), right=True),
                Cell(number(error.excess), style, right=True),
                Cell(number(error.max_error), right=True),
                Cell(show_cosine(error.cosine), right=True),
            ]
        )
    if room is not None and room < _FOR_ALL:
        rows = [[*row[:5], *row[6:]] for row in rows]
    return [*hung([], choose_title(off), room, "bold"), *in_columns(rows, room)]


def _title(text: str, columns: int) -> Lines:
    return hung([], text, columns, "bold")


def _label(name: str) -> str:
    return _SHORT.get(name, name.rpartition(".")[2])


def _activations(forward: ForwardFigures, columns: int, *, plain: bool) -> Lines:
    if not forward.activations:
        return []
    bars = [
        Bar(_label(each.name), math.inf if each.nonfinite else each.rms, bool(each.nonfinite))
        for each in forward.activations
    ]
    if not any(math.isfinite(bar.value) for bar in bars):
        return _title("activations: the output of every layer is NaN or infinite", columns)
    title = "activations: root mean square of each layer's output (log scale)"
    mark = _explain_marks("NaN or infinite values", bars, columns, plain=plain)
    return [*_title(title, columns), *chart(bars, columns, plain=plain), *mark]


def _explain_marks(meaning: str, bars: Sequence[Bar], columns: int, *, plain: bool) -> Lines:
    """Return the line that explains the marks below bars; nothing if no bar is marked."""
    if not any(bar.is_bad for bar in bars):
        return []
    return hung([Cell("  "), Cell("^ " if plain else "▲ ", "red")], meaning, columns, "dim")


def _divergences(divergence: Divergence, columns: int, *, plain: bool) -> Lines:
    beyond = [each for each in divergence.layers if each.is_problem]
    if not beyond:
        return []
    bars = [Bar(_label(each.name), each.divergence, each.is_problem) for each in divergence.layers]
    first = beyond[0]
    usual = f"expected {percent(first.expected)}" if first.expected else "expected none"
    finding = f"first: {first.name}, {percent(first.divergence)}, {usual}"
    title = "divergence: each layer compared with the reference"
    if not any(0 < bar.value < math.inf for bar in bars):
        return [*_title(title, columns), *hung([Cell("  ")], finding, columns, "red")]
    title += " (log scale)"
    meaning = f"above the expected divergence; {finding}"
    return [
        *_title(title, columns),
        *chart(bars, columns, plain=plain),
        *_explain_marks(meaning, bars, columns, plain=plain),
    ]


def _agreement(divergence: Divergence, room: int | None) -> Lines:
    if divergence.mean is None:
        return []
    figures = [f"mean {number(divergence.mean)}"]
    if divergence.percentile_99 is not None:
        figures.append(f"99th percentile {number(divergence.percentile_99)}")
    if divergence.greatest is not None:
        figures.append(f"largest {number(divergence.greatest)}")
    lines = hung([Cell("KL divergence ", "bold")], f"{', '.join(figures)} nats", room)
    if divergence.top_1 is not None:
        text = f"at {percent(divergence.top_1)} of positions"
        lines += hung([Cell("same top token ", "bold")], text, room)
    return lines


def _gains(forward: ForwardFigures, room: int | None) -> Lines:
    """Return a table of the matrices whose gain is farthest from the usual gain."""
    strange = sort_strangest_first(forward.matrices)
    if not strange:
        return []
    heads = ("matrices, each on a random unit vector", "", "length", "expected")
    rows = [[Cell(text, "dim", right=place > 0) for place, text in enumerate(heads)]]
    rows += [
        [
            Cell(f"  {each.name}"),
            Cell(shape_text(each.shape), right=True),
            Cell(number(each.gain), right=True),
            Cell(number(each.usual), right=True),
        ]
        for each in strange[:_WORST]
    ]
    return in_columns(rows, room)


def _next_tokens(forward: ForwardFigures, room: int | None) -> Lines:
    if not forward.next_tokens:
        return []
    texts: Sequence[str] = [
        f"{_token(each)} {percent(each.probability)}" for each in forward.next_tokens
    ]
    return hung([Cell("next token ", "bold")], ", ".join(texts), room)


def _token(token: NextToken) -> str:
    return f"“{printable(token.text)}”" if token.text else f"token {token.token}"
