"""Plans conversions and shards from the options of the command line."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from weightctl.cli.budgets import plan_to_budget
from weightctl.errors import ConversionError
from weightctl.formats import format_by_suffix
from weightctl.plan.metadata import Setting
from weightctl.plan.type_rules import TypeRule
from weightctl.split import Grid
from weightctl.storage.location import without_file_scheme
from weightctl.write.targets import is_stream, stream_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.budget.found import FoundTypes
    from weightctl.write.conversion import Conversion
    from weightctl.write.shard import ShardedOutput

# The largest number of ranks; each rank has at least one file.
_MOST = 65_536


def plan_conversion(given: Mapping[str, Any]) -> tuple[Conversion, FoundTypes | None]:
    """Plan a conversion; `given` maps names of parameters of the command `convert` to values.

    Returns what a search for a budget has found, too; None if there is no budget.
    """
    from weightctl.write.convert import convert

    options = _list_options(given)
    found = plan_to_budget(given, options)
    if found is not None:
        return found
    return convert(
        given["path"], given["out"], dtype=given["dtype"], quant=given["quant"], **options
    ), None


def _list_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `weightctl.convert` that also apply if types are found."""
    return {
        "mmproj": given["mmproj"],
        "tensor_types": [TypeRule.parse(each) for each in given["tensor_types"] or ()],
        "imatrix": given["imatrix"],
        "search": given["search"],
        "nonfinite": given["nonfinite"],
        "allow_requantize": given["allow_requantize"],
        "exact": given["exact"],
        "strict": given["strict"],
        "fallback": not given["no_fallback"],
        "names": given["names"],
        "weights_only": given["weights_only"],
        "rename": given["renamings"] or None,
        "include": given["include"] or (),
        "exclude": given["exclude"] or (),
        "without": given["without"] or (),
        "metadata": [Setting.parse(each) for each in given["settings"] or ()],
        "unset": given["unset"] or (),
        "max_shard_size": given["max_shard_size"],
        "align": given["alignment"],
        "header_room": given["header_room"] or 0,
        "to": given["to"],
        "source_format": given["source"],
        "partial": given["partial"],
        "adapters": given.get("adapters", ()),
        "base": given["base"],
        "private": given["private"],
        "pr": given["pull_request"],
        "memory": given["memory"],
        "dry_run": True,
    }


def plan_shards(given: Mapping[str, Any]) -> ShardedOutput:
    """Plan shards; `given` maps names of parameters of the command `shard` to values."""
    from weightctl.write.shard import shard

    grid = make_grid({"--tp": given["tensor"], "--ep": given["experts"], "--pp": given["stages"]})
    return shard(
        given["path"],
        _directory(require_out(given["out"], "MODEL OUT --tp N")),
        tp=grid.tp,
        ep=grid.ep,
        pp=grid.pp,
        rules=given["rules"],
        layout="ranks" if given["layout"] is None else given["layout"].value,
        to=given["to"],
        source_format=given["source"],
        header_room=given["header_room"] or 0,
        dry_run=True,
    )


def require_out(out: str | None, usage: str) -> str:
    """Return the path or URL of the output; raises `ConversionError` if it is missing."""
    if not out:
        raise ConversionError("OUT is missing", hint=f"weightctl shard {usage}")
    return without_file_scheme(out)


def _directory(out: str) -> str:
    """Return `out`; raises `ConversionError` if it cannot be the path of a directory."""
    if is_stream(out):
        raise ConversionError(
            f"{stream_name(out)} accepts one file, but a sharded checkpoint has several files",
            hint="use the path of a directory",
        )
    if format_by_suffix(out) and not os.path.isdir(out):
        raise ConversionError(
            f"{out} has the suffix of a file, but a sharded checkpoint is a directory",
            hint="to create a directory of that name, end the path with a slash",
        )
    return out


def make_grid(axes: Mapping[str, str | int | None]) -> Grid:
    """Return the grid of ranks from the values of --tp, --ep and --pp.

    Raises `ConversionError` if none is given, if one is not an integer of at least 1, or if there
    are too many ranks.
    """
    if all(value is None for value in axes.values()):
        raise ConversionError(
            "the number of ranks is missing",
            hint="use --tp N to split layers, --ep N to distribute experts, --pp N for pipeline "
            "stages; --tp auto lists which N work",
        )
    numbers = {name: "1" if value is None else str(value) for name, value in axes.items()}
    for name, text in numbers.items():
        if not re.fullmatch(r"0*[1-9]\d{0,99}", text, re.ASCII):
            more = ", or auto" if name == "--tp" else ""
            raise ConversionError(
                f"{name} {text} is not a number of ranks",
                hint=f"use an integer of at least 1{more}",
            )
    grid = Grid(*map(int, numbers.values()))
    if grid.ranks > _MOST:
        raise ConversionError(
            f"{grid.ranks:,} ranks are too many", hint=f"use at most {_MOST:,} ranks"
        )
    return grid
