"""Patches, as `weightctl diff --patch` writes and describes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.cli.listing import LONG
from weightctl.cli.progress import progress_bar
from weightctl.cli.render import Cell, show_lines, show_table
from weightctl.text.sizes import format_size
from weightctl.text.wording import pluralize

if TYPE_CHECKING:
    from weightctl.deltas.creating import WrittenPatch

# The bytes of B, by the way in which the patch restores them.
_MEANINGS = {
    "same": "unchanged",
    "sparse": "list of changed words",
    "difference": "differences of all words",
    "new": "new, compressed",
    "stored": "new, not compressible",
}


def save_patch(first: str, second: str, path: str, *, force: bool, quiet: bool) -> WrittenPatch:
    """Write a patch with a progress bar; raises the errors of `write_patch`."""
    # These imports load NumPy and zstd.
    from weightctl.deltas.creating import count_patched_bytes, write_patch

    total = count_patched_bytes(second)
    with progress_bar(total, quiet=quiet or total < LONG) as advance:
        return write_patch(first, second, path, force=force, progress=advance)


def summarize_patch(written: WrittenPatch) -> None:
    """Print the sizes of a patch, and how much of B is restored in which way."""
    share = 100 * written.nbytes / max(written.restored, 1)
    counts = ", ".join(f"{count:,} {kind}" for kind, count in written.tensors.items() if count)
    show_table(
        [Cell(_MEANINGS[method]), Cell(format_size(nbytes), right=True)]
        for method, nbytes in written.methods.items()
        if nbytes
    )
    files = pluralize(written.files, "file")
    size = f"{format_size(written.nbytes)}, {share:.2f} % of {format_size(written.restored)}"
    lines = [f"tensors: {counts}"] if counts else []
    show_lines([[], *([Cell(line)] for line in lines), [Cell(f"{written.path}: {size}, {files}")]])


def patch_document(written: WrittenPatch) -> dict[str, Any]:
    """Return the description of a patch as JSON."""
    return {
        "path": written.path,
        "bytes": written.nbytes,
        "restored_bytes": written.restored,
        "files": written.files,
        "tensors": dict(written.tensors),
        "methods": dict(written.methods),
    }
