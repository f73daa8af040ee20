"""Rules that give tensors a type by their names: `--tensor-type`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import ConversionError
from weightctl.plan.types import encoding_of
from weightctl.text.patterns import regular_expression

if TYPE_CHECKING:
    import re
    from collections.abc import Sequence

    from weightctl.dtype import Encoding
    from weightctl.plan.types import TypeLike

# The prefix of `Item.line` if a rule, and not a recipe, chose the encoding.
BY_RULE = "--tensor-type "


class TypeRule(NamedTuple):
    """An encoding for the tensors whose name contains a pattern; None keeps their encoding."""

    pattern: re.Pattern[str]
    encoding: Encoding | None

    @classmethod
    def parse(cls, written: str) -> TypeRule:
        """Parse `REGEX=TYPE`; raises `ConversionError` if the text is invalid."""
        expression, equals, name = written.rpartition("=")
        if not equals or not expression:
            raise ConversionError(
                f"`--tensor-type {written}` has no type",
                hint="write REGEX=TYPE, for example 'ffn_down=Q8_0'",
            )
        return cls(regular_expression(expression), encoding_of(name))

    def __str__(self) -> str:
        return f"{BY_RULE}{self.pattern.pattern}"


def parse_rules(rules: Sequence[TypeRule] | Mapping[str, TypeLike | None]) -> Sequence[TypeRule]:
    """Return rules that can be a mapping from patterns to types as a sequence."""
    if isinstance(rules, str):
        raise ConversionError(
            f"`rules` must be a mapping from patterns to types, not `{rules}`",
            hint='for example {"attn_v": "Q8_0"}',
        )
    if not isinstance(rules, Mapping):
        return rules
    return [
        TypeRule(regular_expression(pattern), encoding_of(kind)) for pattern, kind in rules.items()
    ]
