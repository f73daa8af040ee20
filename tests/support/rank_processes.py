"""Processes that work together: ranks of an output, and programs of torchrun."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path


# Processes that share an output with `--on ranks`; as a program, this is one of them.
# The program gets its work as JSON, and prints what it has done as JSON.

_SUPPORT = os.path.dirname(os.path.abspath(__file__))


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
) -> subprocess.Popen[str]:
    """Start the process of a rank.

    It kills itself when it begins its batch number `kill_at`, or where `kill_in` says: before it
    has completed the output (`finish`), or before others can see that (`published`). Without
    `beat`, it seems to be on another machine, and gives no signs of life. It waits for the output
    to be complete before it does its batch number `slow_at`. `part` is the size of parts of
    uploads.
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
    variables = {"RANK": str(rank)} | ({"WORLD_SIZE": str(ranks)} if ranks is not None else {})
    return subprocess.Popen(
        [sys.executable, __file__, json.dumps(given)],
        env={**os.environ, **variables, "PYTHONPATH": os.pathsep.join([*sys.path, _SUPPORT])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end_ranks(processes: Iterable[subprocess.Popen[str]]) -> list[dict[str, Any]]:
    """Wait for processes; return what each has printed, its exit code and its errors."""
    found: list[dict[str, Any]] = []
    for process in processes:
        printed, errors = process.communicate(timeout=120)
        entry: dict[str, Any] = json.loads(printed) if printed else {}
        found.append({**entry, "code": process.returncode, "errors": errors})
    return found


def errors_of(ended: Iterable[Mapping[str, Any]]) -> str:
    """Return what all processes have printed to standard error."""
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


def _work(given: Mapping[str, Any]) -> dict[str, Any]:
    import weightctl
    from weightctl.storage.remote import upload
    from weightctl.write.executors import members, ranks

    ranks._POLL, members.BEAT, members.LEASE = 0.02, 0.1, 1.0
    ranks.PATIENCE = 0.5
    if given["part"]:
        from weightctl.storage.remote.s3_uploads import S3Uploads

        upload.PART = given["part"]
        S3Uploads.least_part = given["part"]
    if not given["beat"]:
        members._name_host = lambda: "elsewhere"
        members.BEAT = 1000.0
    count = 0
    do_batch = ranks.do_batch

    def count_batches(*arguments: Any) -> Any:
        nonlocal count
        count += 1
        if count == given["kill_at"]:
            os.kill(os.getpid(), signal.SIGKILL)
        if count == given["slow_at"]:
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


if __name__ == "__main__":
    print(json.dumps(_work(json.loads(sys.argv[1]))))


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
