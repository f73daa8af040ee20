"""The memory that llama.cpp takes for a GGUF file: what it prints, and what the process has.

Run as a program, it loads a file, makes a context as llama-server does, and computes a batch.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["LlamaMemory", "measure_memory"]

_MIB = 1 << 20
_BATCH = 512
# The places of values in the record of a context, as in `libllama.py`, and what they are there.
_CONTEXT, _OUTPUTS, _THREADS, _TYPES = 0, (5, 6), (7, 8), (26, 27)
_FLAGS, _MORE_FLAGS = 34, 35
_ALL_WINDOWS = 1
_CACHES = ("KV", "RS", "state")
_NUMBERS = {"f16": 1, "q8_0": 8}
_SIZE = re.compile(r"(KV|RS|state|model|compute) buffer size =\s*([\d.]+) MiB")


class LlamaMemory(NamedTuple):
    """Bytes: of the weights, caches and compute buffers, and how much the process has grown.

    llama.cpp prints sizes to 0.01 MiB, so that the `cache` can be off by as much for each of the
    `printed` sizes that it is the sum of.
    """

    weights: int
    cache: int
    compute: int
    resident: int
    printed: int

    @property
    def tolerance(self) -> int:
        """By how much the cache can differ from its exact size."""
        return self.printed * _MIB // 100


def measure_memory(model: Path, context: int, kv_type: str = "f16") -> LlamaMemory:
    """Return the memory of a GGUF file in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, str(model), str(context), kv_type],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = _SIZE.findall(done.stderr)

    def add(*kinds: str) -> int:
        return int(_MIB * sum(float(size) for kind, size in found if kind in kinds))

    caches = [kind for kind, _ in found if kind in _CACHES]
    resident = json.loads(done.stdout.splitlines()[-1])
    return LlamaMemory(add("model"), add(*_CACHES), add("compute"), resident, len(caches))


def _read_resident() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def _main(path: str, context: str, kv_type: str) -> None:
    import libllama

    library: Any = libllama.load_library()
    before = _read_resident()
    model = library.llama_model_load_from_file(path.encode(), library.llama_model_default_params())
    params = library.llama_context_default_params()
    flags = (params.words[_FLAGS], params.words[_MORE_FLAGS])
    assert flags == (0x01010100, _ALL_WINDOWS), "the record of a context has another layout"
    params.words[_MORE_FLAGS] = 0
    params.words[_CONTEXT] = int(context)
    for place in (*_OUTPUTS, *_THREADS):
        params.words[place] = 1
    for place in _TYPES:
        params.words[place] = _NUMBERS[kv_type]
    made = library.llama_init_from_model(model, params)
    assert made, "llama.cpp makes no context"
    batch = library.llama_batch_init(_BATCH, 0, 1)
    batch.count = _BATCH
    for place in range(_BATCH):
        batch.token[place] = 5 + place % 100
        batch.position[place] = place
        batch.sequences[place] = 1
        batch.sequence[place][0] = 0
        batch.wanted[place] = place == _BATCH - 1
    assert library.llama_decode(made, batch) == 0
    print(_read_resident() - before)


if __name__ == "__main__":
    _main(*sys.argv[1:])
