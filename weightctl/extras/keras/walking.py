"""The groups and datasets of an HDF5 file; links to other places are refused, not followed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.errors import FormatError

if TYPE_CHECKING:
    from weightctl.extras.keras.file_object import PagedSource

Path = tuple[str, ...]
_DEEPEST = 100
_LONGEST = 60


class FoundDatasets(NamedTuple):
    """The datasets of a file by path, paths of the same dataset, and labels of groups.

    `aliases` have further paths of a dataset. `labels` are the names of layers that groups state,
    by the path of the group.
    """

    datasets: dict[Path, Any]
    aliases: dict[Path, Path]
    labels: dict[Path, str]


def walk(file: PagedSource, root: Any) -> FoundDatasets:
    """Find the datasets below a group; raises `FormatError` for a link to another place."""
    found = FoundDatasets({}, {}, {})
    seen: dict[Any, Path] = {_identify(root): ()}
    pending: list[tuple[Path, Any]] = [((), root)]
    while pending:
        path, group = pending.pop()
        _add_label(found, path, group)
        for name in group:
            below = (*path, name)
            entry = _follow(file, group, below)
            if entry is None:
                continue
            first = seen.setdefault(_identify(entry), below)
            is_dataset = hasattr(entry, "shape")
            if first != below:
                # A group that is reached twice has nothing new. This ends cycles, too.
                if is_dataset and first in found.datasets:
                    found.aliases[below] = first
            elif is_dataset:
                found.datasets[below] = entry
            elif len(below) > _DEEPEST:
                text = f"its groups are nested more than {_DEEPEST} levels deep"
                raise FormatError(file.path, None, text, hint="the file is damaged or malicious")
            else:
                pending.append((below, entry))
    return found


def text_of(value: Any) -> str:
    """Return an attribute as text; empty if it is not text."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else ""


def _identify(entry: Any) -> Any:
    """Return what identifies an object of a file, whatever path leads to it."""
    from importlib import import_module

    info = import_module("h5py").h5o.get_info(entry.id)
    return info.fileno, info.addr


def _follow(file: PagedSource, group: Any, path: Path) -> Any:
    """Return the group or dataset of a path; None for a named type."""
    link = group.get(path[-1], getlink=True)
    target = getattr(link, "path", None)
    if target is not None:
        other = getattr(link, "filename", None)
        place = f"`{target[:_LONGEST]}`" + (f" of the file `{other[:_LONGEST]}`" if other else "")
        raise FormatError(
            file.path,
            None,
            f"`{'/'.join(path)[:_LONGEST]}` is a link to {place}, and weightctl does not follow "
            "links in HDF5 files",
            hint="if you trust the file, copy it with h5copy or h5py, so that it has the data",
        )
    entry = group[path[-1]]
    return entry if hasattr(entry, "shape") or hasattr(entry, "keys") else None


def _add_label(found: FoundDatasets, path: Path, group: Any) -> None:
    """Add the name of the layer whose variables a group has, as Keras 3 states it."""
    if len(path) > 2 and path[-1] == "vars" and "name" in group.attrs:
        label = text_of(group.attrs["name"])
        if label and label.isprintable():
            found.labels[path[:-1]] = label
