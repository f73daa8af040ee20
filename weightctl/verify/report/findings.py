"""Sentences of one line about what each check has measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.split import Grid
from weightctl.text.sizes import format_count, format_size
from weightctl.text.wording import number, percent, pluralize
from weightctl.verify.figures import (
    FiniteFigures,
    ForwardFigures,
    MetadataFigures,
    NamesFigures,
    StructureFigures,
    ValuesFigures,
)
from weightctl.verify.report.ranking import sort_worst_first

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightctl.verify.figures import Divergence
    from weightctl.verify.results import Figures

__all__ = ["is_partial", "say_finding", "show_cosine"]


def say_finding(figures: Figures | None) -> str:
    """Return what figures come to; empty where there are none."""
    return "" if figures is None else _FINDINGS[type(figures)](figures)


def is_partial(figures: Figures | None) -> bool:
    """Whether matrices were tried one by one, as the model that they make up is not known."""
    return isinstance(figures, ForwardFigures) and bool(figures.matrices)


def show_cosine(value: float) -> str:
    """Return a cosine with the digits that tell it from 1."""
    return f"{value:.5f}" if abs(value) < 2 else number(value)


def _say_structure(figures: StructureFigures) -> str:
    reading = [name for name, said in figures.readers.items() if not said]
    readers = f"; read by {_list_names(reading)} too" if reading else ""
    # What another reader refuses is its verdict, and says so by its name.
    others = "".join(f"; {name}: {said}" for name, said in figures.readers.items() if said)
    files = pluralize(figures.files, "file")
    tensors = pluralize(figures.tensors, "tensor")
    return f"{files}, {tensors}, {format_size(figures.nbytes)}{readers}{others}"


def _list_names(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _say_finite(figures: FiniteFigures) -> str:
    tensors = pluralize(figures.tensors, "tensor")
    return f"{tensors}, {format_count(figures.numbers)} numbers looked at"


def _say_names(figures: NamesFigures) -> str:
    if not figures.family:
        return f"of no known family; {pluralize(figures.found, 'tensor')}"
    of = f"{figures.found:,} of {figures.expected:,} tensors"
    found = f"all {figures.found:,} tensors" if figures.found == figures.expected else of
    return f"{figures.family}, {pluralize(figures.layers, 'layer')}, {found}"


def _say_metadata(figures: MetadataFigures) -> str:
    if not figures.tokenizer:
        tokenizer = "no tokenizer"
    else:
        tokenizer = f"tokenizer {figures.tokenizer}, {pluralize(figures.tokens, 'token')}"
    return f"{tokenizer}; compared with the reference's" if figures.is_compared else tokenizer


def _say_values(figures: ValuesFigures) -> str:
    compared = f"{pluralize(len(figures.tensors), 'tensor')} compared"
    if not figures.tensors:
        return compared
    off = [error for error in figures.tensors if error.relative_rmse]
    if not off:
        return f"{compared}, no difference"
    worst = sort_worst_first(off)[0]
    usual = f", where {percent(worst.expected)} is usual" if worst.expected else ""
    rmse = f"relative RMSE {percent(worst.relative_rmse)}"
    called = "furthest from usual" if worst.is_problem else "largest error"
    return f"{compared}; {called}: {worst.name}, {rmse}{usual}"


def _say_forward(figures: ForwardFigures) -> str:
    parts: list[str] = []
    if figures.tokens:
        source = f" of {figures.source}" if figures.source else ""
        grid = Grid(figures.tp, figures.ep, figures.pp)
        ranks = f" by {pluralize(grid.ranks, 'rank')} ({grid.degrees})" if grid.ranks > 1 else ""
        device = _name_device(figures.device)
        parts.append(f"{pluralize(figures.tokens, 'token')}{source} on {device}{ranks}")
    if figures.matrices:
        count = len(figures.matrices)
        noun = "matrix" if count == 1 else "matrices"
        parts.append(f"{count:,} {noun}, each on a random unit vector")
        parts.append(f"on {_name_device(figures.device)}")
    if figures.perplexity is not None:
        parts.append(f"perplexity {number(figures.perplexity)}")
    if figures.divergence is not None:
        parts += _say_divergence(figures.divergence)
    return ", ".join(parts)


def _name_device(name: str) -> str:
    """Return a device as people name it to the command."""
    return "cpu" if name == "cpu:0" else name.replace("gpu", "cuda")


def _say_divergence(divergence: Divergence) -> list[str]:
    parts: list[str] = []
    if divergence.reference_perplexity is not None:
        parts.append(f"the reference's {number(divergence.reference_perplexity)}")
    if divergence.mean is not None:
        parts.append(f"KL divergence {number(divergence.mean)}")
    if divergence.cosine is not None:
        parts.append(f"cosine of states at least {show_cosine(divergence.cosine)}")
    return parts


_FINDINGS: dict[type[Figures], Callable[[Any], str]] = {
    StructureFigures: _say_structure,
    FiniteFigures: _say_finite,
    NamesFigures: _say_names,
    MetadataFigures: _say_metadata,
    ValuesFigures: _say_values,
    ForwardFigures: _say_forward,
}
