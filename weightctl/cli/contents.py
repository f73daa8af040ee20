"""The listed tensors of a checkpoint, and their meaning: quantized weights, buffers, ties."""

from __future__ import annotations

import os
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from weightctl.cli.splits import grid_text
from weightctl.formats.huggingface import ADAPTER_CONFIG, config
from weightctl.formats.sharded.gathered import GatheredSource
from weightctl.schemes.adapters import adapter
from weightctl.schemes.buffers import is_buffer, is_optimizer_state
from weightctl.schemes.matching import find_quantized
from weightctl.weights.info import TensorInfo
from weightctl.weights.nodes import build_tree
from weightctl.weights.tree import header_of, root_of, source_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from weightctl.schemes.adapters import Adapter
    from weightctl.schemes.matching import Quantized
    from weightctl.split import Grid
    from weightctl.weights.info import Leaf
    from weightctl.weights.nodes import TreeNode
    from weightctl.weights.tree import Checkpoint

    Entry = TensorInfo | Quantized

__all__ = ["Contents", "Entry", "Totals", "kind", "label"]


class Totals(NamedTuple):
    """Sums over entries: parameters, bytes, the bytes behind the parameters, bytes by kind."""

    parameters: int
    nbytes: int
    weights_nbytes: int
    by_kind: dict[str, int]

    @property
    def bits(self) -> float | None:
        """The bits that a parameter takes with its share of scales; None without parameters."""
        return 8 * self.weights_nbytes / self.parameters if self.parameters else None


class Contents:
    """What is listed of a checkpoint: what matches a pattern of `include` and none of `exclude`.

    `tensors` are as they are stored, `entries` as they are meant: a quantized weight is one of
    them, whatever it is stored in, and `part_of` says which. `aliases` are further names of
    tensors, `buffers` those that are not weights, with what they are called; `leaves` are not
    tensors. `count` is the number of entries in the whole checkpoint.
    """

    def __init__(
        self, weights: Checkpoint, include: Sequence[str] = (), exclude: Sequence[str] = ()
    ) -> None:
        header = header_of(weights)
        self.weights = weights
        self.config = config(header.files)
        self.quantized: Mapping[str, Quantized] = find_quantized(header, self.config, self._read)
        self.part_of = {
            tensor: name for name, weight in self.quantized.items() for tensor in weight.tensors
        }
        self.tensors: Mapping[str, TensorInfo] = header.tensors
        self.entries: Mapping[str, Entry] = header.tensors
        self.aliases: Mapping[str, str] = header.aliases
        self.leaves: Mapping[str, Leaf] = header.leaves
        if self.quantized:
            meant = dict.fromkeys(self.part_of.get(name, name) for name in header.tensors)
            self.entries = {
                name: self.quantized.get(name) or header.tensors[name] for name in meant
            }
        self.count = len(self.entries)
        if include or exclude:
            self._choose(include, exclude)
        self.buffers = {
            name: "optimizer" if is_optimizer_state(info) else "buffer"
            for name, info in self.tensors.items()
            if is_buffer(info)
        }

    def _read(self, name: str) -> bytes:
        raw = bytearray(header_of(self.weights).extents[name].nbytes)
        source_of(self.weights).read_into(name, 0, memoryview(raw))
        return bytes(raw)

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

    @property
    def tree(self) -> TreeNode:
        """The entries, aliases and leaves as a tree of names."""
        if self.entries is header_of(self.weights).tensors and not self.leaves:
            return root_of(self.weights)
        return build_tree((*self.entries, *self.aliases, *self.leaves))

    @property
    def identity(self) -> tuple[str, str]:
        """What the model calls itself, and its architecture; empty where nothing says so."""
        metadata = header_of(self.weights).metadata
        found: list[str] = []
        for key, beside in (
            ("general.name", "_name_or_path"),
            ("general.architecture", "model_type"),
        ):
            says = metadata[key].content if key in metadata else self.config.get(beside)
            found.append(says if isinstance(says, str) else "")
        return found[0], found[1]

    @property
    def grid(self) -> Grid | None:
        """The ranks that the checkpoint is cut for, None where it is not."""
        source = source_of(self.weights)
        return source.manifest.grid if isinstance(source, GatheredSource) else None

    def title(self, path: str) -> str:
        """Say what there is at a path: its own name, where it has another, and its format."""
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
        """What the checkpoint says of itself as a LoRA adapter, None where it is none."""
        header = header_of(self.weights)
        return adapter(header, config(header.files, ADAPTER_CONFIG))

    @cached_property
    def totals(self) -> Totals:
        """The sums over the entries; buffers are not parameters."""
        extents, buffers = header_of(self.weights).extents, self.buffers
        sizes: dict[tuple[int, ...], int] = {}
        by_kind: dict[str, int] = {}
        parameters = weights_nbytes = 0
        for name, entry in self.entries.items():
            if isinstance(entry, TensorInfo):
                label, nbytes = entry.encoding.name, extents[name].nbytes
            else:
                label, nbytes = entry.label, entry.nbytes
            by_kind[label] = by_kind.get(label, 0) + nbytes
            if name not in buffers:
                # Few shapes are many tensors'.
                size = sizes.get(entry.shape)
                if size is None:
                    size = sizes[entry.shape] = prod(entry.shape)
                parameters += size
                weights_nbytes += nbytes
        largest_first = dict(sorted(by_kind.items(), key=lambda each: -each[1]))
        return Totals(parameters, sum(by_kind.values()), weights_nbytes, largest_first)


def kind(entry: Entry) -> tuple[str, float | None]:
    """Return how an entry is stored: an encoding, or a scheme and the bits of each weight."""
    if isinstance(entry, TensorInfo):
        return entry.encoding.name, None
    return entry.label, entry.bits


def label(stored: tuple[str, float | None]) -> str:
    """Return `BF16`, or `AWQ 4-bit, 4.25 bits`."""
    scheme, bits = stored
    return scheme if bits is None else f"{scheme}, {bits:.2f} bits"
