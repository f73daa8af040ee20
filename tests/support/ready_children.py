"""Children that are forked from a process that has imported their libraries.

The start of Python and the imports of a library take most of the time of a small check. weightctl's
children that read untrusted files are such ones in tests; tests of these children start real ones,
with the fixture `own_children`. A tokenizer that is read again and again has one child.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
import warnings
from contextlib import ExitStack, suppress
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import IO, TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from weightctl.extras.keras import reader_process
from weightctl.system.children import start_python
from weightctl.translate.tokenizer import encoding
from weightctl.translate.tokenizer.library_process import TokenizerProcess
from weightctl.verify.checks import structure
from weightctl.write.executors import processes

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from typing import Self

# The modules that start children that read files, and those that work for this process.
STARTERS = (structure, reader_process)
WORKERS = (processes,)
OF_WORKERS = (
    "weightctl.write.executors.worker", "weightctl.write.conversion", "weightctl.verify.request",
    "weightctl.codecs", "weightctl.kernels._native", "ml_dtypes",
)  # fmt: skip
# What the children import, except for torch, which is imported for the first that needs it.
PRELOADED = ("safetensors", "numpy", "gguf", "h5py")
TOKENIZERS = 8  # the children with a tokenizer, at most
KEPT = ("HOME", "LD_LIBRARY_PATH", "PATH", "TMPDIR")
_MOST = 1 << 16


class ReadyChild:
    """A child that was forked; it has what callers use of a process of `subprocess`."""

    def __init__(
        self, server: socket.socket, request: dict[str, Any], *streams: int | IO[bytes]
    ) -> None:
        self.returncode: int | None = None
        self.stdin = self.stdout = None
        nothing = os.open(os.devnull, os.O_RDWR)
        theirs = [
            nothing if isinstance(stream, int) else os.dup(stream.fileno()) for stream in streams
        ]
        if streams[0] == subprocess.PIPE:
            theirs[0], ours = os.pipe()
            self.stdin = os.fdopen(ours, "wb")
        if streams[1] == subprocess.PIPE:
            ours, theirs[1] = os.pipe()
            self.stdout = os.fdopen(ours, "rb")
        ours, answer = os.pipe()
        # Without a buffer, which could take the second line out of the sight of `select`.
        self._answers = os.fdopen(ours, "rb", buffering=0)
        given = json.dumps({**request, "folder": os.getcwd(), "path": sys.path})
        socket.send_fds(server, [given.encode()], [*theirs, answer])
        for number in {*theirs, answer, nothing}:
            os.close(number)
        self.pid = int(self._answers.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (self.stdin, self.stdout):
            if pipe is not None:
                pipe.close()
        self.wait()

    def kill(self) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._answers], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a child", timeout or 0)
            self.returncode = int(self._answers.readline())
            self._answers.close()
        return self.returncode


def run_ready(
    program: str, *arguments: object, imports: Iterable[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a program in a child that has the imports already; return its output."""
    words = ["-c", program, *map(str, arguments)]
    with _open_output() as output, _open_output() as errors:
        child = CHILDREN.start(words, subprocess.DEVNULL, output, errors, imports=imports)
        code = child.wait()
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(words, code, output.read(), errors.read())


def _open_output() -> IO[str]:
    return tempfile.TemporaryFile("w+", errors="replace")


def serve(server: socket.socket) -> None:
    """Fork a child for each request, and answer with its number and its exit code."""
    for name in PRELOADED:
        if find_spec(name):
            import_module(name)
    running: dict[int, tuple[int, IO[str]]] = {}
    while True:
        ready, _, _ = select.select([server, *running], [], [])
        for number in {*ready} & running.keys():
            child, answer = running.pop(number)
            os.close(number)
            with answer:
                print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=answer)
        if server not in ready:
            continue
        raw, streams, _, _ = socket.recv_fds(server, _MOST, 4)
        if not raw:
            return
        request = json.loads(raw)
        for name in request["imports"]:
            with suppress(Exception):  # the child raises it again
                import_module(name)
        gc.freeze()
        child = os.fork()
        if not child:
            server.close()
            _become(request, streams)
        for number in streams[:3]:
            os.close(number)
        answer = os.fdopen(streams[3], "w")
        print(child, file=answer, flush=True)
        running[os.pidfd_open(child)] = (child, answer)


def _become(request: dict[str, Any], streams: list[int]) -> None:
    """Do what Python does with these words, and end this process."""
    code = 1
    try:
        for number, stream in enumerate(streams[:3]):
            os.dup2(stream, number)
        for stream in streams:
            os.close(stream)
        os.chdir(request["folder"])
        sys.path[:] = request["path"]
        os.environ.update(request["environment"])
        words = request["words"]
        if words[0] == "-W":
            warnings.simplefilter(words[1])
            words = words[2:]
        if words[0] == "-c":
            sys.argv[:] = ["-c", *words[2:]]
            exec(words[1], {"__name__": "__main__"})
        else:
            sys.argv[:] = words
            runpy.run_path(words[0], run_name="__main__")
        code = 0
    except SystemExit as done:
        code = done.code if isinstance(done.code, int) else int(done.code is not None)
    except BaseException:  # noqa: BLE001  # as at the end of a process
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


class ReadyChildren:
    """Starts the process at the first child, since few runs of single tests need one."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._server: socket.socket

    def start_reader(
        self, *words: str, stdin: int, stdout: int | IO[bytes], **_: Any
    ) -> ReadyChild:
        """Start a child that reads an untrusted file."""
        imports = {"torch"} & {*words}
        return self.start(words, stdin, stdout, subprocess.DEVNULL, imports=imports)

    def start_worker(
        self, *words: str, stdin: int, stdout: int | IO[bytes], **_: Any
    ) -> ReadyChild:
        """Start a child that has the environment of this process, and its stderr."""
        with open(2, "wb", closefd=False) as errors:
            return self.start(words, stdin, stdout, errors, imports=OF_WORKERS, **os.environ)

    def start(
        self,
        words: Iterable[str],
        *streams: int | IO[bytes],
        imports: Iterable[str] = (),
        **environment: str,
    ) -> ReadyChild:
        """Start a child after the imports, with three streams."""
        if self._process is None:
            self._server, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with other:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", __file__, str(other.fileno())],
                    pass_fds=[other.fileno()],
                    cwd="/",  # that of a test is removed
                    # The process stays, and would keep open the terminal of the first command.
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={name: os.environ[name] for name in KEPT if name in os.environ}
                    | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
                )
        request = {"words": [*words], "imports": [*imports], "environment": environment}
        return ReadyChild(self._server, request, *streams)

    def end(self) -> None:
        if self._process is not None:
            self._server.close()
            self._process.wait()


CHILDREN = ReadyChildren()


@pytest.fixture(scope="session", autouse=True)
def ready_children() -> Generator[None, None, None]:
    with ExitStack() as patched:
        for module in STARTERS:
            patched.enter_context(patch.object(module, "start_python", CHILDREN.start_reader))
        for module in WORKERS:
            patched.enter_context(patch.object(module, "start_python", CHILDREN.start_worker))
        kept = lru_cache(TOKENIZERS)(TokenizerProcess)
        patched.enter_context(patch.object(encoding, "TokenizerProcess", kept))
        yield
    CHILDREN.end()


@pytest.fixture
def own_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start each child with an interpreter of its own, as outside of tests."""
    for module in (*STARTERS, *WORKERS):
        monkeypatch.setattr(module, "start_python", start_python)
    monkeypatch.setattr(encoding, "TokenizerProcess", TokenizerProcess)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
