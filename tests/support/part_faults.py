"""Makers of faults in a part or a key of a model that is sound otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from faults import of
from tensor_faults import changed, swapped_rows
from weightctl.weights.metadata import MetadataValue

if TYPE_CHECKING:
    from collections.abc import Callable

    from fault_files import Files

    Array = np.ndarray[Any, Any]
    Hurt = Callable[[Files], tuple[str, ...]]

__all__ = [
    "BlockFault",
    "add_one",
    "change_key",
    "change_layer_key",
    "change_part",
    "drop_part",
    "exchange_parts",
    "negate_part",
    "opposite",
    "swap_heads",
    "times",
    "zero_part",
]


class BlockFault(NamedTuple):
    """What is done, and the cause that is to be named; None where no cause explains it."""

    hurt: Hurt
    cause: str | None


def change_part(part: str, cause: str | None, change: Callable[[Array], Array]) -> BlockFault:
    """Return the fault that changes the numbers of a part of the second layer, or of the model."""
    module = part if part in _OF_MODEL else of(part)
    return BlockFault(changed(module, change), cause)


_OF_MODEL = {
    "decoder_bias.weight", "embedding.weight", "encoder_bias.weight",
    "layer_inputs.embedding.weight", "layer_inputs.norm.weight", "position_embedding.weight",
    "stream_output.projection.weight",
    "token_type_embedding.weight",
}  # fmt: skip


def swap_heads(part: str, heads: str) -> BlockFault:
    def hurt(files: Files) -> tuple[str, ...]:
        module = of(f"attention.{part}.weight")
        rows = files.numbers(module)
        size = len(rows) // getattr(files.ours, heads)
        return changed(module, lambda rows: swapped_rows(rows, 0, 1, size))(files)

    return BlockFault(hurt, "heads_exchanged")


def exchange_parts(one: str, other: str, cause: str | None = None) -> BlockFault:
    return BlockFault(lambda files: files.exchange(of(one), of(other)), cause)


def drop_part(part: str, cause: str | None = None) -> BlockFault:
    return BlockFault(lambda files: (files.drop(of(part)),), cause)


def change_key(name: str, change: Callable[[Any], Any]) -> BlockFault:
    """Return the fault of a key of the metadata that has another value."""

    def hurt(files: Files) -> tuple[str, ...]:
        key = f"{files.model.family.gguf_name}.{name}"
        old = files.metadata[key]
        files.metadata[key] = MetadataValue(old.type, change(old.content))
        return (key,)

    return BlockFault(hurt, "config")


def change_layer_key(key: str, added: float) -> BlockFault:
    """Return the fault of a key with a value for each layer, of which the second is larger."""

    def hurt(files: Files) -> tuple[str, ...]:
        old = files.metadata[key]
        values = list(old.content)
        values[1] += added
        files.metadata[key] = MetadataValue(old.type, values)
        return (key,)

    return BlockFault(hurt, "config")


def add_one(part: str) -> BlockFault:
    return change_part(part, "norm_offset", lambda weight: weight + 1)


def zero_part(part: str) -> BlockFault:
    return change_part(part, "zeroed", np.zeros_like)


def negate_part(part: str) -> BlockFault:
    return change_part(part, "scaled", np.negative)


def times(factor: float) -> Callable[[Any], Any]:
    return lambda value: type(value)(value * factor)


def opposite(value: bool) -> bool:
    return not value
