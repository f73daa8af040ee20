"""Reading a prompt, and generating tokens after it, on a CPU: time against other runtimes.

Run with `python tests/bench/generation.py` (a llama of 2.2 GB in bf16 at most; `--size 700MB` for
less). All sides have the same numbers and threads, and keep keys and values. transformers runs in
turns with weightctl in one process; llama.cpp, through xllamacpp, in a process of its own, with
weights and activations as it has them: it rounds activations to 8 bits. Medians are printed.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from measuring import make_parser

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import numpy as np

from forward import DTYPES, in_transformers, tokens
from llama import write_llama
from llama_cpp import ask
from weightctl import convert, open_weights
from weightctl.engine import Generation
from weightctl.families.recognition import recognize

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from weightctl.dtype import DType

PROMPT, GENERATED = 512, 64
# Times of transformers, and of llama.cpp for the tokens that are generated.
MOST_PREFILL, MOST_DECODE, MOST_OF_LLAMA_CPP = 1.1, 1.2, 3.0


class Taken(NamedTuple):
    """Seconds for the prompt, and for all generated tokens."""

    prefill: float
    decode: float


def generate(read: Callable[[Any], Any], prompt: Any, count: int) -> Taken:
    """Return what `read`, which returns logits [batch, vocabulary], takes for both parts."""
    start = time.perf_counter()
    logits = read(prompt)
    middle = time.perf_counter()
    for _ in range(count):
        logits = read(np.asarray(logits).argmax(-1)[:, None])
    return Taken(middle - start, time.perf_counter() - middle)


def with_weightctl(path: Path, dtype: DType) -> Callable[[Any, int], Taken]:
    model = Generation(open_weights(path), dtype=dtype)

    def run(prompt: Any, count: int) -> Taken:
        model.forget()
        return generate(model.read, prompt, count)

    return run


def with_transformers(path: Path, dtype: DType) -> Callable[[Any, int], Taken]:
    import torch

    model: Any = in_transformers(recognize(open_weights(path)), getattr(torch, dtype.value))
    model.set_attn_implementation("sdpa")

    def run(prompt: Any, count: int) -> Taken:
        cache: Any = None

        def read(given: Any) -> Any:
            nonlocal cache
            ids = torch.from_numpy(np.ascontiguousarray(given))
            with torch.inference_mode():
                made = model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache = made.past_key_values
            return made.logits[:, -1].float().numpy()

        return generate(read, prompt, count)

    return run


def medians(
    runs: Sequence[Callable[[Any, int], Taken]], prompt: Any, count: int, repeats: int
) -> list[Taken]:
    """Return the medians of each; they take turns, after one run that is not counted."""
    found: list[list[Taken]] = [[] for _ in runs]
    for turn in range(repeats + 1):
        for number, run in enumerate(runs):
            taken = run(prompt, count)
            if turn:
                found[number].append(taken)
    return [Taken(*map(statistics.median, zip(*each, strict=True))) for each in found]


def describe(name: str, ours: Taken, theirs: Taken, count: int, most: tuple[float, float]) -> bool:
    """Print both parts; return whether one is over its target."""
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    print(
        f"{name}: prefill {ours.prefill:.2f} s, {ratios[0]:.2f} times (target {most[0]}); decode "
        f"{ours.decode / count * 1e3:.1f} ms a token, {ratios[1]:.2f} times (target {most[1]})",
        flush=True,
    )
    return any(ratio > limit for ratio, limit in zip(ratios, most, strict=True))


def main(words: Sequence[str] | None = None) -> bool:
    """Measure and print; return whether a target is missed."""
    parser = make_parser(__doc__, size="2.2GB", repeats=3, threads=2, folder=True)
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--prompt", type=int, default=PROMPT)
    parser.add_argument("--count", type=int, default=GENERATED)
    parser.add_argument("--only", choices=[*DTYPES, "Q4_K"], action="append")
    arguments = parser.parse_args(words)
    import torch

    torch.set_num_threads(arguments.threads)
    chosen = arguments.only or [*DTYPES, "Q4_K"]
    prompt, count = tokens(arguments.vocabulary, arguments.prompt), arguments.count
    is_over = False
    with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:
        path = Path(temporary) / "model.gguf"
        write_llama(path, "gguf", arguments.size, arguments.vocabulary)
        for name in (each for each in DTYPES if each in chosen):
            runs = [each(path, DTYPES[name]) for each in (with_weightctl, with_transformers)]
            ours, theirs = medians(runs, prompt, count, arguments.repeats)
            most = (MOST_PREFILL, MOST_DECODE)
            is_over |= describe(f"{name}, against transformers", ours, theirs, count, most)
        if "Q4_K" in chosen:
            small = Path(temporary) / "small.gguf"
            convert(path, small, quant="Q4_K", metadata={"tokenizer.ggml.model": "no_vocab"})
            (ours,) = medians([with_weightctl(small, DTYPES["float32"])], prompt, count,
                              arguments.repeats)  # fmt: skip
            asked = ("take_times", prompt[0].tolist(), count)
            context = arguments.prompt + count + 8
            runs_there = ask(small, *[asked] * (arguments.repeats + 1), context=context,
                             threads=arguments.threads)  # fmt: skip
            theirs = Taken(*map(statistics.median, zip(*runs_there[1:], strict=True)))
            most = (float("inf"), MOST_OF_LLAMA_CPP)
            is_over |= describe("Q4_K, against llama.cpp", ours, theirs, count, most)
    return is_over


if __name__ == "__main__":
    sys.exit(main())
