"""Explains errors in a command line: unknown commands and options, missing or invalid values."""

from __future__ import annotations

import re
from typing import Any

from weightctl.cli.help import argument_name, describe, read_page
from weightctl.errors import WeightctlError

_EXTRA = re.compile(r"Got unexpected extra argument(?:s|\(s\))? \((.*)\)", re.DOTALL)

# Messages of Typer about values, and what they say here.
_REWORDED = {
    r"^'(.*)' is not a valid int(?:eger)?(?: range)?\.?$": r"`\1` is not an integer",
    r"^'(.*)' is not a valid float(?: range)?\.?$": r"`\1` is not a number",
    r"^(\S+) is not in the range x>=(\S+?)\.?$": r"\1 is less than \2",
}


def unknown_command_error(name: str, commands: list[str]) -> WeightctlError:
    """Return the error for a command that does not exist, with a suggestion."""
    import difflib  # only on an error

    meanings = _read_meanings()
    listed = f"commands: {', '.join(commands)}; `weightctl --help` describes them"
    wanted = name.lower()
    near = difflib.get_close_matches(wanted, commands, n=1)
    if wanted in meanings:
        hint = meanings[wanted]
    elif near:
        hint = f"did you mean `weightctl {near[0]}`? `weightctl --help` lists the commands"
    elif similar := difflib.get_close_matches(wanted, meanings, n=1, cutoff=0.8):
        hint = meanings[similar[0]]
    else:
        hint = listed
    return WeightctlError(f"`{name}` is neither a command nor an existing file", hint=hint)


def _read_meanings(kind: str = "meanings") -> dict[str, str]:
    """Map words that users may try as commands, or as `options`, to hints on what to type."""
    groups: list[dict[str, Any]] = read_page("words")[kind]
    return {word: " ".join(each["hint"].split()) for each in groups for word in each["words"]}


def explain_call_error(error: Any, command: str) -> WeightctlError:
    """Convert an error of Typer: the message says what is wrong, and the hint shows the usage.

    `command` is the name of the command that was called; empty for none.
    """
    ctx = error.ctx
    path = ctx.command_path if ctx is not None else f"weightctl {command}".rstrip()
    page = read_page(command)
    help_hint = f"`{path} --help` describes the options"
    option: str | None = getattr(error, "option_name", None)
    param = getattr(error, "param", None)
    if option is not None and hasattr(error, "possibilities"):
        near = [f"`{each}`" for each in error.possibilities or ()]
        question = f"did you mean {' or '.join(near)}? " if near else ""
        is_longer = any(option.startswith(each) for each in error.possibilities or ())
        if (meant := _read_meanings("options").get(option)) and not is_longer:
            question = f"{meant}; "
        return WeightctlError(f"{path} has no option `{option}`", hint=question + help_hint)
    if extra := _EXTRA.fullmatch(error.message):
        meant = f"{page['unexpected'].format(extra[1])}; " if "unexpected" in page else ""
        meant = f"to quantize, use --quant {extra[1]}; " if _is_type(extra[1]) else meant
        return WeightctlError(
            f"unexpected argument: {extra[1]}", hint=f"{meant}{_usage(ctx)}; {help_hint}"
        )
    if param is None:
        return WeightctlError(_lower_first(error.format_message()), hint=help_hint)
    if param.param_type_name == "argument":
        describe(error.ctx.command)  # with the name that help pages use
    if ctx is not None and not error.message and param.nargs == -1:
        # A last argument was taken for the output, which follows any number of these.
        param = ctx.command.params[[each.nargs for each in ctx.command.params].index(-1) + 1]
    name = param.opts[-1] if param.param_type_name == "option" else argument_name(param)
    name = name.strip("[]").removesuffix("...")
    if not error.message:
        is_argument = param.param_type_name == "argument" and param.name != "path"
        meant = f"{page['missing']}; " if is_argument and "missing" in page else ""
        return WeightctlError(f"{name} is missing", hint=f"{meant}{_usage(ctx)}; {help_hint}")
    return WeightctlError(f"{name}: {_reword(error.message)}", hint=help_hint)


def _is_type(text: str) -> bool:
    from weightctl.plan.scheme_names import list_written
    from weightctl.plan.type_names import list_recipes, single_types

    return text.upper() in {*list_recipes(), *single_types(), *list_written()}


def _reword(text: str) -> str:
    """Return a message of Typer about a value, in the words of the other messages."""
    for pattern, words in _REWORDED.items():
        text = re.sub(pattern, words, text)
    return _lower_first(text)


def _lower_first(text: str) -> str:
    return (text[:1].lower() + text[1:]).rstrip(".")


def _usage(ctx: Any) -> str:
    describe(ctx.command)
    arguments = [
        argument_name(param) if is_argument else f"{param.opts[-1]} {param.metavar}"
        for param in ctx.command.get_params(ctx)
        if (is_argument := param.param_type_name == "argument") or param.required
    ]
    return f"usage: `{' '.join([ctx.command_path, *arguments])}`"
