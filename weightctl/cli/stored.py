"""Stored tensors, one per line: `ls --flat`, `-l`, `--sort` and `--hash`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from weightctl.cli import options
from weightctl.cli.progress import long_bar
from weightctl.cli.render import split_cells
from weightctl.inspection.contents import find_alignment
from weightctl.system.files import relative_name
from weightctl.text.columns import Cell, make_shape_cells
from weightctl.text.sizes import format_size
from weightctl.weights.nodes import natural
from weightctl.weights.tree import header_of, source_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from weightctl.inspection.contents import Contents
    from weightctl.weights.info import Header


def sort_names(contents: Contents, by: options.Sort | None) -> list[str]:
    """Return the names of tensors and aliases, sorted by a key or, if None, in tree order."""
    tensors, aliases = contents.tensors, contents.aliases
    extents = header_of(contents.weights).extents
    if by is None:
        # The tree has all names of the checkpoint.
        return [name for name, _ in contents.weights.items() if name in tensors or name in aliases]
    names = [*tensors, *aliases]
    if by is options.Sort.NAME:
        return sorted(names, key=natural)
    if by is options.Sort.SIZE:
        return sorted(names, key=lambda name: -extents[aliases.get(name, name)].nbytes)
    return sorted(names, key=lambda name: extents[aliases.get(name, name)][:3])


def hash_tensors(
    contents: Contents, names: Sequence[str] | None = None, *, quiet: bool
) -> dict[str, str]:
    """Return the SHA-256 of stored tensors, by default all listed ones.

    On a terminal, a bar shows the progress of long work, unless `quiet` is set.
    """
    from weightctl.write.digests import compute_digests

    # A tied name may be listed without the tensor that it is tied to.
    listed = (*contents.tensors, *contents.aliases.values()) if names is None else names
    wanted = list(dict.fromkeys(listed))
    extents = header_of(contents.weights).extents
    total = sum(extents[name].nbytes for name in wanted)
    with long_bar(total, "hashing", quiet=quiet) as advance:
        return compute_digests(source_of(contents.weights), wanted, progress=advance)


def find_equal(
    contents: Contents, names: Sequence[str], found: Mapping[str, str]
) -> dict[str, str]:
    """Map each tensor that is equal to an earlier tensor to the name of that tensor.

    Equal tensors have the same bytes, shape and encoding; `found` are the tensors' SHA-256.
    """
    header = header_of(contents.weights)
    first: dict[object, str] = {}
    equal: dict[str, str] = {}
    for name in names:
        if name in contents.tensors and name in found and header.extents[name].nbytes:
            info = header.tensors[name]
            like = first.setdefault((found[name], info.shape, info.encoding.name), name)
            if like != name:
                equal[name] = like
    return equal


def list_rows(
    contents: Contents,
    names: Sequence[str],
    *,
    details: bool = False,
    heading: bool = False,
    digests: Mapping[str, str] | None = None,
    equal: Mapping[str, str],
) -> Iterator[Sequence[Cell]]:
    """Yield a row for each name: shape, encoding, size, optional columns, and a remark.

    `details` adds offset, alignment and file. `digests` are the SHA-256 of the tensors, and `equal`
    is the result of `find_equal`.
    """
    header = header_of(contents.weights)
    files = [
        Cell(_file_name(header, path), "dim", short=_number(number, len(header.files)))
        for number, path in enumerate(header.files, 1)
    ]
    if heading:
        yield _heading(header, details=details, with_digests=digests is not None)
    for name in names:
        stored = contents.aliases.get(name, name)
        extent = header.extents[stored]
        info = header.tensors[stored]
        size = "-" if name != stored else format_size(extent.nbytes)
        row = [
            Cell(name),
            *make_shape_cells(info.shape, info.encoding.name),
            Cell(size, "dim", right=True),
        ]
        if details:
            row += [
                Cell(str(extent.offset), right=True),
                Cell(str(find_alignment(extent.offset)), "dim", right=True),
                files[extent.file],
            ]
        if digests is not None:
            digest = digests[stored]
            row.append(Cell(digest, "yellow", short=digest[:12]))
        row.append(_mark(contents, name, equal))
        yield [*row, *split_cells(header, name)]


def _file_name(header: Header, path: str) -> str:
    """Return the name of a file; in a sharded checkpoint, its path within the checkpoint."""
    if header.listing is None or not header.shardings:
        return os.path.basename(path)
    return relative_name(path, os.path.dirname(header.listing))


def _number(number: int, count: int) -> str:
    # A narrow terminal has no room for file names, so it shows the file's number.
    return f"{number} of {count}" if count > 1 else ""


def _heading(header: Header, *, details: bool, with_digests: bool) -> list[Cell]:
    titles = [Cell("tensor"), Cell("shape", right=True), Cell("type"), Cell("size", right=True)]
    if details:
        titles += [Cell("offset", right=True), Cell("align", right=True)]
        titles.append(Cell("file", short="file" if len(header.files) > 1 else ""))
    if with_digests:
        titles.append(Cell("sha256"))
    if header.shardings:
        titles += [Cell(""), Cell("split"), Cell("per rank", short="")]
    return [cell._replace(style="bold") for cell in titles]


def _mark(contents: Contents, name: str, equal: Mapping[str, str]) -> Cell:
    if name in contents.aliases:
        return Cell(f"tied to {contents.aliases[name]}", "cyan", short="tied")
    if name in equal:
        # If the name does not fit, the digests show which tensors are equal.
        return Cell(f"= {equal[name]}", "green", short="=")
    if name in contents.part_of:
        return Cell(f"part of {contents.part_of[name]}", "dim", short="part")
    return Cell(contents.buffers.get(name, ""), "dim")
