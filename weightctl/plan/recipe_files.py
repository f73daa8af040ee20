"""Reading of recipes from TOML files, which map patterns of names to types."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from weightctl.dtype import ENCODINGS
from weightctl.errors import ConversionError
from weightctl.plan.llama_recipes import LLAMA_RECIPES
from weightctl.plan.recipe_lines import Recipe, RecipeLine
from weightctl.plan.toml_file import read_toml
from weightctl.plan.type_names import normalize_type_name, type_named
from weightctl.storage.location import parse_location
from weightctl.text.patterns import regular_expression
from weightctl.text.untyped import is_object

if TYPE_CHECKING:
    from collections.abc import Iterator

_FORM = (
    "write base = 'Q4_K_M' or default = 'Q4_K', then [types] with lines like 'ffn_down' = 'Q6_K'"
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
        yield RecipeLine(expression, "", _type(path, pattern, name))


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
