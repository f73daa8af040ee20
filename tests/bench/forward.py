"""A forward of 32 tokens through a llama of a billion weights: its memory, and its time.

Run with `python tests/bench/forward.py` (2.2 GB in bf16 at most, vocabulary 32,000; `--size 300MB`
for less). With weights streamed the peak of a process of its own is measured, torch included. With
weights resident both sides have the same numbers, dtype and threads, and take turns in one process:
transformers runs eagerly and with `use_cache=False`. Medians are printed. `--only reading` runs the
model on a text, streamed and resident: the difference is what workers in a pipeline could save.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from llama import write_llama
from measuring import make_parser
from weightctl import DType, open_weights
from weightctl.engine import InferenceSession
from weightctl.families.recognition import recognize
from weightctl.nn.models import build_network

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from weightctl.engine import LoadedGraph
    from weightctl.families.checkpoint import RecognizedModel

# As many as the built-in text of `verify` has.
TEXT_TOKENS = 525
TOKENS, MOST_PEAK, MOST_TIMES = 32, 900_000_000, 1.1
DTYPES = {"bfloat16": DType.bfloat16, "float32": DType.float32}


def load(checkpoint: RecognizedModel, dtype: DType, *, resident: bool) -> LoadedGraph:
    """Return the whole model, ready to run."""
    module = build_network(checkpoint, dtype)
    if resident and dtype is DType.float32:
        for weight in module.raw_state_dict().values():
            # What stays in memory is converted once, not in each run.
            weight.dtype = dtype
    return InferenceSession().load(module.graph(), checkpoint.weights, resident=resident)


def tokens(vocabulary: int, count: int = TOKENS) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.random.default_rng(1).integers(0, vocabulary, (1, count))


def stream(path: Path, dtype: DType) -> None:
    """Run the model once with its weights streamed; print this process's peak in bytes."""
    checkpoint = recognize(open_weights(path))
    model = load(checkpoint, dtype, resident=False)
    (logits,) = model.execute(tokens(checkpoint.config.vocabulary))
    assert logits.shape == (1, TOKENS, checkpoint.config.vocabulary)
    with open("/proc/self/status") as status:
        peak = next(line for line in status if line.startswith("VmHWM"))
    print(int(peak.split()[1]) * 1024)


def in_transformers(checkpoint: RecognizedModel, dtype: torch.dtype) -> torch.nn.Module:
    """Return the same model in transformers, of the same numbers."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    ours = checkpoint.config
    config = LlamaConfig(
        vocab_size=ours.vocabulary,
        hidden_size=ours.hidden,
        intermediate_size=ours.intermediate,
        num_hidden_layers=ours.layers,
        num_attention_heads=ours.heads,
        num_key_value_heads=ours.kv_heads,
        max_position_embeddings=ours.context,
        rms_norm_eps=ours.norm_epsilon,
        tie_word_embeddings=ours.tied,
        attn_implementation="eager",
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model = model.to(dtype).to_empty(device="cpu").eval()
    model.tie_weights()
    model.model.rotary_emb = LlamaRotaryEmbedding(config)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for tensor in checkpoint.family.tensors(ours):
            numbers = torch.from_dlpack(checkpoint.weights[tensor.module].data())
            if tensor.module.endswith((".q.weight", ".k.weight")):
                # GGUF's rows of a head are in pairs, where transformers has two halves.
                pairs = numbers.reshape(-1, ours.head_dim // 2, 2, ours.hidden)
                numbers = pairs.transpose(1, 2).reshape(numbers.shape)
            parameters[cast("str", tensor.name("hugging_face"))].copy_(numbers)
    return model


def times(runs: list[Callable[[], object]], repeats: int) -> list[float]:
    """Return the median seconds of each; they take turns, after one run that is not counted."""
    seconds: list[list[float]] = [[] for _ in runs]
    for turn in range(repeats + 1):
        for number, run in enumerate(runs):
            start = time.perf_counter()
            run()
            if turn:
                seconds[number].append(time.perf_counter() - start)
    return [statistics.median(taken) for taken in seconds]


def compare(path: Path, dtype: DType, threads: int, repeats: int) -> None:
    """Run both sides with their weights in memory; print what they take."""
    import torch

    torch.set_num_threads(threads)
    checkpoint = recognize(open_weights(path))
    given = tokens(checkpoint.config.vocabulary)
    model = load(checkpoint, dtype, resident=True)
    other = in_transformers(checkpoint, getattr(torch, dtype.value))
    ids = torch.from_numpy(given)

    def ours() -> torch.Tensor:
        return torch.from_dlpack(model.execute(given)[0])

    def theirs() -> torch.Tensor:
        with torch.inference_mode():
            return cast("torch.Tensor", other(ids, use_cache=False).logits)

    mine, reference = ours().float(), theirs().float()
    apart = float((mine - reference).abs().max() / reference.abs().max())
    agree = int((mine.argmax(-1) == reference.argmax(-1)).sum())
    print(f"logits: {apart:.1e} of the largest apart, {agree} of {TOKENS} choices the same")
    took, took_there = times([ours, theirs], repeats)
    print(
        f"resident {dtype.value}, {threads} threads: {took:.2f} s, transformers "
        f"{took_there:.2f} s: {took / took_there:.2f} times (target {MOST_TIMES})"
    )


def measure_reading(path: Path, dtype: DType, threads: int, repeats: int) -> None:
    """Print what reading weights adds to a run: the most that workers in a pipeline could save."""
    import torch

    torch.set_num_threads(threads)
    checkpoint = recognize(open_weights(path))
    given = tokens(checkpoint.config.vocabulary, TEXT_TOKENS)
    streamed, resident = (load(checkpoint, dtype, resident=each) for each in (False, True))
    took, computed = times(
        [lambda: streamed.execute(given), lambda: resident.execute(given)], repeats
    )
    print(
        f"{TEXT_TOKENS} tokens, {dtype.value}, {threads} threads: streamed {took:.2f} s, resident "
        f"{computed:.2f} s; reading takes {1 - computed / took:.0%} of the time",
        flush=True,
    )


def main(words: Sequence[str] | None = None) -> bool:
    """Measure and print; return whether the peak is over the target."""
    parser = make_parser(__doc__, size="2.2GB", repeats=5, threads=2, folder=True)
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--dtype", choices=DTYPES, action="append", help="that of the activations")
    parser.add_argument("--only", choices=["streamed", "resident", "reading"])
    parser.add_argument("--stream", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args(words)
    names = arguments.dtype or list(DTYPES)
    if arguments.stream:
        stream(arguments.stream, DTYPES[names[0]])
        return False
    worst = 0
    with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:
        path = Path(temporary) / "model.gguf"
        write_llama(path, "gguf", arguments.size, arguments.vocabulary)
        for name in names:
            if arguments.only == "reading":
                measure_reading(path, DTYPES[name], arguments.threads, arguments.repeats)
                continue
            if arguments.only != "resident":
                command = [sys.executable, __file__, "--stream", str(path), "--dtype", name]
                start = time.perf_counter()
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                peak = int(done.stdout)
                worst = max(worst, peak)
                print(
                    f"streamed {name}: peak {peak / 1e6:.0f} MB (target {MOST_PEAK / 1e6:.0f}), "
                    f"{time.perf_counter() - start:.1f} s with the start of the process",
                    flush=True,
                )
            if arguments.only != "streamed":
                compare(path, DTYPES[name], arguments.threads, arguments.repeats)
    return worst > MOST_PEAK


if __name__ == "__main__":
    sys.exit(main())
