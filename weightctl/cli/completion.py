"""Completions that a shell offers for the values of options.

This module does not load NumPy or torch. A completion that fails offers nothing, since an error
would be printed into the command line.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from weightctl.errors import WeightctlError
from weightctl.formats import ALL_FORMATS, WRITTEN_FORMATS
from weightctl.text.untyped import is_sequence

if TYPE_CHECKING:
    from collections.abc import Iterable

    from weightctl.weights.tree import Checkpoint

# If more names than this match, one level of the tree is offered at a time.
_MOST_NAMES = 60
# The arguments of commands that are checkpoints to read.
_INPUTS = ("path", "paths", "first", "second")


def complete_formats() -> list[str]:
    """Return the formats that --from accepts."""
    return list(ALL_FORMATS)


def complete_written_formats() -> list[str]:
    """Return the formats that --to accepts."""
    return list(WRITTEN_FORMATS)


def complete_checks() -> list[str]:
    """Return the names of the checks of `weightctl verify`."""
    from weightctl.verify import CHECKS

    return list(CHECKS)


def complete_devices() -> list[str]:
    """Return devices for --device; their number is unknown, since torch is not loaded."""
    return ["cpu", "cuda"]


def complete_quant_types(incomplete: str) -> list[str]:
    """Return the recipes and types that --quant accepts, in the letter case of `incomplete`."""
    from weightctl.plan.type_names import list_recipes, single_types
    from weightctl.schemes import WRITTEN

    return _in_case_of(incomplete, [*list_recipes(), *single_types(), *WRITTEN])


def complete_types(incomplete: str) -> list[str]:
    """Return the types that --dtype accepts."""
    from weightctl.plan.type_names import plain_types

    return _in_case_of(incomplete, plain_types())


def complete_type_rules(incomplete: str) -> list[str]:
    """Return the values that may follow `REGEX=` in --tensor-type."""
    from weightctl.plan.type_names import block_types, plain_types

    pattern, sign, wanted = incomplete.rpartition("=")
    if not sign:
        return []
    types = _in_case_of(wanted, ["keep", *plain_types(), *block_types()])
    return [f"{pattern}={each}" for each in types]


def _in_case_of(incomplete: str, names: Iterable[str]) -> list[str]:
    """Return names in lower case if the typed beginning is in lower case; otherwise unchanged."""
    if incomplete and incomplete == incomplete.lower() != incomplete.upper():
        return [name.lower() for name in names]
    return [*names]


def complete_tensor_names(ctx: Any, incomplete: str) -> list[str]:
    """Return tensor names of the checkpoints in the command line, or patterns for groups of them.

    If there is an output, the names are those that the tensors have there.
    """
    names: set[str] = set()
    for path in _list_inputs(ctx):
        with suppress(WeightctlError, OSError, RecursionError):
            names |= _list_names(path, ctx.params.get("out"), ctx.params.get("names"))
    matching = sorted(name for name in names if name.startswith(incomplete))
    if len(matching) <= _MOST_NAMES:
        return matching
    depth = incomplete.count(".") + 1
    groups = (_shorten(name, depth) for name in matching)
    return list(dict.fromkeys(groups))


def _shorten(name: str, depth: int) -> str:
    parts = name.split(".")
    return name if len(parts) <= depth else ".".join([*parts[:depth], "*"])


def _list_inputs(ctx: Any) -> list[str]:
    """Return the checkpoints in the command line that are files or directories, and not pipes."""
    paths: list[str] = []
    for name in _INPUTS:
        given = ctx.params.get(name)
        paths += map(str, given if is_sequence(given) else [given] if given else [])
    paths = [os.path.expanduser(path) for path in paths]
    return [path for path in paths if os.path.isfile(path) or os.path.isdir(path)]


def _list_names(path: str, out: object, convention: object) -> set[str]:
    from weightctl.formats.open.opening import open_weights
    from weightctl.weights.tree import header_of

    weights = open_weights(path)
    if isinstance(out, str) and (names := _list_translated(weights, out, convention)):
        return names
    return set(header_of(weights).tensors)


def _list_translated(weights: Checkpoint, out: str, convention: object) -> set[str]:
    """Return the tensor names in a conversion's output; empty if it keeps those of the input."""
    from weightctl.families import recognize
    from weightctl.formats import format_by_suffix
    from weightctl.weights.tree import header_of

    format_name = format_by_suffix(out)
    wanted = getattr(convention, "value", "auto")
    if wanted == "auto":
        wanted = "gguf" if format_name == "gguf" else "keep" if format_name else "hf"
    if wanted == "keep" or (wanted == "gguf") == (header_of(weights).format == "gguf"):
        return set()
    model = recognize(weights)
    tensors = [each for each in model.family.tensors(model.config) if each.module in model.tensors]
    names = (each.gguf if wanted == "gguf" else each.hugging_face for each in tensors)
    return {name for name in names if name is not None}
