"""Schemes of serving engines by the names and options that users write."""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, cast

from weightctl.errors import ConversionError
from weightctl.plan.toml_file import read_toml
from weightctl.plan.type_names import block_types, list_recipes, plain_types
from weightctl.schemes import WRITTEN, added_schemes
from weightctl.system.registry import refuse_added
from weightctl.text.patterns import regular_expression
from weightctl.text.untyped import is_object
from weightctl.text.wording import join_names

if TYPE_CHECKING:
    import re
    from collections.abc import Iterator, Mapping, Sequence

    from weightctl.schemes.scheme import SchemeChoice, WrittenScheme

_FORM = (
    "write default = 'W4A16', then [types] with lines like 'lm_head' = 'W4A16' or "
    "'mlp.down_proj' = 'keep'"
)
_YES, _NO = {"yes", "true"}, {"no", "false"}


class SchemeRecipe(NamedTuple):
    """A scheme for the matrices of a model's layers, and for which others; of a recipe file or not.

    The first of `lines` whose pattern is found in a name decides: the weight is stored in this
    scheme, or left as it is if there is None. `path` is the file. With `is_group_open`, no group
    size was stated.
    """

    choice: SchemeChoice
    lines: tuple[tuple[re.Pattern[str], SchemeChoice | None], ...] = ()
    path: str = ""
    is_group_open: bool = False

    @property
    def choices(self) -> list[SchemeChoice]:
        """The schemes that weights can get, that of the layers first."""
        others = (choice for _, choice in self.lines if choice is not None)
        return list({str(each): each for each in (self.choice, *others)}.values())


def find_scheme(quant: object, *, is_directory: bool) -> SchemeRecipe | None:
    """Return the scheme that `--quant` names; None if it is a type or recipe of GGUF.

    `is_directory` states that the output is a model directory of safetensors. MXFP4 and NVFP4 are
    schemes there, and types elsewhere. Raises `ConversionError` for a scheme in another output, and
    for invalid options.
    """
    if isinstance(quant, SchemeRecipe):
        return quant
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
    is_open = "group" not in options.lower()
    return SchemeRecipe(_choose(found, options, quant), is_group_open=is_open)


def list_schemes() -> list[WrittenScheme]:
    """Return the schemes that weightctl writes, in table order."""
    from weightctl.schemes.scheme import load_written

    return [load_written(reference) for reference in list_written().values()]


@cache
def list_written() -> Mapping[str, str]:
    """Return the references of all written schemes by name, those of installed packages last.

    Raises `ConversionError` if a package adds the name of another scheme, or of a type or recipe.
    """
    written = dict(WRITTEN)
    taken = {*map(_fold, WRITTEN), *_list_types()}
    for line in added_schemes().values():
        for name, reference in line.written.items():
            if _fold(name) in taken:
                raise refuse_added(reference, f"adds the type `{name}`, which exists already")
            taken.add(_fold(name))
            written[name] = reference
    return written


def _list_types() -> set[str]:
    return set(map(_fold, [*list_recipes(), *block_types(), *plain_types()]))


def _scheme_named(text: str) -> WrittenScheme | None:
    from weightctl.schemes.scheme import load_written

    wanted = _fold(text)
    is_own = wanted in {*map(_fold, WRITTEN), *_list_types()}
    table = WRITTEN if is_own else list_written()
    found = next((table[name] for name in table if _fold(name) == wanted), None)
    return None if found is None else load_written(found)


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
    from weightctl.schemes.scheme import SchemeChoice

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
    made = SchemeRecipe(found.choice, lines, path)
    refuse_mixture(made.choices, f"{path}: ")
    return made


def _read_lines(
    path: str, types: dict[str, object], choice: SchemeChoice
) -> Iterator[tuple[re.Pattern[str], SchemeChoice | None]]:
    for pattern, kind in types.items():
        try:
            yield regular_expression(pattern), _read_kind(pattern, kind, choice)
        except ConversionError as error:
            raise ConversionError(f"{path}: {error.message}", hint=error.hint) from error


def _read_kind(pattern: str, kind: object, default: SchemeChoice) -> SchemeChoice | None:
    if isinstance(kind, str):
        if _fold(kind) == "KEEP":
            return None
        if _fold(kind) == _fold(str(default)):
            return default
        name, _, options = kind.partition(":")
        found = _scheme_named(name)
        if found is not None:
            return _choose(found, options, kind)
    raise ConversionError(
        f"the type of `{pattern}` is {kind!r}",
        hint=f"write '{default}', the default, another type for model directories, or 'keep', "
        "which leaves weights unchanged",
    )


def refuse_mixture(choices: Sequence[SchemeChoice], where: str = "") -> None:
    """Raise `ConversionError` if the config of one model cannot state all of these schemes."""
    refused = [each for each in choices if not each.scheme.can_mix or each.options.scaled]
    if len(choices) > 1 and refused:
        mixing = [scheme.name for scheme in list_schemes() if scheme.can_mix]
        raise ConversionError(
            f"{where}a model cannot have weights in {join_names([*map(str, choices)], 3)}: "
            f"{refused[0]} is not one of the types that can be mixed",
            hint=f"types that can be mixed: {', '.join(mixing)}",
        )
