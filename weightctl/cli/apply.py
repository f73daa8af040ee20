"""`weightctl apply`: restore a checkpoint from another one and a patch."""

from __future__ import annotations

import typer

from weightctl.cli import options
from weightctl.cli.costs import show_document
from weightctl.cli.progress import long_bar
from weightctl.cli.render import show_lines
from weightctl.text.columns import Cell
from weightctl.text.sizes import format_size
from weightctl.text.wording import pluralize

app = typer.Typer(add_completion=False)


@app.command()
def apply(
    *,
    base: options.Path,
    patch: options.Path,
    out: options.LocalPath,
    force: options.Force = False,
    anonymous: options.Anonymous = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Restore the files of a checkpoint byte for byte, from an older checkpoint and a patch.

    All bytes that are read from MODEL, and all files that are written, are compared with the
    SHA-256 in the patch. If one differs, nothing is written.
    """
    del anonymous  # its callback has taken effect
    # This import loads NumPy and zstd.
    from weightctl.deltas.applying import apply_patch, count_restored_bytes

    total = count_restored_bytes(patch)
    with long_bar(total, "restoring", quiet=quiet) as advance:
        made = apply_patch(base, patch, out, force=force, progress=advance)
    if as_json:
        show_document(made)
    elif not quiet:
        size = format_size(sum(each.bytes for each in made.files))
        files = pluralize(len(made.files), "file")
        show_lines([[Cell(f"{out}: {files}, {size}, SHA-256 as in the patch")]])
