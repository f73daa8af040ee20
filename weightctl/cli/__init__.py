"""The command line: one module and one line in `COMMANDS` for each command."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from contextlib import redirect_stderr, suppress
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, get_type_hints

import typer
import typer.core
from typer.main import get_command

from weightctl.cli.help import WHOLE_PAGE, HelpCommand, describe, format_help
from weightctl.errors import WeightctlError
from weightctl.system.processes import ENDING_SIGNALS, prepare_terminal, raise_file_limit
from weightctl.system.registry import load

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

__all__ = ["COMMANDS", "app", "main"]

# The exception that Typer raises for all errors in a command line; its class is not public.
_CallError: type[Exception] = typer.BadParameter.__bases__[0]
# A shell sets this environment variable when it asks for completions.
_COMPLETES = "_WEIGHTCTL_COMPLETE"

# Each value refers to the Typer application of a command, which is imported when it is called.
COMMANDS: dict[str, str] = {
    "ls": "weightctl.cli.ls:app",
    "stat": "weightctl.cli.stat:app",
    "show": "weightctl.cli.show:app",
    "diff": "weightctl.cli.diff:app",
    "apply": "weightctl.cli.apply:app",
    "convert": "weightctl.cli.convert:app",
    "imatrix": "weightctl.cli.imatrix:app",
    "merge": "weightctl.cli.merge:app",
    "extract": "weightctl.cli.extract:app",
    "shard": "weightctl.cli.shard:app",
    "edit": "weightctl.cli.edit:app",
    "check": "weightctl.cli.check:app",
    "verify": "weightctl.cli.verify:app",
    "tasks": "weightctl.cli.tasks:app",
}

# The commands that only `weightctl help` lists.
_RARE = {"tasks"}
_COLORS = ("auto", "always", "never")

# The commands that recognize model families.
_RECOGNIZING = {"ls", "stat", "diff", "convert", "imatrix", "merge", "extract", "shard", "check",
                "verify", "tasks"}  # fmt: skip


class _Commands(typer.core.TyperGroup):
    """A Typer group whose commands are those of `COMMANDS`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments; a path instead of a command means `ls`, and `help` the help page."""
        if not args and not ctx.resilient_parsing:
            typer.echo(self.get_help(ctx), err=True)
            raise typer.Exit(2)
        if args and args[0] == "help":
            args = [*args[1:2], "--help"]
            ctx.meta[WHOLE_PAGE] = True
        return super().parse_args(ctx, ["ls", *args] if args and _is_path(args[0]) else args)

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  # Typer's signature
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002  # Typer's signature
        return _make_command(cmd_name, COMMANDS[cmd_name]) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the arguments name.

        Raises `WeightctlError` if the command does not exist.
        """
        if args and args[0] not in COMMANDS and not ctx.resilient_parsing:
            if args[0].startswith("-"):
                ctx.fail(f"{args[0]} is not an option of weightctl itself")
            from weightctl.cli.usage import unknown_command_error  # only on an error

            raise unknown_command_error(args[0], list(COMMANDS))
        return super().resolve_command(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, with weightctl's help text for Typer's completion options."""
        params: list[Any] = super().get_params(ctx)
        for param in params:
            if "--show-completion" in param.opts:
                param.help = "Print the completion script for the current shell."
        return params

    def get_help(self, ctx: Any) -> str:
        """Return the help page, which lists the commands."""
        describe(self, "weightctl")
        left_out = () if WHOLE_PAGE in ctx.meta else _RARE
        names = [name for name in COMMANDS if name not in left_out]
        commands = [(name, self._describe(ctx, name)) for name in names]
        return format_help(self, ctx, commands)

    def _describe(self, ctx: Any, name: str) -> str:
        text: str = self.get_command(ctx, name).help or ""
        return text.partition("\n\n")[0]


@cache
def _make_command(name: str, reference: str) -> Any:
    made: typer.Typer = load(reference)
    for info in made.registered_commands:
        if info.cls in (None, typer.core.TyperCommand):
            info.cls = HelpCommand
        if info.callback is not None:
            _evaluate_annotations(info.callback)
    command = get_command(made)
    command.name = name
    if name in _RECOGNIZING:
        command.params.append(_family_option())
    command.params.append(_color_option())
    return command


def _color_option() -> Any:
    """Return the option for colors, which all commands have."""

    def choose(ctx: Any, _: Any, when: str) -> None:
        if when not in _COLORS and not ctx.resilient_parsing:
            raise typer.BadParameter(f"`{when}` is not one of {', '.join(_COLORS)}")
        if when != "auto" and not ctx.resilient_parsing:
            from weightctl.cli.render import set_colors

            set_colors(always=when == "always")

    return typer.core.TyperOption(
        param_decls=["--color"],
        is_eager=True,
        expose_value=False,
        callback=choose,
        autocompletion=lambda: [*_COLORS],
        default="auto",
        show_default=False,
        metavar="WHEN",
        help="Use colors: auto (on a terminal), always or never.",
    )


def _family_option() -> Any:
    """Return the option for further families, which is the same in all commands that have it."""

    def add(ctx: Any, _: Any, paths: tuple[str, ...]) -> None:
        if paths and not ctx.resilient_parsing:
            from weightctl.families.added import with_families  # only if the option is given

            ctx.with_resource(with_families(paths))

    return typer.core.TyperOption(
        param_decls=["--family"],
        multiple=True,
        is_eager=True,
        expose_value=False,
        callback=add,
        metavar="FILE",
        help="Also support the model family that a file describes (docs/families.md). Repeatable.",
    )


def _evaluate_annotations(function: Callable[..., Any]) -> None:
    """Evaluate annotations that are text, which Typer would do several times for each option."""
    function.__annotations__ = get_type_hints(function, include_extras=True)


def _is_path(argument: str) -> bool:
    """Whether an argument is a path, existing or misspelled, and not a command or an option."""
    if argument in COMMANDS or argument.startswith("-"):
        return False
    return not {"/", ".", ":"}.isdisjoint(argument) or os.path.lexists(argument)


app = typer.Typer(
    cls=_Commands,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from weightctl.system import __version__

        typer.echo(f"weightctl {__version__}")
        typer.echo(f"kernels: {_kernels()}")
        raise typer.Exit


def _kernels() -> str:
    """Describe the compiled kernels that are in use, or say why none are."""
    from weightctl.kernels import active, levels, unknown_level

    if levels() and (wanted := unknown_level()):
        known = ", ".join([*levels(), "off"])
        return (
            f"{active()} (WEIGHTCTL_KERNELS={wanted!r} is not supported here; use one of: {known})"
        )
    if active() is None and levels():
        return "none; NumPy is used instead (WEIGHTCTL_KERNELS=off)"
    return active() or "none; NumPy is used instead (no C compiler was found during installation)"


@app.callback()
def _weightctl(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """List, compare, convert, quantize, shard and verify GGUF, safetensors and PyTorch checkpoints.

    `weightctl MODEL` is short for `weightctl ls MODEL`.
    """
    del version  # its callback prints it


def _hide_secrets(word: str) -> str:
    """Return an argument; in a URL, without the signature and password.

    The storage of the URL keeps these secrets, so that the URL can still be read.
    """
    start = word.find("http") if word.startswith("-") else 0
    if start < 0 or not word.startswith(("http://", "https://"), start):
        return word
    from weightctl.storage.location import parse_location  # only for URLs

    return word[:start] + parse_location(word[start:]).name


def main() -> NoReturn:
    """Run the command line; exit with 0, with 1 for findings, 2 for errors and 130 on Ctrl-C."""
    # The threads of torch would wait for milliseconds without giving up the processor, while others
    # have work. Its library reads this when it is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Characters that the terminal's encoding does not have are escaped.
            stream.reconfigure(errors="backslashreplace")
    raise_file_limit()
    prepare_terminal()
    for number in ENDING_SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:  # as under `nohup`
            signal.signal(number, _end)
    # Modules are imported before files are opened: at the limit of open files, imports fail too.
    from weightctl.cli.render import complain, show_warnings

    if os.environ.get(_COMPLETES):
        _complete()
    words = [_hide_secrets(word) for word in sys.argv[1:]]
    try:
        with show_warnings():
            code = app(words, prog_name="weightctl", standalone_mode=False)
    except _CallError as error:
        from weightctl.cli.usage import explain_call_error  # only on an error

        command = next((word for word in words if word in COMMANDS), "")
        complain(explain_call_error(error, command), as_json=_wants_json(words))
        sys.exit(2)
    except Exception as error:
        if (known := _explain(error)) is None:
            raise
        complain(known, as_json=_wants_json(words))
        sys.exit(2)
    sys.exit(code if isinstance(code, int) else 0)


def _explain(error: Exception) -> WeightctlError | OSError | None:
    """Return the error to show; None for a fault of weightctl."""
    if isinstance(error, OSError) and error.errno == errno.EMFILE:
        return WeightctlError(str(error), hint="raise the limit with `ulimit -n`")
    if isinstance(error, WeightctlError | OSError):
        return error
    from weightctl.system.registry import find_culprit  # only on an error

    return find_culprit(error)


def _wants_json(words: list[str]) -> bool:
    """Whether an error is printed as JSON: with --json, if no checkpoint goes to stdout."""
    if "--json" not in (words[: words.index("--")] if "--" in words else words):
        return False
    from weightctl.write.targets import STDOUTS  # only on an error

    return STDOUTS.isdisjoint(words)


def _complete() -> NoReturn:
    """Answer a shell that asks for completions; print nothing if that fails."""
    with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere), suppress(Exception):
        app(prog_name="weightctl")
    sys.exit(0)


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    # `SystemExit` is an exception, so temporary files are removed before the process ends.
    sys.exit(128 + number)
