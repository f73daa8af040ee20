"""Time and memory of `weightctl convert --bpw` on a large model; `budget.py --size` runs it.

The model is a generated llama in bf16, and the text is the built-in one, or random tokens. A
process of its own searches, so that its peak memory is only that of the search.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from llama import write_llama

__all__ = ["measure_cost"]

# Prints the seconds, the processor seconds and the peak resident bytes of the search, and of all.
_PROGRAM = """
import json, sys, time
from weightctl.budget import search, type_search

def read():
    with open("/proc/self/status") as status:
        peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    return time.perf_counter() - begin, time.process_time(), 1024 * peak

class TimedJudge(type_search.SourceJudge):
    def __init__(self, *given):
        found.append(read())
        super().__init__(*given)

found, begin = [], time.perf_counter()
type_search.SourceJudge = TimedJudge
source, out, bits = sys.argv[1:]
search.quantize(source, out, search.QuantizationBudget(bits=float(bits)))
print(json.dumps([*found, read()]))
"""
# The targets for a model of 1.1e9 weights: seconds on two cores, and bytes.
_MOST_SECONDS, _MOST_BYTES = 600, 1.5e9


def measure_cost(nbytes: int, bits: float) -> bool:
    """Print a line each for the search and the certificate; return whether the targets are met."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "model.gguf"
        write_llama(source, "gguf", nbytes)
        command = [sys.executable, "-c", _PROGRAM, str(source), f"{folder}/out.gguf", str(bits)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        size = source.stat().st_size
    first, whole = json.loads(done.stdout)
    print(f"a llama of {size / 1e9:.2f} GB in bf16, {bits:g} bits per weight")
    print("| part | seconds | processor seconds | peak memory |")
    print("|---|---:|---:|---:|")
    certificate = (whole[0] - first[0], whole[1] - first[1], whole[2])
    for name, (seconds, busy, peak) in {"search": first, "certificate": certificate}.items():
        print(f"| {name} | {seconds:.0f} | {busy:.0f} | {peak / 1e9:.2f} GB |")
    print(f"targets: {_MOST_SECONDS} s for the search, {_MOST_BYTES / 1e9:g} GB")
    return bool(first[0] <= _MOST_SECONDS and whole[2] <= _MOST_BYTES)
