"""Listings of a model on the Hub against those of other clients, and uploads of changed models.

`remote.py` runs it.
"""

from __future__ import annotations

import json
import statistics
from math import isqrt
from typing import TYPE_CHECKING

import numpy as np
from safetensors.numpy import save_file

from serving import serve_apart

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from remote import Clients
    from serving import ServingProcess

__all__ = ["compare_listings", "measure_upload"]

MODEL = "org/model"
# What others offer: the names, types and shapes of all tensors of a model.
THEIRS = {
    "huggingface_hub.get_safetensors_metadata": """
import sys
from huggingface_hub import get_safetensors_metadata
found = get_safetensors_metadata(sys.argv[1])
print(len(found.weight_map))
""",
    "gguf.utility.SafetensorRemote": """
import os, sys
from gguf.utility import SafetensorRemote
SafetensorRemote.BASE_DOMAIN = os.environ["HF_ENDPOINT"]
print(len(SafetensorRemote.get_list_tensors_hf_model(sys.argv[1])))
""",
}
CHANGED = 0.05
# One of them is changed.
MATRICES = 100


def compare_listings(
    folder: Path, parts: Path, latency: float, make: Callable[[ServingProcess], Clients],
    command: str, repeats: int,
) -> bool:  # fmt: skip
    """Print the requests and the time of `ls` and of others; return whether `ls` is fastest."""
    (scratch := folder / "hub").mkdir()
    with serve_apart(parts, scratch, latency=latency, model=MODEL) as served:
        clients = make(served)
        sides = {"ls": (command, "ls", f"hf://{MODEL}")}
        sides |= {name: (program, MODEL) for name, program in THEIRS.items()}
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        requests: dict[str, int] = {}
        for _ in range(repeats + 1):  # the first is not counted
            for name, words in sides.items():
                served.count_requests()
                seconds[name].append(clients.run(*words)[0])
                requests[name] = served.count_requests()
    medians = {name: statistics.median(times[1:]) for name, times in seconds.items()}
    print(f"ls of a model on the Hub: {requests['ls']} requests, {medians['ls']:.2f} s")
    for name in THEIRS:
        print(
            f"{name}: {requests[name]} requests, {medians[name]:.2f} s; `ls` takes "
            f"{medians['ls'] / medians[name]:.2f} of it (target 1.0)"
        )
    return all(medians["ls"] <= medians[name] for name in THEIRS)


def measure_upload(
    folder: Path, nbytes: int, make: Callable[[ServingProcess], Clients], command: str
) -> bool:
    """Print what the upload of a model sends of which 1 % has changed; return if it is little."""
    (scratch := folder / "uploads").mkdir()
    (empty := folder / "empty").mkdir()
    side = isqrt(nbytes // MATRICES // 4)
    rng = np.random.default_rng(0)
    arrays = {
        f"model.layers.{number}.mlp.down_proj.weight": rng.standard_normal((side, side), np.float32)
        for number in range(MATRICES)
    }
    path = folder / "changed.safetensors"
    sent: list[int] = []
    with serve_apart(empty, scratch, model=MODEL) as served:
        clients = make(served)
        for _ in range(2):
            save_file(arrays, path)
            words = ("convert", str(path), "hf://org/new/model.safetensors", "--force", "--json")
            sent.append(json.loads(clients.read(command, *words))["network"]["bytes_sent"])
            next(iter(arrays.values()))[:] += 1
    size = path.stat().st_size
    print(
        f"upload of {size / 1e6:.0f} MB to the Hub: {sent[0] / 1e6:.1f} MB are sent; after a "
        f"change of 1 %: {sent[1] / 1e6:.2f} MB, {sent[1] / size:.3f} of it (target {CHANGED})"
    )
    return sent[1] / size < CHANGED
