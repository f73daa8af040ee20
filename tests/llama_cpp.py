"""llama.cpp as a judge, through the wheel `xllamacpp`."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

# A process of its own: llama.cpp writes to the terminal, and aborts on files it does not like.
_PROGRAM = """
import json, sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.n_ctx, params.n_parallel, params.warmup = 256, 1, False
params.cpuparams.n_threads = 2
server = xllamacpp.Server(params)
answer = server.handle_completions(
    {"prompt": sys.argv[2], "n_predict": int(sys.argv[3]), "temperature": 0, "n_probs": 1}
)
choice = answer["choices"][0]
steps = choice["logprobs"]["content"]
json.dump([choice["text"], [step["logprob"] for step in steps]], open(sys.argv[4], "w"))
"""


class Generated(NamedTuple):
    """What llama.cpp made of a prompt, and the logarithm of each token's probability."""

    text: str
    log_probabilities: list[float]


def generate(model: Path, prompt: str, count: int, scratch: Path) -> Generated:
    """Load a GGUF file in llama.cpp and let it go on, greedily, for `count` tokens."""
    answer = scratch / "answer.json"
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(model), prompt, str(count), str(answer)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return Generated(*json.loads(answer.read_text()))
