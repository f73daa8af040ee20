"""Tensors of a checkpoint that hold several parts of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from weightctl.families.keys import NamingConvention

__all__ = ["Fusion", "qkv_form"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """A form in which checkpoints of a convention have some parts: all in one tensor.

    `name` is that of the whole tensor, in which `{kind}` is `weight` or `bias`; `bias_name` is that
    of the biases where it is another. The rows of the `parts`, which are modules of the family's
    lines, stand one after the other, as many as each has; `order` returns for each row of the
    tensor which of those it is, where they stand otherwise. With `of_experts` the first dimension
    is the experts, and each has the parts. A `transposed` tensor has columns in place of rows.

    If a line of a part has no name in the convention, the first fusion with it is what checkpoints
    of the convention have, and what is written. Other fusions are only read.
    """

    convention: NamingConvention
    name: str
    parts: tuple[str, ...]
    of_experts: bool = False
    order: Callable[[Any], Sequence[int]] | None = None
    transposed: bool = False
    bias_name: str = ""

    def tensor(self, kind: str, layer: int | str, expert: int | str = 0) -> str:
        """Return the name of the tensor with the weights or biases of a layer."""
        return self.template(kind).format(layer, expert=expert)

    def template(self, kind: str) -> str:
        """Return the name of the tensor with the weights or biases, with fields for numbers."""
        template = self.bias_name if kind == "bias" and self.bias_name else self.name
        return template.replace("{kind}", kind)

    def is_transposed(self, kind: str) -> bool:
        """Whether the tensor of a kind has columns in place of rows."""
        return self.transposed and kind == "weight"


def qkv_form(name: str = "blk.{}.attn_qkv.{kind}") -> Fusion:
    """Return the form of GGUF in which queries, keys and values are in one tensor."""
    return Fusion(
        convention="gguf",
        name=name,
        parts=tuple(f"layers.{{}}.attention.{part}" for part in "qkv"),
    )
