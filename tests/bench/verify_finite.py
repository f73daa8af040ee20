"""The check `finite` against reading and decoding alone, on one thread.

Run with `python tests/bench/verify_finite.py`. The file is one matrix of each encoding, in the page
cache. Both take turns; medians of processor time are printed, and how fast the check is beside
decoding, with the target.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from measuring import make_parser
from weightctl import Plan, WeightData, open_weights
from weightctl.codecs import transcode
from weightctl.dtype import ENCODINGS
from weightctl.kernels import active
from weightctl.system.threads import Memory
from weightctl.verify.checks.finite.survey import decode_rows, read_runs, survey_tensors
from weightctl.weights.derived import tensor_of
from weightctl.weights.from_arrays import as_checkpoint
from weightctl.weights.info import TensorInfo
from weightctl.write.save import save

if TYPE_CHECKING:
    from collections.abc import Callable

NAMES = ("F32", "BF16", "F16", "Q8_0", "Q4_0", "Q4_K", "Q6_K", "Q2_K", "IQ4_XS", "MXFP4")
COLUMNS = 4096
TARGET = 0.5


def main() -> None:
    parser = make_parser(__doc__, repeats=9)
    parser.add_argument("--rows", type=int, default=8192)
    options = parser.parse_args()
    print(f"kernels: {active()}; one matrix of {options.rows} x {COLUMNS}, one thread")
    with tempfile.TemporaryDirectory() as folder:
        for name in NAMES:
            compare(Path(folder) / f"{name}.gguf", name, options.rows, options.repeats)


def compare(path: Path, name: str, rows: int, repeats: int) -> None:
    """Print how long the survey of a matrix takes, and reading and decoding it."""
    encoding = ENCODINGS[name]
    random = np.random.default_rng(8)
    numbers = random.standard_normal((rows, COLUMNS), np.float32) * np.float32(0.02)
    raw = transcode(numbers.view(np.uint8), ENCODINGS["F32"], encoding).raw
    info = TensorInfo("matrix.weight", (rows, COLUMNS), encoding)
    tree = as_checkpoint({info.name: WeightData.stored(info, raw.reshape(-1).data)})
    save(Plan.copy(tree, "gguf"), path)
    source = open_weights(path).source
    tensor = tensor_of(source, info.name)

    def decode() -> None:
        memory = Memory()
        for run in read_runs(tensor, 0, info.size, memory):
            decode_rows(run.raw, encoding, memory)

    def survey() -> None:
        survey_tensors(source, [tensor.info], lambda _: None, threads=1)

    times: dict[Callable[[], None], list[float]] = {decode: [], survey: []}
    for turn in range(repeats + 1):
        for work, taken in times.items():
            started = time.process_time()
            work()
            if turn:
                taken.append(time.process_time() - started)
    alone, checked = (statistics.median(taken) for taken in times.values())
    print(
        f"{name:8} decode {info.size / alone / 1e9:5.2f} G/s, check "
        f"{info.size / checked / 1e9:5.2f} G/s: {alone / checked:.2f} of it (target {TARGET})"
    )


if __name__ == "__main__":
    main()
