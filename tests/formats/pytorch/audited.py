"""Open, or unpickle, files in this one process, and print what an audit hook saw and the cost.

    python audited.py open COUNT FILE...
    python audited.py unpickle FILE...

The first COUNT files are opened before the hook is armed: what is imported late is imported then.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import sys
import time
from typing import Any

FORBIDDEN = (
    "code.", "compile", "cpython.run", "ctypes.", "exec", "fcntl.", "ftplib.", "function.__new__",
    "glob.", "http.", "import", "imaplib.", "marshal.", "msvcrt.", "nntplib.", "object.__",
    "os.", "pathlib.", "pickle.", "poplib.", "pty.", "resource.", "shutil.", "signal.", "smtplib.",
    "socket.", "sqlite3.", "subprocess.", "sys.", "syslog.", "telnetlib.", "tempfile.", "urllib.",
    "webbrowser.",
)  # fmt: skip
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class _StoppedError(BaseException):
    """What would have happened was seen, and is not let happen."""


class Hook:
    """What was seen while it is armed; `is_stopping` keeps what is seen from happening."""

    def __init__(self, *, is_stopping: bool) -> None:
        self.seen: list[str] = []
        self.is_armed = False
        self.is_stopping = is_stopping
        sys.addaudithook(self)

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.is_armed or not _is_forbidden(event, arguments):
            return
        self.seen.append(event)
        # Names that are only looked up, and modules that are only imported, lead on to the rest.
        if self.is_stopping and event not in {"import", "pickle.find_class"}:
            self.is_armed = False
            raise _StoppedError


def _is_forbidden(event: str, arguments: tuple[Any, ...]) -> bool:
    if event != "open":
        return event.startswith(FORBIDDEN)
    _, mode, flags = arguments
    return bool(set(mode or "") & set("wax+")) or bool((flags or 0) & _WRITING)


def peak() -> int:
    """Return the most memory that this process has had since it was last forgotten."""
    with open("/proc/self/status", encoding="ascii") as status:
        line = next(line for line in status if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def forget_peak() -> None:
    with open("/proc/self/clear_refs", "w", encoding="ascii") as control:
        control.write("5")


def opened(path: str) -> str:
    """Open a checkpoint, and list it as `ls` does."""
    from weightctl import WeightctlError, open_weights
    from weightctl.inspection.contents import Contents

    try:
        weights = open_weights(path)
        contents = Contents(weights)
        str(contents.totals), contents.title(path), contents.adapter, contents.tree.children()
    except WeightctlError as error:
        str(error)
        return f"refused: {error}"
    leaves = {name: leaf.kind for name, leaf in weights.header.leaves.items()}
    return f"listed: {[*weights.header.tensors]} {leaves}"


def unpickled(path: str) -> str:
    with open(path, "rb") as file:
        raw = file.read()
    return type(pickle.loads(raw)).__name__


def watched(hook: Hook, action: Any, path: str) -> dict[str, Any]:
    hook.seen = []
    forget_peak()
    before, started = peak(), time.process_time()
    hook.is_armed = True
    try:
        outcome = action(path)
    except _StoppedError:
        outcome = "stopped"
    except Exception as error:  # noqa: BLE001  # whatever it is, the test that reads this judges
        outcome = f"raised: {type(error).__name__}: {error!s:.500}"
    finally:
        hook.is_armed = False
    return {
        "outcome": outcome,
        "seen": hook.seen,
        "seconds": time.process_time() - started,
        "bytes": peak() - before,
    }


def main(mode: str, *paths: str) -> None:
    hook = Hook(is_stopping=mode == "unpickle")
    action = opened if mode == "open" else unpickled
    if mode == "open":
        warm = int(paths[0])
        for path in paths[1 : warm + 1]:
            action(path)
        paths = paths[warm + 1 :]
    with contextlib.redirect_stdout(io.StringIO()):
        events = {path: watched(hook, action, path) for path in paths}
    print(json.dumps(events))


if __name__ == "__main__":
    main(*sys.argv[1:])
