"""Describes the plan and the outcome of a conversion as text and as JSON."""

from __future__ import annotations

import json
import os
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from weightctl.cli.costs import (
    document_network,
    document_times,
    document_workers,
    list_costs,
    list_workers,
)
from weightctl.cli.render import note
from weightctl.errors import OutputError
from weightctl.plan.plan import is_renamed
from weightctl.plan.recipe_lines import OTHERWISE
from weightctl.plan.type_rules import BY_RULE
from weightctl.system.files import fold_path
from weightctl.text.columns import Cell, make_shape_cells
from weightctl.text.sizes import format_size
from weightctl.text.wording import join_names, pluralize, printable, say_more
from weightctl.write.conversion import notes_on
from weightctl.write.executors import is_shared
from weightctl.write.locks import find_journal
from weightctl.write.outcome import input_files
from weightctl.write.targets import (
    check_place,
    is_stream,
    refuse_inputs,
    refuse_what_is_there,
    stream_name,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence

    from weightctl.cli.outline import OutlineLine
    from weightctl.codecs.loss import Loss
    from weightctl.plan.plan import Item, Plan
    from weightctl.write.conversion import Conversion
    from weightctl.write.outcome import Outcome
    from weightctl.write.save import Saved
    from weightctl.write.targets import Target

_LONGEST = 80
_SOUGHT = ("config.json", "tokenizer.json")
# The number of tensors whose rounding errors are listed; others are summarized in one line.
_WORST = 5
# A recipe with more fallback types than this percentage says so first, with so many row lengths.
_MOST_SUBSTITUTED, _ROWS = 50, 3


def plan_kind(item: Item) -> tuple[object, int, int]:
    """Return a key that equal rows of a plan share, the number of tensors (1), and the bytes."""
    info = item.info
    kind = (info.shape, item.stored.encoding.name, info.encoding.name, item.asked, item.line,
            item.part, item.steps, item.is_exact)  # fmt: skip
    return kind, 1, info.nbytes


def plan_row(line: OutlineLine[Item]) -> Sequence[Cell]:
    """Return the cells of a line in a plan's outline."""
    label = Cell(line.text, "" if line.entry else "bold")
    size = Cell(format_size(line.sizes[0]), "dim", right=True)
    item = line.entry
    if item is None:
        if line.name is not None:
            return label, Cell(""), Cell("tied", "cyan")
        return label, line.below, Cell(""), Cell(""), Cell(""), size
    stays = item.stored.encoding == item.info.encoding and not item.weight
    arrow = Cell("" if stays else "->", "dim")
    changed = Cell("" if stays else item.info.encoding.name, "cyan")
    shape, before = make_shape_cells(item.info.shape, item.stored.encoding.name, times=line.times)
    values = Cell("" if stays else _name_values(item), "dim", short="")
    return label, shape, before._replace(style=""), arrow, changed, size, values, _reason(item)


def _name_values(item: Item) -> str:
    """Return `exact` or `rounded` for the values of a tensor."""
    return "exact" if item.is_exact else "rounded"


def _reason(item: Item) -> Cell:
    """Return a cell with the reason for a tensor's type, if any: steps, rule or fallback."""
    line = "" if item.line == OTHERWISE else item.line
    line = ", ".join(filter(None, (*item.steps, line)))
    if not item.asked:
        return Cell(line, "yellow", short="")
    by = f" ({line})" if line else ""
    return Cell(f"instead of {item.asked}{by}", "yellow", short=f"not {item.asked}")


def summary(
    path: str, plan: Plan, where: Target, outcome: Outcome, *, saved: Saved | None
) -> list[list[Cell]]:
    """Return the lines that describe a conversion; `saved` is None if nothing was written."""
    before = count_stored_bytes(plan)
    after = sum(item.info.nbytes for item in plan.items)
    ratio = f" ({100 * after / before:.1f} %)" if before else ""
    sizes = f"{pluralize(len(plan.items), 'tensor')}, {format_size(before)} -> {format_size(after)}"
    lines = [
        [Cell(f"{printable(path)} -> {_place(where, outcome)} ({where.format})", "bold")],
        [Cell(f"{sizes}{ratio}; {_files(outcome)}")],
    ]
    if outcome.documents:
        lines.append([Cell(describe_other_files([*outcome.documents, *outcome.carried]))])
    lines += [[Cell(text)] for text in _describe_plan(plan)]
    substitutes = [[Cell(text, "yellow")] for text in _substitutes(plan)]
    lines = [lines[0], *substitutes[1:], *lines[1:], *substitutes[:1]]
    if saved is None:
        return [*lines, [Cell(_count_exact(plan))], [Cell("nothing was written")]]
    nbytes = max(saved.nbytes - saved.kept_bytes, 0)
    lines += list_losses(plan, saved)
    if saved.pull_request:
        lines.append([Cell(f"pull request: {saved.pull_request}")])
    return [*lines, *resumption(saved), *list_workers(saved), *list_costs(nbytes)]


def resumption(saved: Saved) -> Iterator[list[Cell]]:
    """Yield lines on what was kept from a stopped run, and why such a run was started over."""
    if saved.kept_bytes:
        kept = format_size(saved.kept_bytes)
        yield [Cell(f"{kept} were complete already, from a run that was stopped", "green")]
    if saved.started_over:
        yield [Cell(f"an unfinished run was started over: {saved.started_over}", "yellow")]


def planned_resumption(kept_bytes: int) -> list[list[Cell]]:
    """Return the line on what a run of the plan would keep from a stopped run, if anything."""
    if not kept_bytes:
        return []
    kept = format_size(kept_bytes)
    return [[Cell(f"{kept} are complete from a run that was stopped, and would be kept", "green")]]


def count_stored_bytes(plan: Plan) -> int:
    """Return the bytes of the input tensors of a plan; each tensor counts once."""
    sources = {source for item in plan.items for source in item.sources}
    return sum(source.nbytes for source in sources)


def _place(where: Target, outcome: Outcome) -> str:
    count = len(outcome.parts)
    if count == 1 or where.file_name is not None:
        return printable(stream_name(where.path))
    first = os.path.join(os.path.dirname(where.path), next(iter(outcome.parts)))
    return f"{printable(first)} {say_more(count - 1)}"


def _files(outcome: Outcome) -> str:
    count = len(outcome.parts)
    what = "the file takes" if count == 1 else f"{count} files take"
    return f"{what} {format_size(outcome.nbytes)}"


def describe_other_files(names: Iterable[str], where: str = "") -> str:
    """Return a line that lists the other files of an output, the most important first."""
    sought = sorted(names, key=lambda name: (name not in _SOUGHT, name))
    return f"other files{where}: {join_names(sought, 2)}"


def _describe_plan(plan: Plan) -> Iterator[str]:
    """Yield lines on what a plan does with types: changes, recipe and schemes."""
    yield from [plan.translation] if plan.translation else []
    yield from _describe_renamed(plan)
    for change, count in Counter(_change(item) for item in plan.items if not item.weight).items():
        yield f"{count} x {change}"
    if left := len(plan.source.header.tensors) - len(plan.items):
        yield f"{left} left out"
    chosen = (item for item in plan.items if item.line and not item.line.startswith(BY_RULE))
    # A tensor that is copied because it already has its fallback type counts as well.
    counts = Counter(item.info.encoding.name for item in chosen if item.asked or not item.is_copy)
    if plan.recipe and counts:
        made = ", ".join(f"{count} {name}" for name, count in counts.most_common())
        yield f"recipe {printable(plan.recipe)}: {made}"
    for scheme in dict.fromkeys(item.scheme for item in plan.items if item.weight):
        stored = [item for item in plan.items if item.weight and item.scheme == scheme]
        weights = {item.weight for item in stored}
        nbytes = format_size(sum(item.info.nbytes for item in stored))
        yield (
            f"{pluralize(len(weights), 'weight')} stored as {scheme}: "
            f"{pluralize(len(stored), 'tensor')}, {nbytes}"
        )


def _describe_renamed(plan: Plan) -> Iterator[str]:
    """Yield the number of renamed tensors and an example, unless a translation renames them."""
    renamed = [] if plan.translation else [item for item in plan.items if is_renamed(item)]
    if renamed:
        before, after = renamed[0].sources[0].name, renamed[0].info.name
        example = f"`{printable(before)}` is `{printable(after)}`"
        yield f"{pluralize(len(renamed), 'tensor')} renamed: {example}{' ...' * (len(renamed) > 1)}"


def _change(item: Item) -> str:
    """Return how the type of a tensor changes."""
    before, after = item.stored.encoding.name, item.info.encoding.name
    if before != after:
        return f"{before} -> {after}"
    # A tensor can be computed from the stored one, and stored in the same type.
    return f"{before} kept" if item.is_copy else f"{before} -> {item.source.encoding} -> {after}"


def _count_exact(plan: Plan) -> str:
    """Return the line with the numbers of tensors whose values a plan keeps and rounds."""
    exact = sum(item.is_exact for item in plan.items)
    return f"values: {pluralize(exact, 'tensor')} exact, {len(plan.items) - exact:,} rounded"


def _substitutes(plan: Plan) -> Iterator[str]:
    """Yield a line on fallback types, and one on what a recipe is then, if most are such types."""
    substituted = [item for item in plan.items if item.asked]
    if substituted:
        parameters = max(sum(item.info.size for item in plan.items), 1)
        share = 100 * sum(item.info.size for item in substituted) / parameters
        counts = Counter(f"{item.info.encoding} instead of {item.asked}" for item in substituted)
        made = ", ".join(f"{count} {change}" for change, count in counts.most_common())
        yield (
            f"fallback types, where the row length is not a multiple of the block size: {made} "
            f"({share:.1f} % of the parameters)"
        )
        if plan.recipe and share > _MOST_SUBSTITUTED:
            bits = 8 * sum(item.info.nbytes for item in plan.items) / parameters
            rows = join_names(sorted({item.info.row for item in substituted}), _ROWS)
            yield (
                f"asked for {printable(plan.recipe)}, got {bits:.1f} bits per weight: most "
                f"parameters have fallback types, because they are in rows of {rows}"
            )


# Rounding errors.


def list_losses(plan: Plan, saved: Saved) -> list[list[Cell]]:
    """Return lines for the tensors that lost precision: the worst ones, and a summary of others."""
    lossy = [item for item in plan.items if _is_loss(saved.losses.get(item.info.name))]
    if not lossy:
        return []
    lossy.sort(key=lambda item: _badness(saved.losses[item.info.name]), reverse=True)
    shown, rest = lossy[:_WORST], lossy[_WORST:]
    names = [printable(item.weight or item.info.name) for item in shown]
    changes = [
        f"{item.stored.encoding} -> {item.scheme}"
        if item.weight
        else f"{item.source.encoding} -> {item.info.encoding}"
        for item in shown
    ]
    lines = [[Cell("relative RMSE of the rounded tensors, worst first:")]]
    for item, name, change in zip(shown, names, changes, strict=True):
        loss = saved.losses[item.info.name]
        padded = f"  {name.ljust(max(map(len, names)))}  {change.ljust(max(map(len, changes)))}"
        gone = "".join(f"; {text}" for text in _list_range_losses([loss]))
        lines.append([Cell(f"{padded}  {_percent(loss.relative_rmse)}{_nearest(loss)}{gone}")])
    if rest:
        losses = [saved.losses[item.info.name] for item in rest]
        errors = sorted(loss.relative_rmse for loss in losses)
        gone = "".join(f"; at most {text}" for text in _list_range_losses(losses))
        span = " to ".join(dict.fromkeys(_percent(error) for error in (errors[0], errors[-1])))
        lines.append([Cell(f"  {len(rest)} more  {span}{gone}", "dim")])
    return lines


def _nearest(loss: Loss) -> str:
    """Return the error of rounding to nearest, if scales were searched."""
    return "" if loss.nearest_rmse is None else f" (nearest: {_percent(loss.nearest_rmse)})"


def _is_loss(loss: Loss | None) -> bool:
    return loss is not None and bool(loss.squared_error or loss.overflows or loss.underflows)


def _badness(loss: Loss) -> tuple[float, float]:
    return loss.overflows / max(loss.count, 1), loss.relative_rmse


def _list_range_losses(losses: Sequence[Loss]) -> Iterator[str]:
    """Yield the largest fractions of values that are too large or too small for their new type."""
    over = max(loss.overflows / max(loss.count, 1) for loss in losses)
    under = max(loss.underflows / max(loss.count, 1) for loss in losses)
    if over:
        yield f"{_percent(over)} too large"
    if under:
        yield f"{_percent(under)} became zero"


def _percent(share: float) -> str:
    percent = 100 * share
    return f"{percent:.2f} %" if percent >= 0.1 else f"{percent:.2g} %"


def overflow_notes(saved: Saved | None) -> Iterator[str]:
    """Yield a note on values that are too large for their new type; -q does not suppress it."""
    over = {name: loss for name, loss in saved.losses.items() if loss.overflows} if saved else {}
    if over:
        name, worst = max(over.items(), key=lambda entry: entry[1].overflows)
        total = sum(loss.overflows for loss in over.values())
        inside = f"`{name}`" if len(over) == 1 else f"{len(over)} tensors"
        most = f", {worst.overflows} of them in `{name}`" if len(over) > 1 else ""
        yield (
            f"1 value in {inside} was too large for its new type; a type with a larger exponent "
            "holds it"
            if total == 1
            else f"{total} values in {inside} were too large for their new type{most}; a type "
            "with a larger exponent holds them"
        )


def nonfinite_notes(saved: Saved | None) -> Iterator[str]:
    """Yield a note on values that are not finite and were replaced by 0."""
    zeroed = {name: loss.nonfinite for name, loss in saved.losses.items()} if saved else {}
    zeroed = {name: count for name, count in zeroed.items() if count}
    if zeroed:
        total, worst = sum(zeroed.values()), max(zeroed, key=lambda name: zeroed[name])
        values = "1 value that is" if total == 1 else f"{total} values that are"
        several = f", {zeroed[worst]} of them in `{worst}`" if len(zeroed) > 1 else ""
        inside = f"{len(zeroed)} tensors" if several else f"`{worst}`"
        yield f"{inside}: {values} not finite became 0{several}"


def document(
    path: str, plan: Plan, where: Target, outcome: Outcome, *, saved: Saved | None
) -> dict[str, Any]:
    """Return a conversion as JSON, according to `schemas/convert.json` in the package."""
    index = [{"name": outcome.index[0], "bytes": len(outcome.index[1])}] if outcome.index else []
    return {
        "input": path,
        "output": where.path,
        "format": where.format,
        "files": [
            *({"name": name, "bytes": layout.nbytes} for name, layout in outcome.parts.items()),
            *index,
        ],
        "documents": [
            {"name": name, "bytes": len(content)} for name, content in outcome.documents.items()
        ],
        "translation": plan.translation or None,
        "bytes": outcome.nbytes,
        "tensor_bytes": {
            "before": count_stored_bytes(plan),
            "after": sum(item.info.nbytes for item in plan.items),
        },
        "written": saved is not None,
        **document_times(saved, max(saved.nbytes - saved.kept_bytes, 0) if saved else 0),
        "kept_bytes": saved.kept_bytes if saved else None,
        "started_over": saved.started_over or None if saved else None,
        "notes": notes_on(plan, where),
        "recipe": plan.recipe or None,
        "scheme": plan.scheme or None,
        "tied": dict(plan.tied),
        "tensors": [_entry(item, saved) for item in plan.items],
        **({"pull_request": saved.pull_request} if saved and saved.pull_request else {}),
        **document_workers(saved),
        **document_network(),
    }


def document_outputs(path: str, conversion: Conversion) -> dict[str, Any]:
    """Return a conversion as JSON, with that of the file of a tower as `mmproj`."""
    made, *others = (
        document(path, each.plan, each.target, each.outcome, saved=each.saved)
        for each in conversion.outputs
    )
    return {**made, "mmproj": others[0]} if others else made


def _entry(item: Item, saved: Saved | None) -> dict[str, Any]:
    loss = saved.losses.get(item.info.name) if saved else None
    return {
        "name": item.info.name,
        "sources": [source.name for source in item.sources],
        "steps": list(item.steps),
        "shape": list(item.info.shape),
        "from": item.stored.encoding.name,
        "to": item.info.encoding.name,
        "instead_of": item.asked,
        "chosen_by": item.line or None,
        "values": _name_values(item),
        "weighted": item.importance is not None or item.searched_with is not None,
        "weight": item.weight or None,
        "bytes": item.info.nbytes,
        "file": item.part,
        # Further digits depend on how the work was divided into chunks.
        "relative_rmse": float(f"{loss.relative_rmse:.5g}") if loss else None,
        "nearest_rmse": None
        if loss is None or loss.nearest_rmse is None
        else float(f"{loss.nearest_rmse:.5g}"),
        "overflows": loss.overflows if loss else None,
        "underflows": loss.underflows if loss else None,
        "nonfinite": loss.nonfinite if loss else None,
    }


def check_report(
    path: str, plan: Plan, where: Target, *, force: bool, on: str | None = None
) -> None:
    """Raise `OutputError` if the report cannot be written to `path`; call this before any work.

    If several processes share the output (`on`), each of them checks the path, and one of them
    writes the report.
    """
    force = force or (on is not None and is_shared(on))
    real, is_output = os.path.realpath(path), fold_path(path) == fold_path(where.path)
    if is_stream(path):
        if stream_name(path) == stream_name(where.path) or is_output:
            raise OutputError(
                f"the report path {path} is the same as the output",
                hint="use the path of a file for the report",
            )
        return
    directory, base = os.path.split(real)
    is_beside = fold_path(directory) == fold_path(os.path.dirname(os.path.realpath(where.file)))
    is_part = is_beside and (where.file_name or where.pattern().fullmatch(base))
    if is_part or is_output:
        raise OutputError(
            f"the report path {path} is the same as the output",
            hint="choose another file for the report",
        )
    refuse_inputs(real, input_files(plan), plan.consulted)
    if os.path.isdir(real):
        raise OutputError(f"{path} is a directory", hint="use the path of a file for the report")
    refuse_what_is_there([real], force=force)
    check_place(directory, path, 0)


@contextmanager
def note_when_stopped(where: Target) -> Generator[None, None, None]:
    """If a signal ends this context, print how to continue the stopped run."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        journal = None if where.is_stream else find_journal(os.path.realpath(where.path))
        if journal is not None:
            note(f"{journal} lists what is complete; the same command continues from there")
        raise


def write_report(path: str, document: dict[str, Any], *, force: bool) -> None:
    """Write a document as indented JSON to a file or a pipe, as `write_content` does."""
    write_content(path, (json.dumps(document, indent=2) + "\n").encode(), force=force)


def write_content(path: str, raw: bytes, *, force: bool) -> None:
    """Write bytes to a file or a pipe; a file is either written completely or left unchanged."""
    from weightctl.write.partial import write_files
    from weightctl.write.targets import open_stream

    if is_stream(path):
        with open_stream(path) as stream:
            stream.write(raw)
        return
    write_files({os.path.realpath(path): raw}, force=force)
