"""Python as a child process: all children of weightctl are started here.

A child imports from the same places as its parent, and from no place that depends on the current
directory: a file `json.py` beside a downloaded model is not code of weightctl.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import IO

# What a child that parses an untrusted file gets of the environment: not the credentials.
_HARMLESS = frozenset(
    {
        "HOME", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "PATH", "PYTHONHOME", "TEMP",
        "TMP", "TMPDIR", "VIRTUAL_ENV",
    }
)  # fmt: skip
# Threads of libraries for linear algebra would each reserve memory.
_ONE_THREAD = {"MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def start_python(
    *words: str,
    stdin: int | None,
    stdout: int | IO[bytes],
    stderr: int | None,
    is_untrusted: bool = False,
) -> subprocess.Popen[bytes]:
    """Start this interpreter with the given arguments, for example `-c` and a program.

    With `is_untrusted`, the child parses a file that may be hostile: it gets no credentials from
    the environment, and its libraries use one thread. It must call `limit_process` itself.
    """
    inherited = dict(os.environ)
    if is_untrusted:
        inherited = {name: value for name, value in inherited.items() if name in _HARMLESS}
        inherited |= _ONE_THREAD
    return subprocess.Popen(  # noqa: S603  # this interpreter, with programs of weightctl
        # Without -P, Python would first import from the current directory.
        [sys.executable, "-P", *words],
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=inherited | {"PYTHONPATH": os.pathsep.join(_list_places())},
    )


def send_message(to: IO[bytes], content: bytes) -> None:
    """Write a message to a pipe, after its length."""
    to.write(len(content).to_bytes(8, "little") + content)
    to.flush()


def receive_message(of: IO[bytes]) -> bytes:
    """Return the next message of a pipe; empty if the other process has ended."""
    return of.read(int.from_bytes(of.read(8), "little"))


def _list_places() -> list[str]:
    """Return the places to import from; relative ones depend on the current directory."""
    places = [place for place in sys.path if os.path.isabs(place)]
    own = str(Path(__file__).resolve().parents[2])
    # A program may have found weightctl through a relative place, while another one is installed.
    return places if own in places else [own, *places]


def limit_process(memory: int, seconds: int | None = None, *, mapped: int = 0) -> None:
    """Limit the memory of this process in bytes, and its processor time, permanently.

    The address space may be larger by `mapped` bytes, for files and libraries.
    """
    if sys.platform == "win32":
        from weightctl.system.windows import limit_process as limit

        limit(memory, seconds)
        return
    import resource  # only children need it

    limits = [
        (resource.RLIMIT_AS, memory + mapped),
        (resource.RLIMIT_DATA, memory),
        (resource.RLIMIT_CORE, 0),
    ]
    if seconds is not None:
        limits.append((resource.RLIMIT_CPU, seconds))
    for limit, most in limits:
        _, hard = resource.getrlimit(limit)
        bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
        try:
            resource.setrlimit(limit, (bound, hard))
        except (OSError, ValueError):  # some systems have no such limit
            continue
