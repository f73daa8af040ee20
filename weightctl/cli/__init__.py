"""The command line: one module and one line in `COMMANDS` for each command."""

from __future__ import annotations

import errno
import gc
import io
import os
import resource
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
import typer.core
from typer.main import get_command

from weightctl.errors import WeightctlError
from weightctl.system.registry import load

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["COMMANDS", "app", "main"]

# Each refers to a Typer application of one command, imported when it is called.
COMMANDS: dict[str, str] = {
    "ls": "weightctl.cli.ls:app",
    "diff": "weightctl.cli.diff:app",
    "convert": "weightctl.cli.convert:app",
    "shard": "weightctl.cli.shard:app",
    "verify": "weightctl.cli.verify:app",
}


class _Commands(typer.core.TyperGroup):
    """The table above, as the group that Typer asks for commands."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        # Where Typer looks for what a misspelt command may have meant.
        self.commands: Any = dict.fromkeys(COMMANDS)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments; a path where a command belongs means `ls`."""
        return super().parse_args(ctx, ["ls", *args] if args and _is_path(args[0]) else args)

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  # Typer's signature
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002  # Typer's signature
        if cmd_name not in COMMANDS:
            return None
        command = get_command(load(COMMANDS[cmd_name]))
        command.name = cmd_name
        return command


def _is_path(argument: str) -> bool:
    """Whether an argument is a path, there or misspelt, and no command and no option."""
    if argument in COMMANDS or argument.startswith("-"):
        return False
    return "/" in argument or "." in argument or os.path.lexists(argument)


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from weightctl import __version__

        typer.echo(f"weightctl {__version__}")
        typer.echo(f"kernels: {_kernels()}")
        raise typer.Exit


def _kernels() -> str:
    """Say which compiled codecs serve, and where none do why."""
    from weightctl.kernels import active, levels, unknown_level

    if levels() and (wanted := unknown_level()):
        known = ", ".join([*levels(), "off"])
        return (
            f"{active()} (WEIGHTCTL_KERNELS={wanted!r} is not a level of this processor: {known})"
        )
    if active() is None and levels():
        return "none, NumPy serves (WEIGHTCTL_KERNELS switches them off)"
    return active() or "none, NumPy serves (no C compiler was found at install)"


@app.callback()
def _weightctl(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version"),
    ] = False,
) -> None:
    """Open, list, compare, convert, shard and verify checkpoints: GGUF, safetensors, PyTorch.

    A path alone is listed: `weightctl PATH` is `weightctl ls PATH`.
    """
    del version  # its callback has done the work


def main() -> NoReturn:
    """Run the command line; exit with 0 when fine, 1 for findings, 2 for errors, 130 on Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A name that the terminal's encoding lacks is shown escaped, not as a traceback.
            stream.reconfigure(errors="backslashreplace")
    # Large headers are many small objects and no garbage; looking for some doubles the time.
    gc.set_threshold(1_000_000, 50, 50)
    with suppress(OSError, ValueError):  # some systems have another limit yet
        # For many ranks there are many files, and a process may have more than the usual 1024.
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # `nohup` says so
            signal.signal(number, _end)
    # Loaded before files are opened: where no more may be open, no module is imported either.
    from weightctl.cli.render import complain

    try:
        app(prog_name="weightctl")
    except (WeightctlError, OSError) as error:
        if isinstance(error, OSError) and error.errno == errno.EMFILE:
            error = WeightctlError(str(error), hint="raise the limit with `ulimit -n`")
        complain(error)
        sys.exit(2)
    sys.exit(0)


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    # An exception, so that temporary files are removed on the way out.
    sys.exit(128 + number)
