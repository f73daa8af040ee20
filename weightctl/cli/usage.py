"""Explains errors in a command line: unknown commands and options, missing or invalid values."""

from __future__ import annotations

import re
from typing import Any

from weightctl.cli.help import argument_name, describe
from weightctl.errors import WeightctlError

_EXTRA = re.compile(r"Got unexpected extra argument(?:s|\(s\))? \((.*)\)", re.DOTALL)

# Messages of Typer about values, and what they say here.
_REWORDED = {
    r"^'(.*)' is not a valid int(?:eger)?(?: range)?\.?$": r"`\1` is not an integer",
    r"^'(.*)' is not a valid float(?: range)?\.?$": r"`\1` is not a number",
    r"^(\S+) is not in the range x>=(\S+?)\.?$": r"\1 is less than \2",
}

_LIST = "`weightctl ls MODEL` lists what a checkpoint contains"
_STAT = "`weightctl stat MODEL` prints statistics of the values of tensors"
_SHOW = "`weightctl show MODEL TENSOR` prints the values of a tensor"
_META = "`weightctl ls MODEL --meta` shows the metadata"
_HASH = "`weightctl ls MODEL --hash` shows the SHA-256 of each tensor"
_SCAN = "`weightctl ls MODEL --scan` lists what a pickle can run"
_DIFF = (
    "`weightctl diff MODEL OTHER` compares shapes and types; `weightctl verify MODEL --against "
    "OTHER` compares values"
)
_PATCH = (
    "`weightctl diff MODEL OTHER --patch FILE` writes what changed; `weightctl apply MODEL "
    "PATCH OUT` restores OTHER"
)
_VERIFY = "`weightctl verify MODEL` checks that a checkpoint works"
_CONVERT = "`weightctl convert MODEL OUT` writes another format or type"
_QUANTIZE = "`weightctl convert MODEL OUT.gguf --quant Q4_K_M` quantizes"
_DEQUANTIZE = "`weightctl convert MODEL OUT --dtype bf16` writes unquantized values"
_RENAME = "`weightctl edit MODEL --rename OLD=NEW` renames tensors"
_EDIT = "`weightctl edit MODEL --set KEY=VALUE` changes metadata"
_MERGE = "`weightctl merge MODEL ADAPTER OUT` merges a LoRA adapter into a model"
_EXTRACT = "`weightctl extract BASE TUNED OUT` computes a LoRA adapter from two models"
_JOIN = (
    "`weightctl shard --gather DIR OUT` joins the shards of ranks; `weightctl convert MODEL OUT` "
    "joins a model of several files"
)
_SPLIT = (
    "`weightctl convert MODEL OUT --max-shard-size 5GB` splits a model into several files; "
    "`weightctl shard MODEL OUT --tp 2` shards it for ranks"
)
_CHECK = "`weightctl check MODEL` finds faults in the files of a model; --fix corrects them"
_DOWNLOAD = "`hf download OWNER/NAME --local-dir NAME` downloads a model from Hugging Face"
# Words that users may try as commands, each with a hint on what to type instead.
_MEANINGS: dict[str, str] = {
    **dict.fromkeys(
        ("info", "list", "inspect", "view", "tree", "dump", "describe", "open", "dir", "tensors",
         "size", "summary"),
        _LIST,
    ),
    **dict.fromkeys(("stats", "statistics", "hist", "histogram", "range", "norms"), _STAT),
    **dict.fromkeys(("cat", "print", "values", "head", "peek"), _SHOW),
    **dict.fromkeys(("meta", "metadata", "header", "config"), _META),
    **dict.fromkeys(("hash", "sha256", "checksum", "digest"), _HASH),
    **dict.fromkeys(("scan", "audit", "pickle", "security"), _SCAN),
    **dict.fromkeys(("compare", "cmp"), _DIFF),
    **dict.fromkeys(("patch", "delta", "restore"), _PATCH),
    **dict.fromkeys(("validate", "test", "eval", "perplexity", "ppl"), _VERIFY),
    **dict.fromkeys(("lint", "fix", "repair", "doctor"), _CHECK),
    **dict.fromkeys(("export", "import", "transform", "cast", "save", "copy", "cp"), _CONVERT),
    **dict.fromkeys(("quantize", "quantise", "quant", "compress"), _QUANTIZE),
    **dict.fromkeys(("dequantize", "dequantise", "dequant"), _DEQUANTIZE),
    **dict.fromkeys(("rename", "mv", "map"), _RENAME),
    **dict.fromkeys(("set", "unset", "modify"), _EDIT),
    **dict.fromkeys(
        ("gather", "join", "combine", "consolidate", "unshard", "concat"), _JOIN
    ),
    **dict.fromkeys(("split", "partition", "cut", "slice"), _SPLIT),
    **dict.fromkeys(("download", "pull", "fetch", "get"), _DOWNLOAD),
    **dict.fromkeys(("lora", "adapter", "peft", "fuse"), _MERGE),
    **dict.fromkeys(("svd", "unmerge"), _EXTRACT),
    "version": "`weightctl --version` prints the version",
    "completion": "`weightctl --install-completion` installs completion for your shell",
}  # fmt: skip


def unknown_command_error(name: str, commands: list[str]) -> WeightctlError:
    """Return the error for a command that does not exist, with a suggestion."""
    import difflib  # only on an error

    listed = f"commands: {', '.join(commands)}; `weightctl --help` describes them"
    wanted = name.lower()
    near = difflib.get_close_matches(wanted, commands, n=1)
    if wanted in _MEANINGS:
        hint = f"{_MEANINGS[wanted]}; {listed}"
    elif near:
        hint = f"did you mean `weightctl {near[0]}`? {listed}"
    elif similar := difflib.get_close_matches(wanted, _MEANINGS, n=1, cutoff=0.8):
        hint = f"{_MEANINGS[similar[0]]}; {listed}"
    else:
        hint = listed
    return WeightctlError(f"`{name}` is neither a command nor an existing file", hint=hint)


def explain_call_error(error: Any) -> WeightctlError:
    """Convert an error of Typer: the message says what is wrong, and the hint shows the usage."""
    ctx = error.ctx
    if ctx is not None and ctx.parent is not None:
        describe(ctx.command)
    path = ctx.command_path if ctx is not None else "weightctl"
    help_hint = f"`{path} --help` describes the options"
    option: str | None = getattr(error, "option_name", None)
    param = getattr(error, "param", None)
    if option is not None and hasattr(error, "possibilities"):
        near = [f"`{each}`" for each in error.possibilities or ()]
        question = f"did you mean {' or '.join(near)}? " if near else ""
        return WeightctlError(f"{path} has no option `{option}`", hint=question + help_hint)
    if extra := _EXTRA.fullmatch(error.message):
        return WeightctlError(
            f"unexpected argument: {extra[1]}", hint=f"{_usage(ctx)}; {help_hint}"
        )
    if param is None:
        return WeightctlError(_lower_first(error.format_message()), hint=help_hint)
    name = param.opts[-1] if param.param_type_name == "option" else argument_name(param)
    name = name.strip("[]").removesuffix("...")
    if not error.message:
        return WeightctlError(f"{name} is missing", hint=f"{_usage(ctx)}; {help_hint}")
    return WeightctlError(f"{name}: {_reword(error.message)}", hint=help_hint)


def _reword(text: str) -> str:
    """Return a message of Typer about a value, in the words of the other messages."""
    for pattern, words in _REWORDED.items():
        text = re.sub(pattern, words, text)
    return _lower_first(text)


def _lower_first(text: str) -> str:
    return (text[:1].lower() + text[1:]).rstrip(".")


def _usage(ctx: Any) -> str:
    arguments = [
        argument_name(param)
        for param in ctx.command.get_params(ctx)
        if param.param_type_name == "argument"
    ]
    return f"usage: `{' '.join([ctx.command_path, *arguments])}`"
