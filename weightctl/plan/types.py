"""Parsing of the type for tensors, in all spellings of users and programs."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, TypeAlias

from weightctl.dtype import ENCODINGS, Encoding, QuantizationEncoding, as_dtype
from weightctl.dtype.types import parse_encoding
from weightctl.errors import ConversionError, EncodingError
from weightctl.plan.recipe_lines import LLAMA_RECIPES, Recipe, RecipeLine
from weightctl.plan.scheme_names import list_written
from weightctl.plan.toml_file import read_toml
from weightctl.plan.type_names import (
    block_types,
    did_you_mean,
    is_plain,
    list_recipes,
    normalize_type_name,
    single_types,
    type_named,
)
from weightctl.storage.location import parse_location
from weightctl.text.patterns import regular_expression
from weightctl.text.untyped import is_object

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from weightctl.dtype import DTypeLike

_FORM = (
    "write base = 'Q4_K_M' or default = 'Q4_K', then [types] with lines like 'ffn_down' = 'Q6_K'"
)
# All spellings of a tensor's type: text, a dtype of weightctl, NumPy or torch, a block type.
TypeLike: TypeAlias = "Encoding | QuantizationEncoding | DTypeLike"


def type_of(
    dtype: DTypeLike | Encoding | None,
    quant: TypeLike | Recipe | os.PathLike[str] | None,
) -> Encoding | Recipe | None:
    """Return the type for `dtype` (without blocks) or for `quant` (blocks); None if both are None.

    Raises `ConversionError` if both are given, or if a type cannot store weights.
    """
    if dtype is not None and quant is not None:
        raise ConversionError(
            "dtype and quant are both given",
            hint="choose one; to give some tensors another type, use --tensor-type (tensor_types "
            "in Python)",
        )
    if quant is not None:
        chosen = type_or_recipe(quant)
        if isinstance(chosen, Encoding) and is_plain(chosen):
            raise ConversionError(
                f"weightctl cannot quantize to {chosen}",
                hint=f"to store unquantized values, use --dtype {chosen.name.lower()} (dtype in "
                f"Python){_OF_FP8 if chosen.name.startswith('F8') else ''}",
            )
        return chosen
    if dtype is None:
        return None
    encoding = _encoding(dtype)
    if not is_plain(encoding):
        raise ConversionError(
            f"{dtype} cannot be used as the dtype of weights",
            hint="for block types, use --quant (quant in Python)"
            if encoding.quantization
            else "use bf16 or f16; for 8 bits, use --quant Q8_0 (GGUF) or W8A16 (quant in Python)",
        )
    return encoding


def type_or_recipe(given: TypeLike | Recipe | os.PathLike[str]) -> Encoding | Recipe:
    """Return the recipe or encoding for a name, a path, a dtype or a block type.

    A text such as `Q4_K_M` or `Q4_0` is the name of a recipe if a recipe has this name, else of a
    type. A path that ends in `.toml` is a recipe file. Raises `ConversionError` for invalid values
    and for types that weightctl cannot write. An `Encoding` is not checked here, but by the plan.
    """
    if isinstance(given, Recipe | Encoding):
        return given

    if isinstance(given, os.PathLike):
        return read_recipe(os.fspath(given))
    if not isinstance(given, str):
        encoding = _encoding(given)
    elif given.lower().endswith(".toml") or os.path.dirname(given):
        return read_recipe(given)
    elif (recipe := LLAMA_RECIPES.get(normalize_type_name(given))) is not None:
        return recipe
    else:
        encoding = _parse_type(given)
    if encoding.codec or is_plain(encoding):
        return encoding
    known = () if encoding.quantization else block_types()
    raise ConversionError(
        f"weightctl cannot quantize to {encoding}", hint=_suggest(str(given), known)
    )


def encoding_of(given: TypeLike | None) -> Encoding | None:
    """Return the encoding for a single tensor; None for None and `keep`.

    Raises `ConversionError` if the argument is not a type that weightctl can write.
    """
    if given is None:
        return None
    return type_named(given if isinstance(given, str) else _encoding(given).name)


def _encoding(given: TypeLike) -> Encoding:
    if isinstance(given, Encoding):
        return given
    if isinstance(given, QuantizationEncoding):
        return given.encoding
    return parse_encoding(given) if isinstance(given, str) else as_dtype(given).encoding


# A number of bits, which is not the name of a type.
_BITS = re.compile(r"(\d+(?:\.\d+)?) ?(?:bpw|bits?)?")
# Names of types in other programs, and those of types that store the same.
_FP8 = "FP8_DYNAMIC (for a model directory)"
_OF_FP8 = "; for an FP8 model with scales, use --quant FP8_DYNAMIC (quant in Python)"
_OTHER_NAMES = {
    **dict.fromkeys(("fp8_e4m3", "e4m3", "float8", "fp8-e4m3", "float8_e4m3", "w8a8"), _FP8),
    **dict.fromkeys(("bnb-4bit", "bnb4", "bnb_4bit", "bitsandbytes"), "BNB-NF4"),
    "nf4": "BNB-NF4 (for a model directory)",
    "int8": "Q8_0 (for GGUF), or W8A16 or BNB-INT8 (for a model directory)",
    "int4": "Q4_K_M (for GGUF), or W4A16 (for a model directory)",
    "4bit": "Q4_K_M (for GGUF), or W4A16 (for a model directory)",
    "8bit": "Q8_0 (for GGUF), or W8A16 (for a model directory)",
}


def _parse_type(text: str) -> Encoding:
    try:
        return parse_encoding(text)
    except EncodingError as error:
        known = dict.fromkeys([*LLAMA_RECIPES, *block_types(), *list_written()])
        raise ConversionError(
            f"`{text}` is neither a recipe nor a type", hint=_suggest(text, known)
        ) from error


def _suggest(text: str, known: Iterable[str]) -> str:
    """Return a hint with similar names of recipes and types, or if there are none, with all."""
    meant = _OTHER_NAMES.get(text.lower())
    if not meant and (bits := _BITS.fullmatch(text)):
        return f"for {bits[1]} bits per weight, use --bpw {bits[1]} (bpw={bits[1]} in Python)"
    near = f"did you mean {meant}? " if meant else did_you_mean(text, known)
    return f"{near}`weightctl help convert` lists recipes and types" if near else _list_all()


def _list_all() -> str:
    return (
        f"recipes: {', '.join(list_recipes())}; types: {', '.join(single_types())}; types for a "
        f"model directory: {', '.join(list_written())}; a path that ends in .toml is a recipe file"
    )


def read_recipe(path: str) -> Recipe:
    """Read a recipe: `[types]` maps patterns to types; `base` or `default` applies to the rest.

    The first pattern that is found in a name decides; `keep` keeps the tensor's type. `base` is a
    recipe of llama.cpp, `default` is a type. Raises `ConversionError` if the file is invalid.
    """
    path = parse_location(path).name
    content = read_toml(
        path,
        "recipe",
        form=_FORM,
        otherwise="--quant (quant in Python) takes a type, the name of a recipe, or a TOML file",
    )
    unknown = content.keys() - {"base", "default", "types"}
    if unknown or not content:
        what = f"`{min(unknown)}` is not a key of a recipe" if unknown else "the recipe is empty"
        raise ConversionError(f"{path}: {what}", hint=_FORM)
    if "base" in content and "default" in content:
        raise ConversionError(f"{path}: `base` and `default` are both given", hint="choose one")
    types = content.get("types", {})
    if not is_object(types):
        raise ConversionError(f"{path}: `types` is not a table", hint=_FORM)
    lines = tuple(_lines(path, types))
    name = os.path.basename(path)
    if "base" in content:
        base = _base(path, content["base"])
        return Recipe(name, base.otherwise, (*lines, *base.lines), base.file_type, path)
    default = _type(path, "default", content["default"]) if "default" in content else None
    return Recipe(name, default, lines, None, path)


def _lines(path: str, types: dict[str, Any]) -> Iterator[RecipeLine]:
    for pattern, name in types.items():
        try:
            expression = regular_expression(pattern)
        except ConversionError as error:
            raise ConversionError(f"{path}: {error.message}", hint=error.hint) from error
        yield RecipeLine(expression, (), _type(path, pattern, name))


def _type(path: str, key: str, name: object) -> str | None:
    """Return the name of an encoding; None for `keep`."""
    if not isinstance(name, str):
        raise ConversionError(
            f"{path}: the type of `{key}` is not a string",
            hint="give the type as a string, and quote the pattern, because TOML reads unquoted "
            "dots as nested tables: 'blk.0.' = 'Q6_K'",
        )
    try:
        encoding = type_named(name)
    except ConversionError as error:
        raise ConversionError(f"{path}: {error.message}", hint=error.hint) from error
    return encoding and encoding.name


def _base(path: str, name: object) -> Recipe:
    wanted = normalize_type_name(name) if isinstance(name, str) else ""
    if wanted in LLAMA_RECIPES:
        return LLAMA_RECIPES[wanted]
    known = f"recipes: {', '.join(LLAMA_RECIPES)}"
    raise ConversionError(
        f"{path}: `base` is {name!r}, which is not a recipe",
        hint=f"for one type, write default = '{wanted}'" if wanted in ENCODINGS else known,
    )
