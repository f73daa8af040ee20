"""`weightctl extract`: compute a LoRA adapter from two models."""

from __future__ import annotations

from typing import Annotated

import typer

from weightctl.cli import options
from weightctl.cli.costs import show_document
from weightctl.cli.progress import progress_bar
from weightctl.cli.render import show_lines, show_notes, show_table
from weightctl.formats.open.opening import open_weights
from weightctl.text.columns import Cell, shape_text
from weightctl.text.sizes import format_size
from weightctl.text.wording import pluralize
from weightctl.weights.tree import header_of

app = typer.Typer(add_completion=False)


@app.command()
def extract(
    *,
    base: options.Path,
    tuned: options.Path,
    out: options.LocalPath,
    rank: Annotated[int, typer.Option("--rank", min=1)] = 32,
    include: options.TensorNames = None,
    exclude: options.TensorNames = None,
    dtype: options.Dtype = None,
    force: options.Force = False,
    anonymous: options.Anonymous = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Compute the LoRA adapter that turns a model into a tuned one, as well as its rank allows.

    The difference of each matrix is approximated by a product of two small matrices. The captured
    energy is the part of the squares of the difference that the product has: 100 % means that
    merging the adapter restores the tuned model.
    """
    del anonymous  # its callback has taken effect
    from weightctl.write.extract import extract as write_adapter

    header = header_of(open_weights(base))
    total = sum(info.nbytes for info in header.tensors.values())
    with progress_bar(total, "extracting", quiet=quiet) as advance:
        made = write_adapter(
            base,
            tuned,
            out,
            rank=rank,
            include=include or (),
            exclude=exclude or (),
            dtype=dtype,
            force=force,
            progress=advance,
        )
    if as_json:
        show_document(made)
        return
    if quiet:
        return
    show_notes(made.notes, quiet=quiet)
    show_table(
        [
            Cell(each.name),
            Cell(shape_text(each.shape)),
            Cell(f"rank {each.rank}"),
            Cell(f"{100 * each.captured:.2f} %"),
        ]
        for each in made.tensors
    )
    size = sum(layout.nbytes for layout in made.conversion.outcome.parts.values())
    unchanged = f", {pluralize(made.unchanged, 'tensor')} unchanged" if made.unchanged else ""
    count = pluralize(len(made.tensors), "weight")
    show_lines(
        [
            [],
            [Cell(f"{out}: {count}{unchanged}, {format_size(size)}")],
            [Cell(f"captured energy: {100 * made.captured:.2f} %", "bold")],
        ]
    )
