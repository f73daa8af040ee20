"""The outline of a report: sections of content, which each renderer writes in its own format."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from weightctl.text.page.markup import TIMES, shorten, show_times
from weightctl.text.wording import number, percent, pluralize
from weightctl.verify.checks import CHECKS
from weightctl.verify.figures import (
    ForwardFigures,
    ValuesFigures,
    choose_title,
    compare_with_reference,
    sort_strangest_first,
    sort_worst_first,
)
from weightctl.verify.proof.verdicts import ProofFigures, Verdict
from weightctl.verify.report import list_remedies
from weightctl.verify.report.charts import (
    draw_activations,
    draw_divergences,
    draw_errors,
    draw_excesses,
    draw_histogram,
    make_grid,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from weightctl.text.page.markup import Markup
    from weightctl.verify.figures import (
        Activation,
        Divergence,
        LayerDivergence,
        MatrixGain,
        NextToken,
        TensorError,
    )
    from weightctl.verify.results import Problem, Report, Result


State: TypeAlias = Literal["good", "wrong", "different", "skipped"]


class CheckLine(NamedTuple):
    """The name of a check, what it examines, and its result."""

    name: str
    about: str
    verdict: str
    state: State
    summary: str
    seconds: float


class Column(NamedTuple):
    """A column of a table, with the kind of its cells.

    Names and code, which are text from files, are shown as code, and numbers are right-aligned. A
    column that is not `brief` is left out of formats with little room.
    """

    title: str
    kind: Literal["name", "text", "code", "number"] = "text"
    brief: bool = True


class Row(NamedTuple):
    """A row of a table. `note` is added to its first cell; `share`, 0 to 1, is drawn as a bar."""

    cells: tuple[str, ...]
    is_problem: bool = False
    note: str = ""
    share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlineTable:
    """A table with a title and a caption, which may be empty.

    If `marks_problems` is set, rows may be marked as problems. A table that `is_folded` is shown on
    request, and left out of formats that cannot fold it.
    """

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    title: str = ""
    caption: str = ""
    marks_problems: bool = False
    is_folded: bool = False


class Fact(NamedTuple):
    """A number with its name and its meaning."""

    name: str
    value: str
    meaning: str


class Facts(NamedTuple):
    """Facts that are shown side by side."""

    facts: tuple[Fact, ...]


class Paragraph(NamedTuple):
    text: str


class Bullets(NamedTuple):
    items: tuple[str, ...]


class ProblemList(NamedTuple):
    """Problems in the order in which they were found."""

    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart, and its replacement in formats without pictures.

    `draw` returns the picture as SVG. If `sentence` is not empty, it is shown instead of the
    picture, since it says the same. Formats without pictures show a curve of `values`, the `text`
    that explains it, and the table; if there are no `values`, they leave out the chart.
    """

    title: str
    caption: str
    draw: Callable[[], Markup]
    sentence: str = ""
    values: tuple[float, ...] = ()
    text: str = ""
    table: OutlineTable | None = None


Block: TypeAlias = Paragraph | Bullets | ProblemList | Facts | OutlineTable | Chart


class Section(NamedTuple):
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """The content of a report, in reading order, independent of the format."""

    path: str
    reference: str | None
    description: str
    verdict: str
    is_good: bool
    checks: tuple[CheckLine, ...]
    sections: tuple[Section, ...]


# The sections of a report, in their order.


_WORST, _MOST_TENSORS, _GAINS, _LAYERS = 12, 1000, 20, 40


def make_outline(report: Report) -> Outline:
    """Return the outline of a report, which is the same for all formats."""
    sections = (
        Section("Problems", _list_problems(report.problems)),
        Section("Differences", _list_problems(report.differences)),
        Section("What to do next", _list_bullets(list_remedies(report))),
        *_outline_forward(report.figures(ForwardFigures)),
        Section(
            "Values compared with the reference", _outline_values(report.figures(ValuesFigures))
        ),
        Section("Proof", _outline_proof(report.figures(ProofFigures))),
        Section("Notes", _list_bullets(report.notes)),
    )
    return Outline(
        path=report.path,
        reference=report.reference,
        description=report.description,
        verdict=say_verdict(report),
        is_good=not report.problems and not report.differences,
        checks=tuple(
            _outline_check(name, result, report.seconds[name])
            for name, result in report.results.items()
        ),
        sections=tuple(section for section in sections if section.blocks),
    )


def _outline_check(name: str, result: Result, seconds: float) -> CheckLine:
    about = CHECKS[name].about if name in CHECKS else ""
    return CheckLine(name, about, result.verdict, _find_state(result), result.summary, seconds)


def _find_state(result: Result) -> State:
    if result.problems:
        return "wrong"
    if result.differences:
        return "different"
    return "good" if result.verdict == "ok" else "skipped"


def _list_problems(problems: Sequence[Problem]) -> tuple[Block, ...]:
    return (ProblemList(tuple(problems)),) if problems else ()


def _list_bullets(items: Sequence[str]) -> tuple[Block, ...]:
    return (Bullets(tuple(items)),) if items else ()


def _outline_forward(figures: ForwardFigures | None) -> Iterator[Section]:
    if figures is None:
        return
    divergence = figures.divergence
    predictions: list[Block] = []
    if facts := list_facts(figures):
        predictions.append(Facts(tuple(facts)))
    if divergence is not None and divergence.histogram:
        predictions.append(
            Chart(
                title="Difference of the predictions",
                caption="Number of positions by the KL divergence of the model's next-token "
                "distribution from that of the reference.",
                draw=partial(draw_histogram, divergence),
            )
        )
    if figures.next_tokens:
        predictions.append(_list_next_tokens(figures.next_tokens))
    yield Section("Predictions", tuple(predictions))
    layers: list[Block] = []
    if divergence is not None and divergence.layers:
        layers.append(_outline_divergence(divergence))
    if figures.activations:
        layers += _outline_activations(figures.activations)
    yield Section("Layers", tuple(layers))
    yield Section("Matrices", _outline_matrices(figures.matrices))


def _list_next_tokens(tokens: Sequence[NextToken]) -> OutlineTable:
    most = max((token.probability for token in tokens if token.probability <= 1), default=0) or 1
    columns = (
        Column("Next token", "number"), Column("Text", "code"), Column("Probability", "number"),
    )  # fmt: skip
    rows = (
        Row(
            (str(token.token), show_spaces(token.text), percent(token.probability)),
            share=token.probability / most,
        )
        for token in tokens
    )
    return OutlineTable(title="Next tokens predicted", columns=columns, rows=tuple(rows))


def _outline_divergence(divergence: Divergence) -> Chart:
    layers = divergence.layers
    is_usual = all(isfinite(each.divergence) and not each.is_problem for each in layers)
    return Chart(
        title="Difference from the reference, by part",
        caption="Each part runs on the output of the reference's previous part, so that a fault is "
        "shown only where it is. The scale is logarithmic; points on the axis are equal to "
        "the reference.",
        draw=partial(draw_divergences, layers),
        sentence=say_all_usual(layers) if is_usual else "",
        values=tuple(part.divergence for part in layers),
        text="from the embedding to the output (log scale)",
        table=_list_divergences(layers),
    )


def _list_divergences(layers: Sequence[LayerDivergence]) -> OutlineTable:
    order = sorted(layers, key=lambda part: (part.is_problem, part.excess), reverse=True)
    most = max(_WORST, sum(part.is_problem for part in order))
    columns = (
        Column("Part", "name"), Column("Divergence", "number"), Column("Expected", "number"),
        Column("Times expected", "number"),
    )  # fmt: skip
    rows = (
        Row(
            (part.name, percent(part.divergence), percent(part.expected), show_times(part.excess)),
            is_problem=part.is_problem,
        )
        for part in order[: min(most, _LAYERS)]
    )
    return OutlineTable(columns=columns, rows=tuple(rows), marks_problems=True)


def _outline_activations(activations: Sequence[Activation]) -> Iterator[Block]:
    lost = [part for part in activations if part.nonfinite]
    columns = (Column("Part", "name"), Column("NaN or infinite", "number"))
    rows = (Row((part.name, f"{part.nonfinite:,}")) for part in lost[:_LAYERS])
    table = OutlineTable(columns=columns, rows=tuple(rows)) if lost else None
    sound = [part.rms for part in activations if isfinite(part.rms)]
    if not any(sound):
        yield Paragraph("No part has an output that is finite and not 0.")
        yield from [table] if table else []
        return
    ends = f"{number(min(sound))} to {number(max(sound))}"
    yield Chart(
        title="Activations",
        caption="The size of the output values of each part; those of the last part are logits. A "
        "few very large values are usual in language models. The scale is logarithmic.",
        draw=partial(draw_activations, activations),
        values=tuple(part.rms for part in activations),
        text=f"root mean square of the output of each part, {ends} (log scale)",
        table=table,
    )


def _outline_matrices(matrices: Sequence[MatrixGain]) -> tuple[Block, ...]:
    if not matrices:
        return ()
    shown = sort_strangest_first(matrices)[:_GAINS]
    text = (
        "The family is unknown, so that each matrix ran on a random unit vector. The table "
        "compares the length of the product with that for a matrix of independent values of "
        f"the same size. It has the {len(shown)} of {len(matrices):,} matrices that differ "
        "most."
    )
    columns = (
        Column("Matrix", "name"), Column("Shape"), Column("Length", "number"),
        Column("Expected", "number"), Column("Times expected", "number"),
    )  # fmt: skip
    rows = (
        Row(
            (
                matrix.name,
                show_shape(matrix.shape),
                number(matrix.gain),
                number(matrix.usual),
                show_times(matrix.excess),
            )
        )
        for matrix in shown
    )
    return Paragraph(text), OutlineTable(columns=columns, rows=tuple(rows))


def _outline_values(figures: ValuesFigures | None) -> tuple[Block, ...]:
    if figures is None or not figures.tensors:
        return ()
    grid = make_grid(figures.tensors)
    left_out = f" {grid.left_out:,} tensors do not fit here." if grid.left_out else ""
    ranked = sort_worst_first(figures.tensors)
    blocks: list[Block] = [
        Chart(
            title="Error as a multiple of the expected error",
            caption="The relative RMSE of each tensor divided by the error that its encoding "
            "causes for these values. Where a layer has several experts, the largest is "
            f"shown.{left_out}",
            draw=partial(draw_excesses, grid),
        )
    ]
    if _has_size(error.relative_rmse for error in ranked):
        caption = (
            "The root of the sum of squared differences, divided by the root of the sum of "
            "the reference's squares."
        )
        blocks.append(
            Chart(title="Relative RMSE", caption=caption, draw=partial(draw_errors, grid))
        )
    title = f"{choose_title(ranked).capitalize()}, of {pluralize(len(ranked), 'pair')}"
    blocks.append(_list_tensors(ranked[:_WORST], title))
    if len(ranked) > _WORST:
        shown = ranked[:_MOST_TENSORS]
        rest = len(ranked) - len(shown)
        caption = f"{rest:,} more are in the JSON report." if rest else ""
        count = f"the first {len(shown):,}" if rest else f"{len(shown):,}"
        blocks.append(_list_tensors(shown, f"All tensors ({count})", caption, is_folded=True))
    return tuple(blocks)


def _list_tensors(
    errors: Sequence[TensorError], title: str, caption: str = "", *, is_folded: bool = False
) -> OutlineTable:
    columns = (
        Column("Tensor", "name"), Column("Encoding"), Column("Relative RMSE", "number"),
        Column("Expected", "number"), Column("Times expected", "number"),
        Column("Worst group", "number"), Column("Max difference", "number", brief=False),
        Column("Cosine", "number"),
    )  # fmt: skip
    rows = (
        Row(
            (
                error.name,
                error.encodings,
                percent(error.relative_rmse),
                percent(error.expected),
                show_times(error.excess),
                show_times(error.worst),
                number(error.max_error),
                number(error.cosine, 5),
            ),
            is_problem=error.is_problem,
            note=show_shape(error.shape),
        )
        for error in errors
    )
    return OutlineTable(
        columns=columns,
        rows=tuple(rows),
        title=title,
        caption=caption,
        marks_problems=True,
        is_folded=is_folded,
    )


def _outline_proof(figures: ProofFigures | None) -> tuple[Block, ...]:
    """Return the tensors whose bytes do not all follow from the source, worst first."""
    if figures is None:
        return ()
    order = list(Verdict)[::-1]
    found = [each for each in figures.tensors if each.verdict is not Verdict.REPRODUCED]
    found.sort(key=lambda each: (each.verdict is not Verdict.OTHER, order.index(each.verdict)))
    columns = (
        Column("Tensor", "name"), Column("Type"), Column("Verdict"), Column("Blocks", "number"),
        Column("Same", "number"), Column("Reason"),
    )  # fmt: skip
    rows = (
        Row(
            (
                each.name,
                each.encoding,
                str(each.verdict),
                f"{each.blocks:,}",
                f"{each.same:,}",
                ": ".join(filter(None, (each.reason, each.details))),
            ),
            is_problem=each.verdict is Verdict.OTHER,
        )
        for each in found[:_MOST_TENSORS]
    )
    table = OutlineTable(columns=columns, rows=tuple(rows), marks_problems=True)
    return (Paragraph(f"{figures.summarize()}."), *([table] if found else []))


def _has_size(values: Iterable[float]) -> bool:
    """Whether a value is positive and finite, so that a chart can have an axis."""
    return any(isfinite(value) and value > 0 for value in values)


def show_shape(shape: Sequence[int]) -> str:
    """Return a shape, outermost dimension first, with multiplication signs."""
    return f" {TIMES} ".join(map(str, shape))


def say_verdict(report: Report) -> str:
    """Return the overall verdict in one line."""
    ran = sum(not result.skipped for result in report.results.values())
    noun = "difference" if report.comparison else "problem"
    found = len(report.problems) + len(report.differences)
    if found:
        with_some = sum(
            bool(result.problems or result.differences) for result in report.results.values()
        )
        return f"{pluralize(found, noun)} in {with_some:,} of {pluralize(ran, 'check')}"
    left = len(report.results) - ran
    skipped = f", {left} skipped" if left else ""
    return f"no {noun}s found in {pluralize(ran, 'check')}{skipped}"


def list_facts(figures: ForwardFigures) -> list[Fact]:
    """Return facts about the run of a model: name, number and meaning."""
    found: list[Fact] = []
    divergence = figures.divergence
    if figures.perplexity is not None:
        other = divergence.reference_perplexity if divergence else None
        against = (
            "lower is better"
            if other is None
            else compare_with_reference(figures.perplexity, other)
        )
        found.append(Fact("perplexity", number(figures.perplexity, 4), against))
    return found + (_list_divergence(divergence) if divergence else [])


def _list_divergence(divergence: Divergence) -> list[Fact]:
    found: list[Fact] = []
    if divergence.mean is not None:
        found.append(Fact("mean KL", number(divergence.mean), "nats per position"))
    if divergence.percentile_99 is not None:
        found.append(Fact("99th percentile", number(divergence.percentile_99), "nats"))
    if divergence.greatest is not None:
        found.append(Fact("largest KL", number(divergence.greatest), "nats"))
    if divergence.top_1 is not None:
        found.append(Fact("top-1 agreement", percent(divergence.top_1), "same most probable token"))
    if divergence.cosine is not None:
        found.append(Fact("lowest cosine", number(divergence.cosine, 5), "between states"))
    return found


def say_all_usual(layers: Sequence[LayerDivergence]) -> str:
    """Return a sentence for parts that differ as expected, which names the largest difference."""
    most = max(layers, key=lambda part: part.divergence)
    if most.divergence == 0:
        return "The output of every part equals that of the reference."
    usual = f", expected {percent(most.expected)}" if most.expected > 0 else ""
    return (
        "No part differs from the reference by more than expected. The largest difference "
        f"is in `{shorten(most.name, 60)}`, {percent(most.divergence)}{usual}."
    )


def show_spaces(text: str) -> str:
    """Return a token's text with visible spaces."""
    return text.replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥")
