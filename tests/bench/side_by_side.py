"""The command line of this checkout against that of another one, work by work.

Run with `python tests/bench/side_by_side.py OTHER/.venv/bin/python` (`--size 100MB` for less), with
a Python in which the other version is installed. The two take turns, each once without being
counted. Seconds are those of whole commands, on the clock and of the processor; medians are
printed, with the ratios of this to the other. Everything is on the disk when its time ends.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from crossing import write_directory
from llama import write_llama
from measuring import make_parser

TINY = Path(__file__).parents[2] / "fixtures" / "tiny-llama"
# Each work by its name: the arguments, in which `{OUT}` is where the output goes.
WORKS = {
    "ls of a GGUF": ("ls", "{gguf}"),
    "ls of a small directory": ("ls", "{tiny}"),
    "a cast of a small directory": ("convert", "{tiny}", "{OUT}", "--dtype", "f16"),
    "a small directory to GGUF": ("convert", "{tiny}", "{OUT}.gguf", "--quant", "Q8_0"),
    "safetensors to GGUF": ("convert", "{safetensors}", "{OUT}.gguf"),
    "GGUF to safetensors": ("convert", "{gguf}", "{OUT}.safetensors"),
    "safetensors to PyTorch": ("convert", "{safetensors}", "{OUT}.pt"),
    "to F16": ("convert", "{safetensors}", "{OUT}.gguf", "--dtype", "f16"),
    "to Q8_0": ("convert", "{safetensors}", "{OUT}.gguf", "--quant", "Q8_0"),
    "to Q4_K_M": ("convert", "{safetensors}", "{OUT}.gguf", "--quant", "Q4_K_M"),
    "to parts of Q8_0": (
        "convert", "{safetensors}", "{OUT}.gguf", "--quant", "Q8_0", "--max-shard-size", "200MB",
    ),
    "Hugging Face to Q4_K_M": ("convert", "{directory}", "{OUT}.gguf", "--quant", "Q4_K_M"),
    "a cut for 4 ranks": ("shard", "{gguf}", "{OUT}", "--tp", "4"),
    "to a pipe": ("convert", "{safetensors}", "-", "--to", "gguf", "--quant", "Q8_0"),
}  # fmt: skip


def run(python: str, arguments: list[str], out: Path) -> tuple[float, float]:
    """Run a command; return its seconds, until all is on the disk, and those of the processor."""
    for path in out.parent.glob(f"{out.name}*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    os.sync()
    start = time.perf_counter()
    # In a checkout `python -m` would run that one, whatever the interpreter has installed.
    # Both keep the bytecode of the turn that is not counted.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen(
        [python, "-m", "weightctl", *arguments, "-q"],
        stdout=subprocess.DEVNULL,
        cwd=out.parent,
        env=environment,
    )
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    if status:
        raise SystemExit(f"weightctl {' '.join(arguments)} failed")
    return seconds, usage.ru_utime + usage.ru_stime


def main() -> None:
    """Print the medians of both sides, and their ratios."""
    parser = make_parser(__doc__, size="1GB", repeats=5, folder=True)
    parser.add_argument("other", help="a Python that has the other version")
    parser.add_argument("--only", choices=WORKS, action="append")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        places = {"tiny": str(TINY), "OUT": str(folder / "out")}
        for format_name in ("gguf", "safetensors"):
            write_llama(folder / f"in.{format_name}", format_name, arguments.size)
            places[format_name] = str(folder / f"in.{format_name}")
        write_directory(folder / "directory", arguments.size)
        places["directory"] = str(folder / "directory")
        for python in (sys.executable, arguments.other):
            where = "import weightctl; print(weightctl.__file__)"
            subprocess.run([python, "-c", where], check=True, cwd=folder)
        for work in arguments.only or WORKS:
            command = [word.format(**places) for word in WORKS[work]]
            pythons = (sys.executable, arguments.other)
            runs: tuple[list[tuple[float, float]], ...] = ([], [])
            for turn in range(arguments.repeats + 1):
                for side, python in enumerate(pythons):
                    spent = run(python, command, folder / "out")
                    if turn:
                        runs[side].append(spent)
            clock, processor = (
                [statistics.median(spent[which] for spent in side) for side in runs]
                for which in (0, 1)
            )
            times = f"{clock[0] / clock[1]:.2f} and {processor[0] / processor[1]:.2f} times"
            seconds = f"{clock[0]:.2f} s and {clock[1]:.2f} s"
            print(f"{work}: {seconds}, {times} (clock and processor)", flush=True)


if __name__ == "__main__":
    main()
