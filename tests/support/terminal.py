"""The command on a terminal of a given width."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_COLOR = re.compile(r"\x1b\[[0-9;]*m")


# The line that names a phase appears in a command that takes long, as all do on a busy machine.
_PHASES = re.compile(r"\x1b\[2K\r(?:[^\r\n\x1b]*(?=\x1b\[2K\r))?")


def on_a_terminal(
    columns: int, *arguments: str | Path, cwd: Path | None = None, **environment: str
) -> str:
    """Run the command on a terminal of so many columns; return what it writes there."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    plain = {key: value for key, value in os.environ.items() if key not in {"NO_COLOR", "COLUMNS"}}
    process = subprocess.Popen(
        [sys.executable, "-m", "weightctl", *map(str, arguments)],
        stdout=theirs,
        stderr=theirs,
        stdin=theirs,
        cwd=cwd,
        env=plain | {"TERM": "xterm-256color"} | environment,
    )
    os.close(theirs)
    written = read_terminal(ours)
    process.wait()
    return _PHASES.sub("", written.replace("\r\n", "\n"))


def read_terminal(ours: int) -> str:
    """Return what programs have written to a terminal; close it when they have closed their end."""
    written = b""
    with os.fdopen(ours, "rb", buffering=0) as terminal, suppress(OSError):
        while piece := terminal.read(65536):
            written += piece
    return written.decode()


def without_color(shown: str) -> str:
    return _COLOR.sub("", shown)
