"""The command on a terminal of a given width, and shells in which a test presses keys."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from commands import ROOT, run_on_terminal

if TYPE_CHECKING:
    from types import TracebackType


# The command on a terminal of a given width.

_COLOR = re.compile(r"\x1b\[[0-9;]*m")


# The line that names a phase appears in a command that takes long, as all do on a busy machine.
_PHASES = re.compile(r"\x1b\[2K\r(?:[^\r\n\x1b]*(?=\x1b\[2K\r))?")


def on_a_terminal(
    columns: int, *arguments: str | Path, cwd: Path | None = None, **environment: str
) -> str:
    """Run the command on a terminal of so many columns; return what it writes there."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with ThreadPoolExecutor(1) as reader:
        written = reader.submit(read_terminal, ours)
        try:
            run_on_terminal(theirs, *arguments, cwd=cwd or ROOT, **environment)
        finally:
            os.close(theirs)
    return _PHASES.sub("", written.result().replace("\r\n", "\n"))


def read_terminal(ours: int) -> str:
    """Return what programs have written to a terminal; close it when they have closed their end."""
    written = b""
    with os.fdopen(ours, "rb", buffering=0) as terminal, suppress(OSError):
        while piece := terminal.read(65536):
            written += piece
    return written.decode()


def without_color(shown: str) -> str:
    return _COLOR.sub("", shown)


# Interactive shells on a terminal of their own, in which a test presses keys.

TAB = "\t"
_PROMPT = "READY> "
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\r|\x07")
_SECONDS = 20
# How each shell starts without the files of whoever runs the tests, and takes the completion.
STARTS = {
    "bash": (
        ["bash", "--norc", "--noprofile", "-i"],
        (
            "bind 'set bell-style none'; bind 'set enable-bracketed-paste off'; "
            'eval "$(weightctl --show-completion bash)"; PS1="REA""DY> "\n'
        ),
    ),
    "zsh": (
        ["zsh", "-f", "-i"],
        (
            "unsetopt beep zle_bracketed_paste prompt_sp; LISTMAX=1000; autoload -Uz compinit; "
            "compinit -u -D; eval \"$(weightctl --show-completion zsh)\"; PS1='REA''DY> '\n"
        ),
    ),
}


class Shell:
    """A shell that runs in `folder`, with completion of `weightctl` as it is installed."""

    def __init__(self, name: str, folder: Path) -> None:
        command, begin = STARTS[name]
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=folder,
            env=os.environ | {"PATH": path, "TERM": "xterm", "HOME": str(folder)},
            start_new_session=True,
        )
        os.close(theirs)
        self.press(begin)
        self.read_until(_PROMPT)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._ours)

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def complete(self, line: str, expected: str) -> str:
        """Type a line and a tab, or two to get a list; return what is shown once it is there."""
        self.press(line + TAB)
        time.sleep(0.1)
        self.press(TAB)
        shown = self.read_until(expected)
        return shown + self.clear()

    def clear(self) -> str:
        """Leave the line that is typed; return what was shown until the shell waits again."""
        self.press("\x15echo CLEA''RED\n")
        return self.read_until("CLEARED")

    def read_until(self, expected: str) -> str:
        """Return what the shell shows up to a text; raises `AssertionError` where it never does."""
        shown = ""
        end = time.monotonic() + _SECONDS
        while expected not in shown:
            ready, _, _ = select.select([self._ours], [], [], max(end - time.monotonic(), 0))
            assert ready, f"{expected!r} is not in {shown!r}"
            shown += _CONTROL.sub("", os.read(self._ours, 65536).decode(errors="replace"))
        return shown
