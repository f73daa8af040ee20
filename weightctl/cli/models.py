"""`weightctl ls` without a model, or of a directory with several: a table of models."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from weightctl.cli.costs import show_document
from weightctl.cli.render import note, show_lines, show_table
from weightctl.families.memory.caches import MemoryOptions
from weightctl.inspection.models import ModelList, list_directory, list_models
from weightctl.system.processes import find_memory
from weightctl.text.columns import Cell
from weightctl.text.sizes import format_count, format_size, parse_size
from weightctl.text.wording import pluralize, printable
from weightctl.weights.nodes import natural

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weightctl.inspection.models import ListedModel

# The context in tokens for which memory is estimated, if none is given.
_CONTEXT = 8192


class ModelChoices(NamedTuple):
    """The options of a list of models; `sort` is `name`, `size` or None."""

    sort: str | None
    fit: str | None
    context: int | None
    kv_type: str | None
    as_json: bool
    quiet: bool


def show_models(directory: str | None, asked: ModelChoices) -> None:
    """Print the models in a directory, or if it is None, those on this machine."""
    memory = find_memory() if asked.fit is None else parse_size(asked.fit)
    chosen = MemoryOptions.of(asked.context or _CONTEXT, asked.kv_type or "F16")
    found = (
        list_models(memory, chosen)
        if directory is None
        else list_directory(directory, memory, chosen)
    )
    models = _sort(found.models, asked.sort)
    if asked.as_json:
        show_document(ModelList(tuple(models), found.memory, found.context))
        return
    if not models:
        note(
            "no models found in the cache of Hugging Face, in Ollama, in LM Studio, and in this "
            "directory; `weightctl ls MODEL` lists a model at another path or URL"
        )
        return
    if directory is not None and not asked.quiet:
        show_lines([[Cell(printable(f"{directory}:"), "bold")]])
    show_table(_list_rows(models, with_place=directory is None, quiet=asked.quiet))
    for each in models:
        if each.problem:
            note(f"{each.name} cannot be read: {each.problem}")
    if not asked.quiet:
        total = sum(each.bytes or 0 for each in models)
        count = sum(not each.problem for each in models)
        memory_text = "this machine's memory" if asked.fit is None else "a memory"
        show_lines(
            [
                [],
                [Cell(f"{pluralize(count, 'model')}, {format_size(total)}", "bold")],
                [
                    Cell(
                        f"fits: whether llama.cpp can run it in {memory_text} of "
                        f"{format_size(found.memory)} with a context of {found.context:,} tokens",
                        "dim",
                    )
                ],
            ]
        )


def _sort(models: Sequence[ListedModel], by: str | None) -> list[ListedModel]:
    if by == "size":
        return sorted(models, key=lambda each: -(each.bytes or 0))
    return sorted(models, key=lambda each: natural(each.name)) if by else [*models]


def _list_rows(
    models: Sequence[ListedModel], *, with_place: bool, quiet: bool
) -> Iterator[Sequence[Cell]]:
    titles = ("model", "type", "size", "parameters", "context", "fits")
    heads = [
        Cell(title, "bold", right=title in {"size", "parameters", "context"}) for title in titles
    ]
    heads[3] = heads[3]._replace(short="params")
    if not quiet:
        yield [*heads, *([Cell("in", "bold", short="")] if with_place else [])]
    for each in models:
        place = [Cell(each.place, "dim", short="")] if with_place else []
        if each.problem:
            empty = [Cell("")] * (len(heads) - 2)
            yield [Cell(each.name), Cell("cannot be read", "red"), *empty, *place]
            continue
        fits = {True: ("yes", "green"), False: ("no", "yellow"), None: ("?", "dim")}[each.fits]
        yield [
            Cell(each.name),
            Cell(each.quantization or "", "cyan"),
            Cell("" if each.bytes is None else format_size(each.bytes), right=True),
            Cell(format_count(each.parameters or 0), right=True),
            Cell("" if each.context_length is None else f"{each.context_length:,}", right=True),
            Cell(*fits),
            *place,
        ]
