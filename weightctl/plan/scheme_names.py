"""Schemes of serving engines by the names and options that users write."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple, cast

from weightctl.errors import ConversionError
from weightctl.plan.toml_file import read_toml
from weightctl.plan.type_names import block_types
from weightctl.schemes import WRITTEN
from weightctl.schemes.written import SchemeChoice
from weightctl.system.registry import load
from weightctl.text.patterns import regular_expression
from weightctl.text.untyped import is_object

if TYPE_CHECKING:
    import re
    from collections.abc import Iterator

    from weightctl.schemes.written import WrittenScheme

__all__ = ["SchemeRecipe", "find_scheme", "list_schemes"]

_FORM = (
    "write default = 'W4A16', then [types] with lines like 'lm_head' = 'W4A16' or "
    "'mlp.down_proj' = 'keep'"
)
_YES, _NO = {"yes", "true"}, {"no", "false"}


class SchemeRecipe(NamedTuple):
    """A scheme for the matrices of a model's layers, and for which others; of a recipe file or not.

    The first of `lines` whose pattern is found in a name decides: True stores the weight in the
    scheme, False leaves it as it is. `path` is the file.
    """

    choice: SchemeChoice
    lines: tuple[tuple[re.Pattern[str], bool], ...] = ()
    path: str = ""


def find_scheme(quant: object, *, is_directory: bool) -> SchemeRecipe | None:
    """Return the scheme that `--quant` names; None if it is a type or recipe of GGUF.

    `is_directory` states that the output is a model directory of safetensors. MXFP4 and NVFP4 are
    schemes there, and types elsewhere. Raises `ConversionError` for a scheme in another output, and
    for invalid options.
    """
    if isinstance(quant, os.PathLike):
        quant = os.fspath(cast("os.PathLike[str]", quant))
    if not isinstance(quant, str):
        return None
    if quant.lower().endswith(".toml"):
        return _read_recipe(quant, is_directory=is_directory)
    name, _, options = quant.partition(":")
    found = _scheme_named(name)
    is_type = found is not None and found.name in block_types() and not options
    if found is None or (is_type and not is_directory):
        return None
    if not is_directory:
        raise ConversionError(
            f"{quant} is a type for a model directory",
            hint="use a path without a suffix as output, such as OUT/; for GGUF, use a type such "
            "as Q4_K_M",
        )
    return SchemeRecipe(_choose(found, options, quant))


def list_schemes() -> list[WrittenScheme]:
    """Return the schemes that weightctl writes, in table order."""
    return [cast("WrittenScheme", load(record)) for record in WRITTEN.values()]


def _scheme_named(text: str) -> WrittenScheme | None:
    known = {_fold(name): name for name in WRITTEN}
    name = known.get(_fold(text))
    return None if name is None else cast("WrittenScheme", load(WRITTEN[name]))


def _fold(name: str) -> str:
    return name.strip().upper().replace("-", "_")


def _choose(scheme: WrittenScheme, options: str, written: str) -> SchemeChoice:
    """Return a scheme with options such as `group=64,symmetric=no`."""
    made = scheme.defaults
    for option in filter(None, options.split(",")):
        key, _, value = (part.strip().lower() for part in option.partition("="))
        if key == "group" and scheme.groups:
            sizes = {str(size): size for size in scheme.groups}
            if value not in sizes:
                raise ConversionError(
                    f"`{written}`: the group size of {scheme.name} cannot be {value or 'empty'}",
                    hint=f"group sizes: {', '.join(sorted(sizes, key=int))}",
                )
            made = made._replace(group=sizes[value])
        elif key == "symmetric" and scheme.has_zeros and value in _YES | _NO:
            made = made._replace(symmetric=value in _YES)
        elif key == "scaled" and scheme.can_scale and value in _YES | _NO:
            made = made._replace(scaled=value in _YES)
        else:
            raise ConversionError(
                f"`{written}`: {scheme.name} does not have the option `{option}`",
                hint=_describe_options(scheme),
            )
    return SchemeChoice(scheme, made)


def _describe_options(scheme: WrittenScheme) -> str:
    known: list[str] = []
    if scheme.groups:
        known.append(f"group={'|'.join(map(str, sorted(scheme.groups)))}")
    if scheme.has_zeros:
        known.append("symmetric=yes|no")
    if scheme.can_scale:
        known.append("scaled=yes|no")
    if not known:
        return f"{scheme.name} has no options"
    return f"options of {scheme.name}: {', '.join(known)}; for example {scheme.name}:{known[0]}"


def _read_recipe(path: str, *, is_directory: bool) -> SchemeRecipe | None:
    """Return the recipe in a file whose `default` is a scheme; None for recipes of types."""
    content = read_toml(path, "recipe", form=_FORM)
    default = content.get("default")
    if not isinstance(default, str):
        return None
    found = find_scheme(default, is_directory=is_directory)
    if found is None:
        return None
    types = content.get("types", {})
    unknown = content.keys() - {"default", "types"}
    if unknown or not is_object(types):
        what = f"`{min(unknown)}` is not a key of a recipe" if unknown else "`types` is not a table"
        raise ConversionError(f"{path}: {what}", hint=_FORM)
    lines = tuple(_read_lines(path, types, found.choice))
    return SchemeRecipe(found.choice, lines, path)


def _read_lines(
    path: str, types: dict[str, object], choice: SchemeChoice
) -> Iterator[tuple[re.Pattern[str], bool]]:
    for pattern, kind in types.items():
        if not isinstance(kind, str) or _fold(kind) not in {"KEEP", _fold(str(choice))}:
            raise ConversionError(
                f"{path}: the type of `{pattern}` is {kind!r}",
                hint=f"write '{choice}', the default, or 'keep', which leaves weights unchanged",
            )
        try:
            yield regular_expression(pattern), _fold(kind) != "KEEP"
        except ConversionError as error:
            raise ConversionError(f"{path}: {error.message}", hint=error.hint) from error
