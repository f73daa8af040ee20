"""Processes that work together: ranks of an output, and programs of torchrun."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ready_children import CHILDREN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkServerContext
    from multiprocessing.process import BaseProcess
    from pathlib import Path

    Started = tuple[BaseProcess, Connection]


# Processes that share an output with `--on ranks`, forked from one process that has imported what
# they need: each takes some milliseconds.


@functools.cache
def _server() -> ForkServerContext:
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(
        [
            "ml_dtypes",
            "numpy.random",
            "obstore",
            "weightctl.codecs",
            "weightctl.plan.types",
            "weightctl.write.conversion",
            "weightctl.write.convert",
            "weightctl.write.shard",
            "weightctl.write.executors.ranks",
        ]
    )
    return server


def start_rank(
    rank: int,
    command: str,
    source: str | Path,
    out: str | Path,
    *,
    ranks: int | None = 4,
    kill_at: int | None = None,
    kill_in: str = "",
    slow_at: int | None = None,
    beat: bool = True,
    part: int | None = None,
    **options: Any,
) -> Started:
    """Start the process of a rank.

    It kills itself when it begins its batch number `kill_at`, or where `kill_in` says: before it
    has completed the output (`finish`), or before others can see that (`published`). Without
    `beat`, it seems to be on another machine, and gives no signs of life. It waits for the output
    to be complete before it does its batch number `slow_at`, which it has begun when this
    function returns. `part` is the size of parts of uploads.
    """
    given = {
        "command": command,
        "source": os.fspath(source),
        "out": os.fspath(out),
        "kill_at": kill_at,
        "kill_in": kill_in,
        "slow_at": slow_at,
        "beat": beat,
        "part": part,
        "options": options,
    }
    own = {name: text for name, text in os.environ.items() if name not in {"RANK", "WORLD_SIZE"}}
    own |= {"RANK": str(rank)} | ({"WORLD_SIZE": str(ranks)} if ranks is not None else {})
    ours, theirs = _server().Pipe(duplex=False)
    process = _server().Process(target=_run, args=(given, own, theirs))
    process.start()
    theirs.close()
    if slow_at is not None:
        ours.recv()
    return process, ours


def end_ranks(started: Iterable[Started]) -> list[dict[str, Any]]:
    """Wait for processes; return what each has done, its exit code and its errors."""
    found: list[dict[str, Any]] = []
    for process, connection in started:
        process.join(timeout=120)
        assert process.exitcode is not None, "the process has not ended"
        entry: dict[str, Any] = {"errors": ""}
        with connection, suppress(EOFError):  # a process that was killed has sent nothing
            entry |= connection.recv()
        found.append({**entry, "code": process.exitcode})
    return found


def errors_of(ended: Iterable[Mapping[str, Any]]) -> str:
    """Return the errors of all processes."""
    return "\n".join(each["errors"] for each in ended)


def run_ranks(
    order: Sequence[int],
    command: str,
    source: str | Path,
    out: str | Path,
    kill_at: Mapping[int, int] | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """Run the processes of ranks at the same time, started in this order."""
    kill_at = kill_at or {}
    started = [
        start_rank(
            rank, command, source, out, ranks=len(order), kill_at=kill_at.get(rank), **options
        )
        for rank in order
    ]
    return end_ranks(started)


def _run(given: Mapping[str, Any], environment: Mapping[str, str], answer: Connection) -> None:
    os.environ.clear()
    os.environ.update(environment)
    try:
        answer.send(_work(given, answer))
    except Exception:  # noqa: BLE001  # as at the end of a process
        answer.send({"errors": traceback.format_exc()})
        raise SystemExit(1) from None


def _work(given: Mapping[str, Any], answer: Connection) -> dict[str, Any]:
    import weightctl
    from weightctl.storage.remote import upload
    from weightctl.write.executors import coordination, ranks

    ranks._POLL, coordination.BEAT, coordination.LEASE = 0.02, 0.1, 1.0
    ranks.PATIENCE = 0.5
    if given["part"]:
        from weightctl.storage.remote.s3_uploads import S3Uploads

        upload.PART = given["part"]
        S3Uploads.least_part = given["part"]
    if not given["beat"]:
        coordination._name_host = lambda: "elsewhere"
        coordination.BEAT = 1000.0
    count = 0
    do_batch = ranks.do_batch

    def count_batches(*arguments: Any) -> Any:
        nonlocal count
        count += 1
        if count == given["kill_at"]:
            os.kill(os.getpid(), signal.SIGKILL)
        if count == given["slow_at"]:
            answer.send("slow")
            _wait_for_output(given["out"])
        return do_batch(*arguments)

    ranks.do_batch = count_batches
    _kill_at_end(given["kill_in"])
    options = {"on": "ranks", **given["options"]}
    made: Any = getattr(weightctl, given["command"])(given["source"], given["out"], **options)
    saved = made if given["command"] == "gather" else made.saved
    losses = {name: repr(loss) for name, loss in saved.losses.items()}
    return {
        "workers": saved.workers._asdict(),
        "is_last": saved.is_last,
        "losses": losses,
        "kept": saved.kept_bytes,
    }


def _wait_for_output(out: str) -> None:
    from weightctl.storage.files import exists, refresh

    end = time.monotonic() + 60
    while not exists(out) and time.monotonic() < end:
        time.sleep(0.05)
        refresh(out)
    time.sleep(0.5)  # until the others know of it


def _kill_at_end(place: str) -> None:
    from weightctl.write import partial
    from weightctl.write.executors import ranks

    def end(*_: Any, **__: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    if place == "finish":
        partial.Partial.publish = end
    elif place == "published":
        ranks._digest_files = end


# Programs that torchrun runs in several processes, none of which outlives its test.

# Seconds: more than any takes on a busy machine, and than torchrun takes to end its processes.
LIMIT, END = 120, 60


def torchrun(program: Path, processes: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a program in so many processes that meet on a free port, each with one thread."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone",
        "--nproc-per-node", str(processes), str(program), *map(str, arguments),
    ]  # fmt: skip
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    ) as started:
        try:
            out, err = started.communicate(timeout=LIMIT)
        except BaseException:
            # Its processes are in sessions of their own; it alone knows them.
            started.terminate()
            with suppress(subprocess.TimeoutExpired):
                started.wait(END)
            started.kill()
            raise
    return subprocess.CompletedProcess(command, started.returncode, out, err)


# What such programs import, once for all of them.
_IMPORTS = ("torch", "torch.distributed", "weightctl.engine", "weightctl.nn.models", "ml_dtypes")


def run_together(program: Path, processes: int, *arguments: object) -> str:
    """Run a program in processes that meet as those of torchrun do; return their errors.

    They are forked from one that has imported torch, which takes seconds for each of torchrun's.
    """
    from torch.distributed import TCPStore

    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    given = {
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(store.port),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    words = [str(program), *map(str, arguments)]
    with tempfile.TemporaryFile() as errors:
        started = [
            CHILDREN.start(
                words,
                subprocess.DEVNULL,
                subprocess.DEVNULL,
                errors,
                imports=_IMPORTS,
                RANK=str(rank),
                LOCAL_RANK=str(rank),
                **given,
            )
            for rank in range(processes)
        ]
        try:
            for child in started:
                child.wait(LIMIT)
        finally:
            for child in started:
                child.kill()
        errors.seek(0)
        return errors.read().decode()
