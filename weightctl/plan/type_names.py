"""Names of types: those that weightctl can write, and suggestions for misspelled names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from weightctl.dtype import ENCODINGS
from weightctl.dtype.types import parse_encoding
from weightctl.errors import ConversionError, EncodingError
from weightctl.plan.recipe_lines import LLAMA_RECIPES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from weightctl.dtype import Encoding


def type_named(text: str) -> Encoding | None:
    """Return the encoding with this name; None for `keep`.

    Raises `ConversionError` if the text is not a type, or is a type that weightctl cannot write.
    """
    if text.strip().lower() == "keep":
        return None
    known = (
        f"plain types: {', '.join(plain_types())}; block types: {', '.join(block_types())}; or keep"
    )
    try:
        encoding = parse_encoding(text)
    except EncodingError as error:
        recipe = LLAMA_RECIPES.get(normalize_type_name(text))
        if recipe is not None:
            raise ConversionError(
                f"{text} is a recipe, not a single type",
                hint=f"use its main type, {recipe.otherwise}; only --quant (quant in Python) and "
                "`base` in a TOML file accept recipes",
            ) from error
        near = did_you_mean(text, (e.name for e in ENCODINGS.values() if _is_made(e)))
        raise ConversionError(error.message, hint=f"{near}{known}") from error
    if not _is_made(encoding):
        raise ConversionError(
            f"weightctl cannot encode {encoding}"
            if encoding.quantization
            else f"{encoding} cannot be used as the dtype of weights",
            hint=known,
        )
    return encoding


def is_plain(encoding: Encoding) -> bool:
    """Whether an encoding stores weights as single floating-point values, without blocks."""
    dtype = encoding.dtype
    return dtype is not None and dtype.is_float and encoding.holds_weights


def _is_made(encoding: Encoding) -> bool:
    return is_plain(encoding) or bool(encoding.codec)


def plain_types() -> list[str]:
    """Return the names of the types without blocks that can store weights."""
    return [e.name.lower() for e in ENCODINGS.values() if is_plain(e)]


def block_types() -> list[str]:
    """Return the names of the block types that weightctl can write."""
    return [e.name for e in ENCODINGS.values() if e.quantization and e.codec]


def list_recipes() -> list[str]:
    """Return the names of llama.cpp's recipes; some are named like a type, such as `Q4_0`."""
    return [*LLAMA_RECIPES]


def single_types() -> list[str]:
    """Return the block types whose names are not names of recipes."""
    return [name for name in block_types() if name not in LLAMA_RECIPES]


def normalize_type_name(text: str) -> str:
    """Return a name as the tables spell it."""
    return text.strip().upper().replace("-", "_")


def did_you_mean(text: str, names: Iterable[str]) -> str:
    """Return a question that suggests names for a misspelled one; empty if none is similar.

    If no name is spelled similarly, names that contain the text are suggested, or types with as
    many bits: Q4_0 for `int4`.
    """
    import difflib  # only on an error

    bare = {name.replace("_", ""): name for name in names}
    wanted = normalize_type_name(text).replace("_", "")
    near = [wanted] if wanted in bare else difflib.get_close_matches(wanted, bare, n=3)
    near = near or [name for name in bare if wanted and wanted in name][:3]
    if not near and (bits := re.search(r"\d", wanted)):
        near = [name for name in bare if name.startswith(f"Q{bits[0]}")]
    return f"did you mean {' or '.join(bare[name] for name in near)}? " if near else ""
