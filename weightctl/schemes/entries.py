"""The tensors of a checkpoint as they are meant, and the number of their parameters."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

from weightctl.formats.huggingface import config
from weightctl.schemes.buffers import is_activation_scale, is_buffer, is_optimizer_state
from weightctl.schemes.matching import find_quantized
from weightctl.weights.tree import header_of, source_of

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from weightctl.schemes.matching import Quantized
    from weightctl.weights.info import TensorInfo
    from weightctl.weights.tree import Checkpoint

    Entry = TensorInfo | Quantized

__all__ = ["Entries", "Entry", "count_parameters", "read_entries"]


class Entries(NamedTuple):
    """The entries of a checkpoint: a weight that is stored in several tensors is one of them.

    `quantized` are the weights in several tensors, and `part_of` names the weight of each of their
    tensors. `buffers` are the stored tensors that are not weights, `buffer` or `optimizer`.
    """

    entries: Mapping[str, Entry]
    quantized: Mapping[str, Quantized]
    part_of: Mapping[str, str]
    buffers: Mapping[str, str]


def read_entries(weights: Checkpoint) -> Entries:
    """Return the entries of a checkpoint; only headers and small tensors are read."""
    header = header_of(weights)
    source = source_of(weights)

    def read(name: str) -> bytes:
        raw = bytearray(header.extents[name].nbytes)
        source.read_into(name, 0, memoryview(raw))
        return bytes(raw)

    quantized = find_quantized(header, config(header.files), read)
    part_of = {tensor: name for name, weight in quantized.items() for tensor in weight.tensors}
    entries: Mapping[str, Entry] = header.tensors
    if quantized:
        names = dict.fromkeys(part_of.get(name, name) for name in header.tensors)
        entries = {name: quantized.get(name) or header.tensors[name] for name in names}
    buffers = {
        name: "optimizer" if is_optimizer_state(info) else "buffer"
        for name, info in header.tensors.items()
        if is_buffer(info) or (quantized and name not in part_of and is_activation_scale(info))
    }
    return Entries(entries, quantized, part_of, buffers)


def count_parameters(entries: Iterable[Entry], buffers: Container[str]) -> int:
    """Return the number of elements of all weights; buffers and scales are not parameters.

    A tied tensor is one entry, so it counts once. A weight in several tensors counts with the
    elements that it has when it is decoded.
    """
    # Many tensors have one of a few shapes.
    sizes: dict[tuple[int, ...], int] = {}
    total = 0
    for entry in entries:
        if entry.name not in buffers:
            size = sizes.get(entry.shape)
            if size is None:
                size = sizes[entry.shape] = prod(entry.shape)
            total += size
    return total
