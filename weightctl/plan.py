"""A conversion as data: what each output tensor is made of; no tensor is read for it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from weightctl.errors import ConversionError
from weightctl.formats import format_module

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.codecs.base import F32
    from weightctl.formats.base import Layout
    from weightctl.weights.info import TensorInfo
    from weightctl.weights.metadata import Value
    from weightctl.weights.source import Source
    from weightctl.weights.tree import Weights

__all__ = ["Item", "Plan"]


@dataclass(frozen=True, slots=True)
class Item:
    """An output tensor, and the tensor of the source that it is made from.

    `asked` is the encoding that was asked for, where its blocks do not fit and another took its
    place. `importance` says how much an error in each column matters to a block encoding.
    """

    info: TensorInfo
    source: TensorInfo
    asked: str | None = None
    importance: F32 | None = None

    @property
    def is_copy(self) -> bool:
        """Whether the bytes go through unchanged."""
        return self.info.encoding == self.source.encoding


@dataclass(frozen=True, slots=True)
class Plan:
    """The rows of a conversion and the metadata around them.

    A transform is a function from plan to plan. `alignment` is in bytes, None for the format's own.
    """

    source: Source
    format: str
    items: tuple[Item, ...]
    metadata: Mapping[str, Value] = field(default_factory=dict[str, "Value"])
    alignment: int | None = None

    @classmethod
    def copy(cls, weights: Weights, format_name: str) -> Plan:
        """Plan to store every tensor at or below a node as it is, in a container format."""
        header = weights.header
        names = {name for name, _ in weights.items()} if weights.name else header.tensors.keys()
        items = tuple(Item(info, info) for name, info in header.tensors.items() if name in names)
        return cls(weights.source, format_name, items, header.metadata)

    def with_items(self, items: tuple[Item, ...]) -> Plan:
        """Return the plan with other rows."""
        return replace(self, items=items)

    def layout(self) -> Layout:
        """Describe the file that this plan makes, to the byte.

        Raises `ConversionError`, for all tensors at once, where the format cannot hold one or
        there is no way to make it.
        """
        written = format_module(self.format)
        tensors = [item.info for item in self.items]
        impossible = self._impossible()
        if impossible:
            raise ConversionError("\n  ".join(["not all of this can be done:", *_few(impossible)]))
        problems = written.unfit(tensors)
        if problems:
            raise ConversionError(
                "\n  ".join([f"{self.format} cannot hold all of this:", *_few(problems)]),
                hint=self._remedy(),
            )
        return written.layout(tensors, self.metadata, self.alignment)

    def _impossible(self) -> list[str]:
        changed = [item for item in self.items if not item.is_copy]
        if not changed:
            return []
        from weightctl.codecs import can_decode, can_encode  # numpy, which copies need not

        return [
            f"`{item.source.name}` is {item.source.encoding}, which weightctl cannot decode"
            for item in changed
            if not can_decode(item.source.encoding)
        ] + [
            f"`{item.info.name}` would be {item.info.encoding}, which weightctl cannot make"
            for item in changed
            if not can_encode(item.info.encoding)
        ]

    def _remedy(self) -> str:
        unheld = {
            item.info.encoding
            for item in self.items
            if getattr(item.info.encoding, self.format, None) is None
        }
        if any(i.info.encoding in unheld and not i.is_copy for i in self.items):
            return "another format holds it, or another --dtype or --quant"
        if any(encoding.quantization for encoding in unheld):
            return "--dtype bf16 (or f16, f32) dequantizes"
        if any(encoding.dtype and encoding.dtype.is_float for encoding in unheld):
            return "--dtype bf16 (or f16, f32) converts what is no integer"
        return ""


def _few(problems: list[str]) -> list[str]:
    rest = [f"... and {len(problems) - 5} more"] if len(problems) > 5 else []
    return problems[:5] + rest
