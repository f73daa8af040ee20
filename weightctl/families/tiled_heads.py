"""The order of the heads of a gated delta net in GGUF files of Qwen3.5.

Hugging Face's convention has the heads that share a key head one after the other, as our modules
do. GGUF has the first head of each key head, then the second ones, and so on. Source: llama.cpp's
`conversion/qwen.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from weightctl.families.fusions import Fusion

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weightctl.families.keys import Config, NamingConvention
    from weightctl.weights.derived import Step

_TEXT = "heads in another order"


@lru_cache(maxsize=64)
def _tile(keys: int, group: int, size: int, before: int) -> tuple[int, ...]:
    """Return the order of elements in GGUF: for each, its number in the model.

    Each of `keys` key heads has `group` heads of `size` elements, after `before` other elements.
    """
    tiled = (
        before + (key * group + number) * size + element
        for number in range(group)
        for key in range(keys)
        for element in range(size)
    )
    return (*range(before), *tiled)


def _order(config: Any, *, is_of_values: bool = False, has_keys: bool = False) -> Sequence[int]:
    keys = config.delta_key_heads
    return _tile(
        keys,
        config.delta_heads // keys,
        config.delta_value_size if is_of_values else 1,
        2 * keys * config.delta_key_size if has_keys else 0,
    )


@dataclass(frozen=True, slots=True)
class Columns:
    """Another order of the columns in GGUF, those of the values of heads."""

    @property
    def is_of_rows(self) -> bool:
        """False."""
        return False

    @property
    def runs_as(self) -> NamingConvention:
        """Hugging Face's convention."""
        return "hugging_face"

    def fields(self, convention: NamingConvention) -> Mapping[str, Any]:  # noqa: ARG002
        """Return no fields."""
        return {}

    def order(self, config: Config) -> Sequence[int]:
        """Return the number in the model of each of GGUF's columns."""
        return _order(config, is_of_values=True)

    def to_gguf(self, config: Config) -> Step:
        """Return the step to GGUF's order."""
        from weightctl.weights.steps.transposed import ColumnOrder

        return ColumnOrder(tuple(self.order(config)), _TEXT)

    def to_hugging_face(self, config: Config) -> Step:
        """Return the step from GGUF's order."""
        from weightctl.families.row_orders import invert
        from weightctl.weights.steps.transposed import ColumnOrder

        return ColumnOrder(invert(self.order(config)), _TEXT)


def _form(part: str, name: str, *, is_of_values: bool = False, has_keys: bool = False) -> Fusion:
    """Return the form in which GGUF has the rows of a part in its own order."""
    order = partial(_order, is_of_values=is_of_values, has_keys=has_keys)
    return Fusion(convention="gguf", name=f"blk.{{}}.{name}", parts=(f"layers.{{}}.delta.{part}",),
                  order=order)  # fmt: skip


TILED_FORMS = (
    _form("qkv", "attn_qkv.weight", is_of_values=True, has_keys=True),
    _form("gate", "attn_gate.weight", is_of_values=True),
    _form("beta", "ssm_beta.weight"),
    _form("alpha", "ssm_alpha.weight"),
    _form("kernel", "ssm_conv1d.weight", is_of_values=True, has_keys=True),
    _form("rates", "ssm_a"),
    _form("offsets", "ssm_dt.bias"),
)

TILED_COLUMNS = Columns()
