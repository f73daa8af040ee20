"""llama.cpp as a judge, through the wheel `xllamacpp`."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

# A process of its own: llama.cpp writes to the terminal, and aborts on files it does not like.
_PROGRAM = """
import json, sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.n_ctx, params.n_parallel, params.warmup = 256, 1, False
params.cpuparams.n_threads = 2
server = xllamacpp.Server(params)
prompt, count = json.loads(sys.argv[2]), int(sys.argv[3])
answer = server.handle_completions(
    {"prompt": prompt, "n_predict": count, "temperature": 0, "n_probs": 1}
)
choice = answer["choices"][0]
steps = [step["logprob"] for step in choice["logprobs"]["content"]]
made = answer["usage"]["completion_tokens"]
json.dump([choice["text"], steps, made, choice["finish_reason"]], open(sys.argv[4], "w"))
"""

# Layers for multi-token prediction draft tokens, which the model then accepts or not.
_DRAFTING = """
import json, sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.n_ctx, params.n_parallel, params.warmup = 256, 1, False
params.cpuparams.n_threads = 2
kinds = xllamacpp.common_speculative_type
params.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_MTP]
server = xllamacpp.Server(params)
answer = server.handle_completions(
    {"prompt": json.loads(sys.argv[2]), "n_predict": 8, "temperature": 0}
)
json.dump(answer["timings"]["draft_n"], open(sys.argv[3], "w"))
"""


class Generated(NamedTuple):
    """What llama.cpp made of a prompt, and the logarithm of each token's probability.

    `count` is the number of tokens, with the one that ended it, and `reason` is why it ended:
    "stop" or "length".
    """

    text: str
    log_probabilities: list[float]
    count: int
    reason: str


def generate(model: Path, prompt: str | list[int], count: int, scratch: Path) -> Generated:
    """Load a GGUF file in llama.cpp and let it go on, greedily, for at most `count` tokens."""
    answer = scratch / "answer.json"
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(model), json.dumps(prompt), str(count), str(answer)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return Generated(*json.loads(answer.read_text()))


def count_drafts(model: Path, prompt: list[int], scratch: Path) -> int:
    """Return how many tokens the layers for multi-token prediction of a GGUF file have drafted."""
    answer = scratch / "drafts.json"
    done = subprocess.run(
        [sys.executable, "-c", _DRAFTING, str(model), json.dumps(prompt), str(answer)],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return int(json.loads(answer.read_text()))


def ask(model: Path, *questions: tuple[Any, ...], **options: Any) -> list[Any]:
    """Return the answers of llama.cpp to questions about a GGUF file.

    A question is the name of a method of `libllama.Model` and its arguments; the options are that
    class's. One process answers all of them.
    """
    with tempfile.TemporaryDirectory() as scratch:
        asked, answered = Path(scratch) / "asked", Path(scratch) / "answered"
        asked.write_bytes(pickle.dumps((str(model), options, questions)))
        program = Path(__file__).with_name("libllama.py")
        done = subprocess.run(
            [sys.executable, str(program), str(asked), str(answered)],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return pickle.loads(answered.read_bytes())
