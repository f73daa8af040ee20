"""The name of an output that a command line leaves out."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from weightctl.errors import OutputError
from weightctl.formats import format_by_suffix, list_formats, list_written_formats
from weightctl.plan.scheme_names import find_scheme
from weightctl.plan.type_names import block_types, list_recipes, plain_types
from weightctl.schemes import WRITTEN
from weightctl.storage.local_models import name_blob

if TYPE_CHECKING:
    from collections.abc import Mapping

# A file or the whole model in the cache of the Hugging Face Hub.
_CACHED = re.compile(r".*/models--[^/]+?--(?P<name>[^/]+)/snapshots/[0-9a-f]{40,64}(?P<file>/.+)?")
# The file of a model of Ollama has no name.
_BLOB = re.compile(r"sha256-[0-9a-f]{64}")
# Characters that the name of an output does not get from a type.
_SPECIAL = re.compile(r"[^\w.+-]")


def propose_output(model: str, given: Mapping[str, Any]) -> str | None:
    """Return the path of the output for a quantized model: `tiny-llama-Q4_K_M.gguf`.

    With `--to gguf`, the model does not have to be quantized: `tiny-llama.gguf`. The output goes
    into the current directory. The path is None if the options do not say what the output is.
    Raises `OutputError` if it exists and is a directory, or without --force a file.
    """
    quant = given["quant"]
    budget = next((name for name in ("bpw", "size", "max_kld", "fit") if given[name]), None)
    name = _name_model(model)
    is_typed = quant is not None or budget is not None
    if given["mmproj"] is not None or name is None or not (is_typed or given["to"] == "gguf"):
        return None
    if not is_typed:
        kind = given["dtype"] or ""
    elif quant is None:
        kind = f"{given['bpw']:g}bpw" if budget == "bpw" else f"{budget}-{given[budget or '']}"
    else:
        kind = os.path.splitext(os.path.basename(quant))[0].replace(":", "-")
    is_directory = quant is not None and find_scheme(quant, is_directory=True) is not None
    is_directory &= quant is not None and quant.upper() not in {*list_recipes(), *block_types()}
    kind = _SPECIAL.sub("-", kind)
    out = f"{name}-{kind}".rstrip("-") + (".gguf" if not is_directory else "")
    # The planner explains an unknown type.
    is_known = quant is None or is_directory or quant.upper() in _list_types()[1]
    if not is_known and not os.path.exists(quant or ""):
        return out
    if os.path.isdir(out) or (os.path.lexists(out) and not given["force"]):
        raise OutputError(
            f"{out} exists, which is where the output would go, as no OUT is given",
            hint="name another output: `weightctl convert MODEL OUT`",
        )
    return out


def refuse_name_as_output(out: str, given: Mapping[str, Any]) -> None:
    """Raise `OutputError` if an output has the name of a format, or of a type if none is given.

    Outputs that exist are not refused.
    """
    if os.path.lexists(out):
        return
    plain, quantized = _list_types()
    if out.upper() in plain | quantized and not (given["quant"] or given["dtype"]):
        option = "--quant" if out.upper() in quantized else "--dtype"
        raise OutputError(
            f"OUT is a path, but `{out}` is the name of a type",
            hint=f"did you mean {option} {out}? For a directory with this name, use ./{out}",
        )
    if out.lower() not in list_formats():
        return
    suffix = list_formats()[out.lower()].suffix
    meant = f"did you mean `{_name_model(given['path']) or 'MODEL'}{suffix}`? "
    writable = out.lower() in list_written_formats()
    raise OutputError(
        f"OUT is a path, but `{out}` is the name of a format",
        hint=f"{meant if writable else ''}For a directory with this name, use ./{out}",
    )


def _name_model(path: str) -> str | None:
    """Return the name of a model without the suffix and the type of its file; None if it has none.

    The name of a file in the cache of the Hub is that of its repository, if it is the whole model.
    """
    cached = _CACHED.fullmatch(path.rstrip("/"))
    if cached is not None and not cached["file"]:
        return cached["name"]
    base = os.path.basename(os.path.abspath(path) if "://" not in path else path.rstrip("/"))
    if _BLOB.fullmatch(base):
        return name_blob(path).rpartition("/")[2].replace(":", "-") or None
    if not base:
        return None
    is_file = format_by_suffix(base) is not None and not os.path.isdir(path)
    stem = os.path.splitext(base)[0] if is_file else base
    before, _, kind = stem.rpartition("-")
    plain, quantized = _list_types()
    return before if before and kind.upper() in plain | quantized else stem


def _list_types() -> tuple[set[str], set[str]]:
    """Return the types of values, and recipes and quantized types, in upper case."""
    return {*map(str.upper, plain_types())}, {*list_recipes(), *block_types(), *WRITTEN}
