"""Types of weights as people ask for them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from weightctl.dtype import parse_encoding
from weightctl.errors import ConversionError, EncodingError
from weightctl.patterns import regular_expression
from weightctl.transforms.cast import Rule
from weightctl.transforms.mixtures import MIXTURES
from weightctl.transforms.recipe_files import read_recipe
from weightctl.transforms.type_names import (
    block_types,
    did_you_mean,
    is_plain,
    mixtures,
    spelled,
    type_named,
)

if TYPE_CHECKING:
    from weightctl.dtype import Encoding
    from weightctl.transforms.recipes import Recipe

__all__ = ["default_type", "parse_rule"]


def default_type(dtype: str | None, quant: str | None) -> Encoding | Recipe | None:
    """Return the encoding or the recipe that --dtype or --quant asks for, None without either.

    Raises `ConversionError` where both do, or for a type that is not of theirs.
    """
    if dtype is not None and quant is not None:
        raise ConversionError(
            "--dtype and --quant are both given",
            hint="--tensor-type gives some tensors another type",
        )
    if dtype is not None:
        encoding = parse_encoding(dtype)
        if not is_plain(encoding):
            raise ConversionError(
                f"--dtype {dtype} is no type for weights",
                hint="--quant takes block types" if encoding.quantization else "try bf16 or f16",
            )
        return encoding
    return None if quant is None else _recipe_or_blocks(quant)


def _recipe_or_blocks(quant: str) -> Encoding | Recipe:
    if quant.lower().endswith(".toml") or os.path.dirname(quant):
        return read_recipe(quant)
    mixture = MIXTURES.get(spelled(quant))
    if mixture is not None:
        return mixture
    near = did_you_mean(quant, dict.fromkeys([*MIXTURES, *block_types()]))
    try:
        encoding = parse_encoding(quant)
    except EncodingError as error:
        raise ConversionError(
            f"`{quant}` is no recipe and no type that weightctl knows",
            hint=f"{near}recipes: {', '.join(mixtures())}; types: {', '.join(block_types())}; "
            "a file of your own ends in .toml",
        ) from error
    if not encoding.codec:
        maybe = "" if encoding.quantization else near
        raise ConversionError(
            f"weightctl cannot quantize to {encoding}",
            hint=f"--dtype {quant} stores plain numbers"
            if is_plain(encoding)
            else f"{maybe}it can to {', '.join(block_types())}; and by the recipes "
            f"{', '.join(mixtures())}",
        )
    return encoding


def parse_rule(written: str) -> Rule:
    """Return what `REGEX=TYPE` says; raises `ConversionError` where it says nothing."""
    expression, equals, name = written.rpartition("=")
    if not equals or not expression:
        raise ConversionError(
            f"`--tensor-type {written}` says no type", hint="write REGEX=TYPE: 'ffn_down=Q8_0'"
        )
    return Rule(regular_expression(expression), type_named(name))
