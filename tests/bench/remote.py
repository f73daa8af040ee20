"""Copies of remote checkpoints against a plain loop of range requests, and listings of many parts.

Run with `python tests/bench/remote.py` (2 GB; `--size 200MB` for less). The servers are a process
of their own on this machine. The loop is one of obstore's `get_range`, of 8 MiB each and 8 at a
time, which writes what it gets to where weightctl does: into a file that is then on the disk, or
into a pipe in order. Each side is a whole process; they take turns, and medians are printed, with
the target of each. `--memory` prints the peak memory of conversions instead, whose target is the
limit of `--mem` and 150 MB.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from measuring import make_parser
from memory import large_model

sys.path.append(str(Path(__file__).parents[1] / "support"))

import numpy as np
from safetensors.numpy import save_file

from hub import compare_listings, measure_upload
from serving import ServingProcess, serve_apart
from weightctl import convert
from weightctl.text.sizes import parse_size

if TYPE_CHECKING:
    from collections.abc import Callable

# The command, and what the kernel has seen of this process alone.
COMMAND = """
import os, sys
end = os._exit
def report(code):
    with open("/proc/self/status") as status:
        print(next(line for line in status if line.startswith("VmHWM")), file=sys.stderr)
    sys.stderr.flush()
    end(code)
os._exit = report
from weightctl.__main__ import main
main()
"""
LOOP = """
import os, sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor
import obstore
from obstore.store import S3Store
options = {"allow_http": True}
store = S3Store("models", endpoint=os.environ["AWS_ENDPOINT_URL"], client_options=options)
size, chunk = obstore.head(store, "model.safetensors")["size"], 8 << 20
def get(start):
    stop = min(start + chunk, size)
    return memoryview(obstore.get_range(store, "model.safetensors", start=start, end=stop))
def put(start):
    os.pwrite(file, get(start), start)
def put_in_order(data):
    while data:
        data = data[os.write(1, data) :]
with ThreadPoolExecutor(8) as pool:
    if len(sys.argv) > 1:
        file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        list(pool.map(put, range(0, size, chunk)))
        os.fsync(file)
    else:
        ahead = deque()
        for start in range(0, size, chunk):
            ahead.append(pool.submit(get, start))
            if len(ahead) == 8:
                put_in_order(ahead.popleft().result())
        for each in ahead:
            put_in_order(each.result())
"""
TARGET = 0.8
LISTED = 3.0
PARTS, LATENCY = 200, 0.03
UPLOADED = 200_000_000
MARGIN = 150_000_000
# By name: input, output, options.
CONVERSIONS = {
    "copy to a file": ("{s3}/model.safetensors", "{out}.safetensors"),
    "Q8_0 to a file": ("{s3}/model.safetensors", "{out}.gguf", "--quant", "Q8_0"),
    "https copy to a file": ("{web}/model.safetensors", "{out}.safetensors"),
    "https Q8_0 to a file": ("{web}/model.safetensors", "{out}.gguf", "--quant", "Q8_0"),
    "file copy to S3": ("{file}", "{s3}/out.safetensors"),
    "copy to S3": ("{s3}/model.safetensors", "{s3}/out.safetensors"),
    "f16 to S3": ("{s3}/model.safetensors", "{s3}/out.safetensors", "--dtype", "f16"),
    "Q8_0 to S3": ("{s3}/model.safetensors", "{s3}/out.gguf", "--quant", "Q8_0"),
}


class Clients:
    """Runs programs that use the servers."""

    def __init__(self, served: ServingProcess, folder: Path) -> None:
        self.places = {
            "s3": served.bucket, "web": served.web, "out": str(folder / "out"),
            "file": str(folder / "in" / "model.safetensors"),
        }  # fmt: skip
        self._environment = os.environ | served.environment
        # Modules that are compiled by each run are not what is installed.
        self._environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def read(self, program: str, *arguments: str) -> str:
        """Run a program; return what it prints."""
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            env=self._environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(done.stderr)
        return done.stdout

    def run(self, program: str, *arguments: str) -> tuple[float, str]:
        """Run a program whose output goes through a pipe; return its seconds, and its errors."""
        words = [each.format(**self.places) for each in arguments]
        start = time.perf_counter()
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as reader:
            done = subprocess.run(
                [sys.executable, "-c", program, *words],
                env=self._environment, stdout=reader.stdin, stderr=subprocess.PIPE, text=True,
                check=False,
            )  # fmt: skip
            assert reader.stdin is not None
            reader.stdin.close()
        if done.returncode:
            raise SystemExit(done.stderr)
        return time.perf_counter() - start, done.stderr


def compare_copies(clients: Clients, repeats: int) -> bool:
    """Print how fast copies are, as a share of the loop's speed; return whether all are."""
    model = "{s3}/model.safetensors"
    pairs: dict[str, tuple[Callable[[], float], Callable[[], float]]] = {
        "S3 to a file": (
            lambda: clients.run(COMMAND, "convert", model, "{out}.safetensors", "--force", "-q")[0],
            lambda: clients.run(LOOP, "{out}.loop")[0],
        ),
        "S3 to a pipe": (
            lambda: clients.run(COMMAND, "convert", model, "-", "--to", "safetensors", "-q")[0],
            lambda: clients.run(LOOP)[0],
        ),
    }
    fast = True
    for label, sides in pairs.items():
        for side in sides:
            side()
        rounds = [[side() for side in sides] for _ in range(repeats)]
        ours, loop = (statistics.median(column) for column in zip(*rounds, strict=True))
        share = loop / ours
        fast = fast and share >= TARGET
        print(f"{label}: {ours:.2f} s, a loop of get_range {loop:.2f} s: "
              f"{share:.2f} of its speed (target {TARGET})", flush=True)  # fmt: skip
    return fast


def measure_listing(folder: Path, count: int, repeats: int) -> bool:
    """Print how long a listing of many remote parts takes; return whether it is fast enough."""
    names = [f"model.layers.{number}.mlp.down_proj.weight" for number in range(count)]
    parts, scratch = folder / "parts", folder / "listing"
    scratch.mkdir()
    save_file({name: np.ones((8, 8), np.float32) for name in names}, folder / "small.safetensors")
    convert(folder / "small.safetensors", f"{parts}/", max_shard_size="256B")
    with serve_apart(parts, scratch, latency=LATENCY) as served:
        clients = Clients(served, folder)
        seconds = statistics.median(
            clients.run(COMMAND, "ls", "{s3}/")[0] for _ in range(repeats + 1)
        )
    print(f"ls of {count} parts, each request {1000 * LATENCY:.0f} ms: {seconds:.2f} s "
          f"(target {LISTED})")  # fmt: skip
    make = partial(Clients, folder=folder)
    is_least = compare_listings(folder, parts, LATENCY, make, COMMAND, repeats)
    return seconds < LISTED and is_least


def measure_memory(clients: Clients, limit: str, only: list[str] | None) -> bool:
    """Print the peak memory of conversions; return whether all keep to the limit."""
    most = parse_size(limit) + MARGIN
    worst = 0
    for label in only or CONVERSIONS:
        words = (*CONVERSIONS[label], "--force", "-q", "--mem", limit)
        seconds, status = clients.run(COMMAND, "convert", *words)
        peak = int(status.split()[-2]) * 1024
        worst = max(worst, peak)
        print(f"{label}: {peak / 1e6:.0f} MB, {seconds:.1f} s (target {most / 1e6:.0f})")
    return worst <= most


def main() -> None:
    """Measure and print; exit with 1 where a target is not met."""
    parser = make_parser(__doc__, size="2GB", repeats=5, folder=True)
    parser.add_argument("--parts", type=int, default=PARTS, help="of the models that are listed")
    parser.add_argument("--memory", metavar="LIMIT", help="measure peaks under this limit instead")
    parser.add_argument("--only", choices=CONVERSIONS, action="append")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(dir=arguments.folder)
        folder = Path(stack.enter_context(temporary))
        for name in ("in", "bodies"):
            (folder / name).mkdir()
        large_model(folder / "in" / "model.safetensors", arguments.size)
        served = stack.enter_context(serve_apart(folder / "in", folder / "bodies"))
        clients = Clients(served, folder)
        if arguments.memory:
            is_met = measure_memory(clients, arguments.memory, arguments.only)
        else:
            is_met = compare_copies(clients, arguments.repeats)
            make = partial(Clients, folder=folder)
            is_met = measure_listing(folder, arguments.parts, arguments.repeats) and is_met
            is_met = measure_upload(folder, min(arguments.size, UPLOADED), make, COMMAND) and is_met
    sys.exit(not is_met)


if __name__ == "__main__":
    main()
