"""Compares two checkpoints, as `weightctl diff` does."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from weightctl.errors import WeightctlError
from weightctl.families.mlx import is_mlx
from weightctl.inspection.comparison import compare
from weightctl.inspection.contents import read_contents
from weightctl.inspection.metadata import compare_metadata
from weightctl.inspection.prefixes import drop_prefix, find_prefix, restore_prefix
from weightctl.text.documents import NOT_DOCUMENTED
from weightctl.text.rows import Tabular
from weightctl.weights.tree import header_of, source_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from weightctl.deltas.creating import WrittenPatch
    from weightctl.inspection.comparison import Comparison, Difference, Hashed, LayerChange
    from weightctl.inspection.contents import Contents
    from weightctl.inspection.metadata import MetadataDifference
    from weightctl.weights.protocol import Openable


@dataclass(frozen=True, slots=True)
class ComparedCheckpoint:
    """One of two checkpoints that were compared; `path` is empty for a tree without a path."""

    path: str
    format: str
    name: str
    architecture: str


@dataclass(frozen=True, slots=True)
class ComparedCheckpoints(Tabular):
    """The differences of two checkpoints.

    `compared` says what was compared: `shape`, `encoding`, `bytes` or `values`. `paired` says how
    tensors were paired, and `tensors` is the number of their names. `layers` has the changes of
    values by layer, None if values were not compared. `metadata` has the keys that differ, if the
    formats are equal, all tensors were compared, and values were not. `patch` is the patch that was
    written.
    """

    first: ComparedCheckpoint
    second: ComparedCheckpoint
    compared: tuple[str, ...]
    paired: str
    tensors: int
    differences: tuple[Difference, ...]
    layers: Sequence[LayerChange] | None
    metadata: Sequence[MetadataDifference] = ()
    patch: WrittenPatch | None = None
    comparison: Comparison = field(kw_only=True, repr=False, metadata=NOT_DOCUMENTED)

    def _records(self) -> Sequence[Difference]:
        return self.differences


def diff(
    first: Openable,
    second: Openable,
    *,
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    hashes: bool = False,
    values: bool = False,
    progress: Callable[[str, float], object] | None = None,
) -> ComparedCheckpoints:
    """Compare the tensors of two checkpoints: names, shapes and types; also bytes, or values.

    Each is a path, a URL, a tree of weights, or a mapping of names to arrays. `include` and
    `exclude` are patterns of names. With `hashes`, the bytes of tensors are compared too. With
    `values`, decoded values are compared instead of encodings. `progress` is called with the name
    of a step and the fraction of it that is done. Raises `WeightctlError` if both are given or if
    no tensor matches, and the errors of `open_weights`.
    """
    refuse_both(hashes=hashes, values=values)
    ours, theirs = (read_contents(each, include, exclude) for each in (first, second))
    refuse_nothing(ours, theirs, is_part=bool(include or exclude))
    return compare_contents(
        (_name_path(first), ours),
        (_name_path(second), theirs),
        hashed=compute_listed_digests if hashes else None,
        values=values,
        is_part=bool(include or exclude),
        progress=progress,
    )


def _name_path(compared: Openable) -> str:
    return os.fspath(compared) if isinstance(compared, str | os.PathLike) else ""


def compute_listed_digests(contents: Contents, names: Sequence[str]) -> Mapping[str, str]:
    """Return the SHA-256 of stored tensors."""
    from weightctl.write.digests import compute_digests

    return compute_digests(source_of(contents.weights), names)


def refuse_both(*, hashes: bool, values: bool) -> None:
    """Raise `WeightctlError` if bytes and values would be compared."""
    if hashes and values:
        raise WeightctlError(
            "--hash compares bytes and --values compares values, so they cannot be used together",
            hint="use --values if the encodings differ, and --hash otherwise",
        )


def refuse_nothing(ours: Contents, theirs: Contents, *, is_part: bool) -> None:
    """Raise `WeightctlError` if patterns select nothing of either checkpoint."""
    if is_part and not ours.entries and not theirs.entries:
        raise WeightctlError(
            "no tensor of A or B matches --include and --exclude",
            hint="`weightctl ls --flat` lists the names; `*` matches any text",
        )


def compare_contents(
    first: tuple[str, Contents],
    second: tuple[str, Contents],
    *,
    hashed: Hashed | None = None,
    values: bool = False,
    is_part: bool = False,
    progress: Callable[[str, float], object] | None = None,
) -> ComparedCheckpoints:
    """Compare two checkpoints with their paths; `hashed` computes digests, if bytes are compared.

    The metadata is compared unless values are, or `is_part` states that some tensors were left out.

    Tensors are paired by equal names, or by the names of their family if values are compared, or if
    most names differ. If all names of one checkpoint have a prefix, they are paired without it.
    """
    found = _compare(first, second, hashed, progress, values=values)
    headers = (header_of(contents.weights) for _, contents in (first, second))
    compared = ["shape", "values" if values else "encoding", *(["bytes"] if hashed else [])]
    return ComparedCheckpoints(
        first=_describe(*first),
        second=_describe(*second),
        compared=tuple(compared),
        paired=found.how or "by equal names",
        tensors=found.names,
        differences=tuple(found.differences.values()),
        layers=found.layers,
        metadata=() if is_part or values else compare_metadata(*headers),
        comparison=found,
    )


def _describe(path: str, contents: Contents) -> ComparedCheckpoint:
    return ComparedCheckpoint(path, header_of(contents.weights).format, *contents.identity)


def _compare(
    first: tuple[str, Contents],
    second: tuple[str, Contents],
    hashed: Hashed | None,
    progress: Callable[[str, float], object] | None,
    *,
    values: bool,
) -> Comparison:
    ours, theirs = first[1], second[1]
    if values or _has_other_names(ours, theirs):
        # This import loads NumPy.
        from weightctl.inspection.paired import PairedTensors, compare_bytes, compare_values

        paired, prefix = None, find_prefix(ours, theirs)
        try:
            paired = PairedTensors(ours, theirs, (first[0], second[0]))
        except WeightctlError:
            # Shapes and encodings can be compared even if weights cannot be decoded.
            if values and not prefix:
                raise
        if prefix and not (paired and paired.is_by_family):
            side, text = prefix
            sides = [first, second]
            sides[side] = (sides[side][0], drop_prefix(sides[side][1], text))
            found = _compare(sides[0], sides[1], hashed, progress, values=values)
            return restore_prefix(found, (ours, theirs)[side], side, text)
        if values and paired:
            return compare_values(paired, progress)
        if paired and paired.is_by_family:
            return compare_bytes(paired, progress, with_bytes=hashed is not None)
    return compare(ours, theirs, hashed)


def _has_other_names(ours: Contents, theirs: Contents) -> bool:
    """Whether less than half of the smaller checkpoint's names are also in the other one.

    MLX gives other names only to some tensors.
    """
    headers = [header_of(contents.weights) for contents in (ours, theirs)]
    if is_mlx(headers[0]) != is_mlx(headers[1]):
        return True
    first, second = ({*header.tensors, *header.aliases} for header in headers)
    return 2 * len(first & second) < min(len(first), len(second))
