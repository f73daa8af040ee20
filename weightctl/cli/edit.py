"""`weightctl edit`: change metadata and names in the files of a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from weightctl.cli import options
from weightctl.cli.costs import show_document
from weightctl.cli.overview import value_document
from weightctl.cli.progress import long_bar
from weightctl.cli.render import note, show_lines, show_notes
from weightctl.text.columns import Cell
from weightctl.text.sizes import format_size
from weightctl.text.wording import join_names, pluralize, printable
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weightctl.editing.edit import Edited

_MOST_NAMED = 2

# Keys that models without them get.
_USUAL_KEYS = ("tokenizer.chat_template",)

app = typer.Typer(add_completion=False)


@app.command()
def edit(
    *,
    path: options.Path,
    metadata: options.Settings = None,
    unset: list[str] | None = None,
    rename: Annotated[
        list[str] | None, typer.Option("--rename", autocompletion=options.complete_tensor_names)
    ] = None,
    drop: options.TensorNames = None,
    header_room: str | None = None,
    source_format: options.From = None,
    dry_run: options.DryRun = False,
    anonymous: options.Anonymous = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Change metadata, rename or remove tensors, without moving the data if possible.

    If the new header fits into the room of the old one, only the header is written. Otherwise, a
    new file is written; its data shares the blocks of the old file on file systems that can do so
    (such as Btrfs and XFS). In an object store, the store copies the data. The formats are GGUF and
    safetensors; an index is updated.

    If the run is stopped at any time, the files are the old or the new ones. `weightctl edit MODEL`
    without options completes an edit that was stopped.
    """
    del anonymous  # its callback has taken effect
    from weightctl.editing.edit import edit as plan_edit
    from weightctl.editing.edit import finish_edit
    from weightctl.plan.metadata import Setting

    if not dry_run and finish_edit(path) and not quiet:
        note("an edit that was stopped has been completed")
    edited = plan_edit(
        path,
        metadata=[Setting.parse(each) for each in metadata or ()],
        unset=unset or (),
        rename=rename or (),
        drop=drop or (),
        header_room=header_room or 0,
        source_format=source_format,
        dry_run=True,
    )
    show_notes(header_of(edited.plan.weights).notes, quiet=quiet)
    show_notes(_note_similar_keys(edited), quiet=quiet)
    if not dry_run:
        total = edited.moved_bytes
        with long_bar(total, "writing", quiet=quiet) as advance:
            edited = edited.save(advance)
    if as_json:
        show_document(_document(path, edited))
    elif not quiet:
        show_lines(_summary(path, edited))


def _note_similar_keys(edited: Edited) -> Iterator[str]:
    """Yield a note on each new metadata key that is similar to a key of the model."""
    import difflib

    known = dict.fromkeys([*header_of(edited.plan.weights).metadata, *_USUAL_KEYS])
    for key in edited.changes.values:
        near = [each for each in known if each.endswith(f".{key}")]
        near = near or difflib.get_close_matches(key, known, n=1, cutoff=0.8)
        if near and key not in known and near[0] not in edited.changes.values:
            yield (
                f"`{printable(key)}` is a new key; did you mean `{printable(near[0])}`? "
                f"--unset {printable(key)} removes it"
            )


def _summary(path: str, edited: Edited) -> list[list[Cell]]:
    lines = [[Cell(f"{printable(path)} ({edited.plan.format})", "bold")]]
    lines += [[Cell(text)] for text in (*_list_changes(edited), *_list_ways(edited))]
    return lines


def _list_changes(edited: Edited) -> Iterator[str]:
    changes = edited.changes
    pairs = [f"{old} -> {new}" for old, new in changes.new_names.items()]
    for what, names in (
        ("set", [*changes.values]),
        ("removed", sorted(changes.removed)),
        ("renamed", pairs),
        ("dropped", changes.dropped_names),
    ):
        if names:
            yield f"{what}: {join_names([*map(printable, names)], _MOST_NAMED)}"


def _list_ways(edited: Edited) -> Iterator[str]:
    """Yield how the files are edited, and how many bytes are written."""
    from weightctl.editing.edit import Way

    parts = [part for part in edited.parts if part.way is not Way.UNCHANGED]
    counts = {way: sum(part.way is way for part in parts) for way in Way}
    is_done = edited.written_bytes is not None
    if not parts and edited.plan.index is None:
        yield "nothing to change"
        return
    if count := counts[Way.HEADER]:
        verb = "was changed" if is_done else "would be changed"
        yield f"{_count('header', count)} {verb} in place; the data stays where it is"
    if count := counts[Way.REWRITE]:
        moved = format_size(edited.moved_bytes)
        verb = "was written" if is_done else "would be written"
        yield f"{_count('file', count)} {verb} again, with {moved} of data"
    if count := counts[Way.UPLOAD]:
        verb = "was replaced" if is_done else "would be replaced"
        yield f"{_count('object', count)} {verb} in the store"
    if edited.written_bytes is not None:
        what = "sent" if counts[Way.UPLOAD] else "written"
        by = "copied by the store" if counts[Way.UPLOAD] else "shared with the old file"
        shared = edited.shared_bytes or 0
        more = f", {format_size(shared)} {by}" if shared else ""
        yield f"{format_size(edited.written_bytes)} {what}{more}"


def _count(noun: str, count: int) -> str:
    return f"the {noun}" if count == 1 else f"each of {pluralize(count, noun)}"


def _document(path: str, edited: Edited) -> dict[str, Any]:
    changes = edited.changes
    return {
        "path": path,
        "format": edited.plan.format,
        "done": edited.written_bytes is not None,
        "set": {key: value_document(value) for key, value in changes.values.items()},
        "unset": sorted(changes.removed),
        "renamed": changes.new_names,
        "dropped": changes.dropped_names,
        "files": edited.parts,
        "index_changed": edited.plan.index is not None,
        "written_bytes": edited.written_bytes,
        "shared_bytes": edited.shared_bytes,
    }
