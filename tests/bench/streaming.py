"""A model that is larger than its memory: the bytes that a first and a second run read.

Run with `python tests/bench/streaming.py`. The file is sparse, so that it needs no space: it has a
header and zeros. Reads are counted by the system (`rchar` of /proc/self/io). The target is that the
second run reads at most half of the model when half of it fits into memory.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
import torch

from measuring import make_parser
from weightctl import DType, open_weights
from weightctl.engine import InferenceSession
from weightctl.graph import Graph, TensorType, Weight

if TYPE_CHECKING:
    from collections.abc import Sequence

LAYERS, MOST = 20, 0.5


def write_model(path: Path, width: int) -> int:
    """Write matrices of zeros, and return their bytes."""
    nbytes = 4 * width * width
    header = {
        f"layers.{n}.weight": {
            "dtype": "F32", "shape": [width, width],
            "data_offsets": [n * nbytes, (n + 1) * nbytes],
        }
        for n in range(LAYERS)
    }  # fmt: skip
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + LAYERS * nbytes)
    return LAYERS * nbytes


def chain(width: int) -> Graph:
    """Return a graph that multiplies by one matrix after another."""
    with Graph("chain", [TensorType(DType.float32, (1, width))]) as graph:
        x = graph.inputs[0]
        for n in range(LAYERS):
            x = x @ Weight(f"layers.{n}.weight", DType.float32, (width, width)).T
        graph.output(x)
    return graph


def count_reads() -> int:
    """Return the bytes that this process has read."""
    (found,) = re.findall(r"rchar: (\d+)", Path("/proc/self/io").read_text(encoding="ascii"))
    return int(found)


def peak() -> float:
    """Return the largest memory of this process in MB."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    (found,) = re.findall(r"VmHWM:\s+(\d+)", status)
    return int(found) / 1e3


def main(words: Sequence[str] | None = None) -> bool:
    """Measure and print; return whether the target is missed."""
    parser = make_parser(__doc__, size="2GB")
    parser.add_argument("--memory", default="1GB")
    arguments = parser.parse_args(words)
    torch.set_num_threads(1)
    width = int((arguments.size / LAYERS / 4) ** 0.5)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        size = write_model(path, width)
        model = InferenceSession().load(chain(width), open_weights(path), memory=arguments.memory)
        x = np.ones((1, width), np.float32)
        shares: list[float] = []
        for name in ("first", "second"):
            before, started = count_reads(), perf_counter()
            model.execute(x)
            took, read = perf_counter() - started, count_reads() - before
            shares.append(read / size)
            print(f"{name} run: {read / 1e6:,.0f} of {size / 1e6:,.0f} MB read, {took:.2f} s")
    print(
        f"the second run reads {shares[1]:.3f} of the model (target {MOST:g}); "
        f"peak {peak():,.0f} MB"
    )
    # A few bytes are read from /proc.
    return shares[1] > MOST + 0.001


if __name__ == "__main__":
    sys.exit(main())
