"""The listed tensors of a checkpoint: weights, quantized weights, buffers and tied names."""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.cli import options
from weightctl.cli.progress import long_bar
from weightctl.cli.render import Cell, grid_text, make_shape_cells, split_cells
from weightctl.families.blinkdl import find_blinkdl
from weightctl.families.diffusion import find_diffusion
from weightctl.families.mtp_tensors import find_mtp
from weightctl.formats.huggingface import ADAPTER_CONFIG, config, is_config_of
from weightctl.schemes.adapters import adapter
from weightctl.schemes.matching import count_parameters, read_entries
from weightctl.text.sizes import format_size
from weightctl.translate.layouts import find_layout
from weightctl.weights.info import TensorInfo
from weightctl.weights.nodes import build_tree, natural
from weightctl.weights.tree import header_of, root_of, source_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from weightctl.schemes.adapters import Adapter
    from weightctl.schemes.matching import Entry
    from weightctl.schemes.naming import Quantized
    from weightctl.split import Grid
    from weightctl.weights.info import Header, Leaf
    from weightctl.weights.nodes import TreeNode
    from weightctl.weights.tree import Checkpoint


class Totals(NamedTuple):
    """Sums over the entries of a checkpoint.

    `nbytes` includes buffers, and `weights_nbytes` does not. `by_kind` has the bytes of each
    encoding or scheme, largest first.
    """

    parameters: int
    nbytes: int
    weights_nbytes: int
    by_kind: dict[str, int]

    @property
    def bits(self) -> float | None:
        """The mean bits per parameter, including scales; None if there are no parameters."""
        return 8 * self.weights_nbytes / self.parameters if self.parameters else None


class MtpContents(NamedTuple):
    """The layers for multi-token prediction (MTP), which follow those of the model.

    `stated` is the number of layers that the config states, and `layers` the number of those that
    the checkpoint has. `tensors` are the listed entries of these layers.
    """

    layers: int
    stated: int
    tensors: tuple[str, ...]
    parameters: int
    nbytes: int


class Contents:
    """The listed tensors: those that match a pattern of `include` and none of `exclude`.

    `tensors` are the stored tensors. In `entries`, a weight that a scheme stores in several tensors
    is one entry, and `part_of` maps each of these tensors to the weight. `aliases` are further
    names of tensors. `buffers` maps tensors that are not weights to `buffer` or `optimizer`.
    `leaves` are values that are not tensors. `count` is the number of entries in the whole
    checkpoint.
    """

    def __init__(
        self, weights: Checkpoint, include: Sequence[str] = (), exclude: Sequence[str] = ()
    ) -> None:
        header = header_of(weights)
        self.weights = weights
        found = read_entries(weights)
        self.quantized: Mapping[str, Quantized] = found.quantized
        self.part_of = found.part_of
        self.buffers = found.buffers
        self.tensors: Mapping[str, TensorInfo] = header.tensors
        self.entries: Mapping[str, Entry] = found.entries
        self.aliases: Mapping[str, str] = header.aliases
        self.leaves: Mapping[str, Leaf] = header.leaves
        self._all_entries = found.entries
        self.count = len(self.entries)
        if include or exclude:
            self._choose(include, exclude)

    def _choose(self, include: Sequence[str], exclude: Sequence[str]) -> None:
        from weightctl.text.patterns import select_names

        names = {*self.tensors, *self.entries, *self.aliases, *self.leaves}
        included = set(select_names(names, include))
        excluded = names - set(select_names(names, (), exclude))
        part_of = self.part_of

        def is_shown(name: str) -> bool:
            meant = part_of.get(name, name)
            return (name in included or meant in included) and not (
                name in excluded or meant in excluded
            )

        def is_meant(name: str, entry: Entry) -> bool:
            parts: Iterable[str] = () if isinstance(entry, TensorInfo) else entry.tensors
            return is_shown(name) or any(map(is_shown, parts))

        self.tensors = {name: info for name, info in self.tensors.items() if is_shown(name)}
        self.entries = {n: entry for n, entry in self.entries.items() if is_meant(n, entry)}
        self.aliases = {name: target for name, target in self.aliases.items() if is_shown(name)}
        self.leaves = {name: leaf for name, leaf in self.leaves.items() if is_shown(name)}
        self.quantized = {n: weight for n, weight in self.quantized.items() if n in self.entries}

    def find_entry(self, name: str) -> Entry | None:
        """Return the entry of a stored tensor or a tied name, whether or not it is listed."""
        stored = header_of(self.weights).aliases.get(name, name)
        return self._all_entries.get(self.part_of.get(stored, stored))

    @property
    def tree(self) -> TreeNode:
        """The entries, aliases and leaves as a tree of names."""
        if self.entries is header_of(self.weights).tensors and not self.leaves:
            return root_of(self.weights)
        return build_tree((*self.entries, *self.aliases, *self.leaves))

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The config.json next to the checkpoint; empty if missing, or if of another file."""
        header = header_of(self.weights)
        document = config(header.files)
        return document if document and is_config_of(document, header) else {}

    @property
    def identity(self) -> tuple[str, str]:
        """The name and architecture that the checkpoint states; empty if it does not.

        The architecture of a diffusion transformer, that of CLIP in OpenAI's names, and that of
        RWKV's original files also follow from the names of tensors.
        """
        metadata = header_of(self.weights).metadata
        found: list[str] = []
        for key, beside in (
            ("general.name", "_name_or_path"),
            ("general.architecture", "model_type"),
        ):
            stated = metadata[key].content if key in metadata else self.config.get(beside)
            found.append(stated if isinstance(stated, str) else "")
        if not found[1] and (diffusion := find_diffusion(header_of(self.weights))) is not None:
            found[1] = diffusion.architecture
        if not found[1] and find_layout(header_of(self.weights)) == "clip":
            found[1] = "clip"
        if not found[1]:
            found[1] = find_blinkdl(header_of(self.weights)) or ""
        return found[0], found[1]

    @property
    def grid(self) -> Grid | None:
        """The ranks that the checkpoint is sharded for; None if it is not sharded."""
        if not header_of(self.weights).listing:
            return None
        from weightctl.formats.sharded.gathered import GatheredSource  # only for sharded files

        source = source_of(self.weights)
        return source.manifest.grid if isinstance(source, GatheredSource) else None

    def title(self, path: str) -> str:
        """Return the model's name, if its path does not have it, its architecture and format."""
        header = header_of(self.weights)
        name, architecture = self.identity
        base = os.path.basename(os.path.abspath(path))
        if name in {path, base, os.path.splitext(base)[0]}:
            name = ""
        files = f"{len(header.files)} files" if len(header.files) > 1 else ""
        if self.grid is not None:
            files = grid_text(self.grid)
        return ", ".join(filter(None, (name, architecture, header.format, files)))

    @cached_property
    def adapter(self) -> Adapter | None:
        """The description of a LoRA adapter; None if the checkpoint is not one."""
        header = header_of(self.weights)
        return adapter(header, config(header.files, ADAPTER_CONFIG))

    @cached_property
    def mtp(self) -> MtpContents:
        """The listed tensors of layers for multi-token prediction."""
        found = find_mtp(header_of(self.weights), self.config)
        meant = dict.fromkeys(self.part_of.get(name, name) for name in found.names)
        entries = {name: self.entries[name] for name in meant if name in self.entries}
        return MtpContents(
            layers=found.layers,
            stated=found.stated,
            tensors=tuple(entries),
            parameters=count_parameters(entries.values(), self.buffers),
            nbytes=sum(
                header_of(self.weights).extents[name].nbytes
                if isinstance(entry, TensorInfo)
                else entry.nbytes
                for name, entry in entries.items()
            ),
        )

    @cached_property
    def totals(self) -> Totals:
        """The sums over the entries; buffers do not count as parameters."""
        extents, buffers = header_of(self.weights).extents, self.buffers
        by_kind: dict[str, int] = {}
        weights_nbytes = 0
        for name, entry in self.entries.items():
            if isinstance(entry, TensorInfo):
                label, nbytes = entry.encoding.name, extents[name].nbytes
            else:
                label, nbytes = entry.label, entry.nbytes
            by_kind[label] = by_kind.get(label, 0) + nbytes
            if name not in buffers:
                weights_nbytes += nbytes
        parameters = count_parameters(self.entries.values(), buffers)
        largest_first = dict(sorted(by_kind.items(), key=lambda each: -each[1]))
        return Totals(parameters, sum(by_kind.values()), weights_nbytes, largest_first)


def kind(entry: Entry) -> tuple[str, float | None]:
    """Return an entry's encoding and None, or its scheme and its bits per weight."""
    if isinstance(entry, TensorInfo):
        return entry.encoding.name, None
    return entry.label, entry.bits


def label(stored: tuple[str, float | None]) -> str:
    """Return the text for the result of `kind`: `BF16`, or `AWQ 4-bit, 4.25 bits`."""
    scheme, bits = stored
    return scheme if bits is None else f"{scheme}, {bits:.2f} bits"


# Stored tensors, one per line: `ls --flat`, `-l`, `--sort` and `--hash`.


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


def find_alignment(offset: int) -> int:
    """Return the largest power of two that divides an offset."""
    return offset & -offset


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
    with long_bar(total, quiet=quiet) as advance:
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
    return os.path.relpath(path, os.path.dirname(header.listing))


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
