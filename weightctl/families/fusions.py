"""Tensors of a checkpoint that contain several parts of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from weightctl.families.config_keys import NamingConvention


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """One tensor of a checkpoint that contains several parts, for example queries, keys and values.

    - `convention`: the naming convention of the checkpoints.
    - `name`: the name of the tensor. `{}` is the layer number, `{expert}` the number of an expert,
      and `{kind}` is `weight` or `bias`.
    - `bias_name`: the name of the bias, if it does not follow from `name`.
    - `parts`: the `module` of the line of each part, in the order in which their rows are stored.
    - `of_experts`: whether the first dimension is the experts, each with all parts.
    - `order`: a function of the config, if the rows of the parts are not stored one part after the
      other. It returns, for each row of the tensor, its number in the concatenated parts.
    - `transposed`: whether the weight is stored as (inputs, outputs).
    - `either_way`: whether some checkpoints have a `transposed` weight as (outputs, inputs). The
      shapes decide which one a checkpoint has (`families/matching.py`); `transposed` is written.
    - `of_mlx`: whether only MLX writes the tensor.
    - `axis`: the axis of the tensor along which there is one entry for each part, all of the same
      shape; 0 if the rows of the parts follow one another. Only for parts that ranks do not divide.

    A part that has no name of its own in the convention is written as the first fusion that lists
    it. All other fusions are only read.
    """

    convention: NamingConvention
    name: str
    parts: tuple[str, ...]
    of_experts: bool = False
    order: Callable[[Any], Sequence[int]] | None = None
    transposed: bool = False
    bias_name: str = ""
    axis: int = 0
    either_way: bool = False
    of_mlx: bool = False

    def tensor(self, kind: str, layer: int | str, expert: int | str = 0) -> str:
        """Return the name of the tensor with the weights or the biases in a layer."""
        return self.template(kind).format(layer, expert=expert)

    def template(self, kind: str) -> str:
        """Return the name of the weights' or biases' tensor, without the numbers filled in."""
        template = self.bias_name if kind == "bias" and self.bias_name else self.name
        return template.replace("{kind}", kind)

    def is_transposed(self, kind: str) -> bool:
        """Whether the tensor with the weights or the biases is stored as (inputs, outputs)."""
        return self.transposed and kind == "weight"


def qkv_form(name: str = "blk.{}.attn_qkv.{kind}") -> Fusion:
    """Return the fusion of GGUF files that have queries, keys and values in one tensor."""
    return Fusion(
        convention="gguf",
        name=name,
        parts=tuple(f"layers.{{}}.attention.{part}" for part in "qkv"),
    )
