"""Peak memory and time of conversions of a large bf16 checkpoint.

Run with `python tests/bench/memory.py` (2 GB; `--size 200MB` for less). One tensor alone is larger
than the memory budget. The numbers are random, never zeros. Peak memory is the resident set that
the operating system accounts to each process; the target is 350 MB.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from measuring import make_parser, measure
from weightctl.text.sizes import parse_size

OUTPUTS = {
    "copy to GGUF": ("out.gguf",),
    "copy to safetensors": ("out.safetensors",),
    "copy to PyTorch": ("out.bin",),
    "f16 GGUF": ("out.gguf", "--dtype", "f16"),
    "f32 safetensors": ("out.safetensors", "--dtype", "f32"),
    "f8_e4m3 safetensors": ("out.safetensors", "--dtype", "f8_e4m3"),
    "Q8_0": ("out.gguf", "--quant", "Q8_0"),
    "Q5_0": ("out.gguf", "--quant", "Q5_0"),
    "Q4_K": ("out.gguf", "--quant", "Q4_K"),
}


def large_model(path: Path, nbytes: int) -> None:
    """Write a bf16 safetensors file: half of it one matrix, the rest layers of 4096 by 1024."""
    columns = 4096
    rows = nbytes // 2 // (2 * columns)
    layer = 1024 * columns * 2
    shapes = {"embed.weight": (rows, columns)} | {
        f"layers.{number}.weight": (1024, columns) for number in range(nbytes // 2 // layer)
    }
    header, position = {}, 0
    for name, (height, width) in shapes.items():
        end = position + 2 * height * width
        header[name] = {"dtype": "BF16", "shape": [height, width], "data_offsets": [position, end]}
        position = end
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    # The same again and again: to draw so many would take longer than to convert them.
    values = np.random.default_rng(1).standard_normal(1 << 24, np.float32) * 0.02
    drawn = memoryview((values.view(np.uint32) >> 16).astype(np.uint16).tobytes())
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        left = position
        while left:
            left -= file.write(drawn[:left])


def main() -> None:
    """Measure and print; exit with 1 where a peak is over the target."""
    parser = make_parser(__doc__, size="2GB", folder=True)
    parser.add_argument("--target", type=parse_size, default=parse_size("350MB"))
    parser.add_argument("--only", choices=OUTPUTS, action="append")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:
        folder = Path(temporary)
        source = folder / "model.safetensors"
        large_model(source, arguments.size)
        start = time.perf_counter()
        shutil.copyfile(source, folder / "copy")
        os.sync()
        print(f"cp and sync: {time.perf_counter() - start:.1f} s")
        (folder / "copy").unlink()
        worst = 0
        for label in arguments.only or OUTPUTS:
            name, *options = OUTPUTS[label]
            seconds, peak = measure(source, folder / name, *options)
            (folder / name).unlink()
            worst = max(worst, peak)
            print(f"{label}: {peak / 1e6:.0f} MB, {seconds:.1f} s")
        print(f"highest peak {worst / 1e6:.0f} MB (target {arguments.target / 1e6:.0f})")
    sys.exit(worst > arguments.target)


if __name__ == "__main__":
    main()
