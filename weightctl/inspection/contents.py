"""The listed tensors of a checkpoint: weights, quantized weights, buffers and tied names."""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.families.blinkdl import find_blinkdl
from weightctl.families.diffusion import find_diffusion
from weightctl.families.mtp_tensors import find_mtp
from weightctl.formats.huggingface import ADAPTER_CONFIG, config, is_config_of
from weightctl.formats.open.opening import open_source
from weightctl.schemes.adapters import adapter
from weightctl.schemes.matching import count_parameters, read_entries
from weightctl.translate.layouts import find_layout
from weightctl.weights.info import TensorInfo
from weightctl.weights.nodes import build_tree
from weightctl.weights.tree import header_of, root_of, source_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from weightctl.schemes.adapters import Adapter
    from weightctl.schemes.matching import Entry
    from weightctl.schemes.naming import Quantized
    from weightctl.split import Grid
    from weightctl.weights.info import Leaf
    from weightctl.weights.nodes import TreeNode
    from weightctl.weights.protocol import Openable
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

    `stated_layers` is the number of layers that the config states, and `layers` the number of those
    that the checkpoint has. `tensors` are the listed entries of these layers.
    """

    layers: int
    stated_layers: int
    tensors: tuple[str, ...]
    parameters: int
    bytes: int


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
        document = config(header)
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
            files = str(self.grid)
        return ", ".join(filter(None, (name, architecture, header.format, files)))

    @cached_property
    def adapter(self) -> Adapter | None:
        """The description of a LoRA adapter; None if the checkpoint is not one."""
        header = header_of(self.weights)
        return adapter(header, config(header, ADAPTER_CONFIG))

    @cached_property
    def mtp(self) -> MtpContents:
        """The listed tensors of layers for multi-token prediction."""
        found = find_mtp(header_of(self.weights), self.config)
        meant = dict.fromkeys(self.part_of.get(name, name) for name in found.names)
        entries = {name: self.entries[name] for name in meant if name in self.entries}
        return MtpContents(
            layers=found.layers,
            stated_layers=found.stated,
            tensors=tuple(entries),
            parameters=count_parameters(entries.values(), self.buffers),
            bytes=sum(
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


def find_alignment(offset: int) -> int:
    """Return the largest power of two that divides an offset."""
    return offset & -offset


def read_contents(
    source: Openable,
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    source_format: str | None = None,
) -> Contents:
    """Return the listed tensors of a path, a URL, a tree of weights, or a mapping of arrays."""
    patterns = ([each] if isinstance(each, str) else each for each in (include, exclude))
    weights = open_source(source, source_format)
    if weights.name:
        from weightctl.weights.from_arrays import select_node  # only for nodes of trees

        weights = select_node(weights)
    return Contents(weights, *patterns)
