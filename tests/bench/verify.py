"""Verifying a real model against its source: the time and the memory, beside transformers'.

Run with `python tests/bench/verify.py`. SmolLM2 in bf16 is the reference, and its Q8_0 GGUF file is
verified: values and forward, on 256 tokens. On the other side transformers loads both in float32,
runs them on the same tokens and computes the divergence: once it reads the second model from a
directory and, where accelerate is installed, once from the GGUF file. Every run is a process of its
own; they take turns, the first round is not counted, and medians are printed. Peaks are those of
the processes. Both sides have their bytecode on the disk, as installed packages have.

With `--all-checks`, all checks of its Q4_K_M GGUF file are run instead, with one thread and with
two: their time, and the processor time, which other work on the machine changes less. `--before
TREE` runs the version in another tree in turns, whose kernels must be built; verdicts and figures
of both must be equal.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from measuring import make_parser

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MOST_TIMES, MOST_PEAK, TOKENS = 2.0, 700_000_000, 256
# How many times as fast as before verification is to be.
LEAST_FASTER, THREADS = 1.5, (1, 2)
TESTS = Path(__file__).parents[1]
TREE = TESTS.parent
REFERENCE, QUANTIZED, NUMBERS, MIXED = "reference", "model.gguf", "numbers", "mixed.gguf"
WEIGHTCTL = (sys.executable, "-m", "weightctl")
# Both sides' divergences are of the same numbers in float32.
WITHIN = 0.01
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"


# Figures are printed with three digits.
NEAR = 1e-4


class Run(NamedTuple):
    """What a process took: seconds, of the processor too, and peak in bytes; and its report."""

    seconds: float
    processor: float
    peak: int
    report: Any

    @property
    def divergence(self) -> float:
        """The mean divergence that it found."""
        found: float = self.report["checks"]["forward"]["figures"]["divergence"]["mean"]
        return found


def prepare(source: Path, folder: Path, text: str, count: int) -> str:
    """Make what is compared; return the tokens, as the command takes them."""
    for original, name, *options in (
        (source, REFERENCE, "--dtype", "bf16"),
        (folder / REFERENCE, QUANTIZED, "--quant", "Q8_0"),
        (folder / QUANTIZED, NUMBERS, "--dtype", "f32"),
    ):
        subprocess.run([*WEIGHTCTL, "convert", "-q", original, folder / name, *options], check=True)
    # In a process of its own: the peak of a new process is at first that of this one.
    tokenizer = folder / REFERENCE / "tokenizer.json"
    code = """import sys, tokenizers
given, text = sys.argv[1:]
print(*tokenizers.Tokenizer.from_file(given).encode(text).ids, sep=",")"""
    command = [sys.executable, "-c", code, tokenizer, text]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    ids = done.stdout.strip().split(",")
    assert len(ids) >= count, "the text is too short"
    return ",".join(ids[:count])


def transformers(folder: Path, other: str, tokens: str) -> None:
    """Load both, run them and print the divergence of the other, as `verify --json` would."""
    import torch
    from transformers import AutoModelForCausalLM

    ids = torch.tensor([[int(token) for token in tokens.split(",")]])
    is_file = other.endswith(".gguf")
    second = (folder, {"gguf_file": other}) if is_file else (folder / other, {})
    done: list[torch.Tensor] = []
    for path, options in ((folder / REFERENCE, {}), second):
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, **options)
        with torch.inference_mode():
            logits = model.eval()(ids, use_cache=False).logits[0]
        done.append(logits.double().log_softmax(-1))
    right, found = done
    mean = float((right.exp() * (right - found)).sum(-1).mean())
    print(json.dumps({"checks": {"forward": {"figures": {"divergence": {"mean": mean}}}}}))


def measure(command: Sequence[str | Path], folder: Path | None = None, **variables: str) -> Run:
    """Run a command that prints JSON, in a folder and with environment variables."""
    environment = {name: given for name, given in os.environ.items() if name != NO_BYTECODE}
    environment |= variables
    words = list(map(str, command))
    start = time.perf_counter()
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=errors, env=environment, cwd=folder
        ) as process,
    ):
        assert process.stdout is not None
        printed = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        assert not process.returncode, printed + errors.read()
    seconds = time.perf_counter() - start
    processor = usage.ru_utime + usage.ru_stime
    return Run(seconds, processor, usage.ru_maxrss * 1024, json.loads(printed))


def measure_all_checks(folder: Path, before: Path | None, rounds: int, warm_up: int) -> bool:
    """Run all checks with each tree in turns; print; return whether their reports differ."""
    options = ["convert", "-q", folder / REFERENCE, folder / MIXED, "--quant", "Q4_K_M"]
    subprocess.run([*WEIGHTCTL, *options], check=True)
    command = [*WEIGHTCTL, "verify", folder / MIXED, "--against", folder / REFERENCE, "--json"]
    trees = {"now": TREE} | ({} if before is None else {"before": before.resolve()})
    differs = False
    for threads in map(str, THREADS):
        runs: dict[str, list[Run]] = {name: [] for name in trees}
        for turn in range(warm_up + rounds):
            for name, tree in trees.items():
                # In a folder without a package, which Python would prefer to that of the tree.
                run = measure(command, folder, PYTHONPATH=str(tree), OMP_NUM_THREADS=threads)
                if turn >= warm_up:
                    runs[name].append(run)
        for name, each in runs.items():
            middle = statistics.median(run.processor for run in each)
            taken = ", ".join(f"{run.seconds:.2f}" for run in each)
            peak = max(run.peak for run in each) / 1e6
            text = f"processor {middle:.2f} s, seconds {taken}, peak {peak:.0f} MB"
            print(f"all checks, {threads} threads, {name}: {text}")
        if before is None:
            continue
        for what in ("processor", "seconds"):
            now, then = (
                statistics.median(getattr(run, what) for run in runs[name])
                for name in ("now", "before")
            )
            print(f"{what}: {then / now:.2f} times as fast (target {LEAST_FASTER})")
        differences = [*_differences(runs["before"][0].report, runs["now"][0].report)]
        print(f"reports differ in {len(differences)} places: {', '.join(differences[:5])}")
        differs |= bool(differences)
    return differs


def _differences(one: Any, other: Any, where: str = "") -> Iterator[str]:
    """Yield where two reports have other verdicts or figures; times may differ."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        for name in one.keys() - {"seconds"}:
            yield from _differences(one[name], other[name], f"{where}.{name}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for place, pair in enumerate(zip(one, other, strict=True)):
            yield from _differences(*pair, f"{where}[{place}]")
    elif isinstance(one, float) and isinstance(other, float):
        if not math.isclose(one, other, rel_tol=NEAR):
            yield where
    elif one != other:
        yield where


def main() -> None:
    """Measure and print; exit with 1 where a peak is over the target or numbers differ."""
    parser = make_parser(__doc__, folder=True)
    parser.add_argument("--model", type=Path, help="a checkpoint (SmolLM2 otherwise)")
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm-up", type=int, default=1, help="rounds that are not counted")
    parser.add_argument("--all-checks", action="store_true", help="measure all checks of a Q4_K_M")
    parser.add_argument("--before", type=Path, metavar="TREE", help="a tree to compare with")
    parser.add_argument("--as-transformers", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.as_transformers:
        folder, other, tokens = arguments.as_transformers
        transformers(Path(folder), other, tokens)
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:
        folder = Path(temporary).resolve()
        text = (TESTS.parent / "fixtures" / "tiny-llama" / "held-out.txt").read_text()[:4000]
        source = arguments.model or _smollm2()
        tokens = prepare(source, folder, text, arguments.tokens)
        if arguments.all_checks:
            sys.exit(
                measure_all_checks(folder, arguments.before, arguments.rounds, arguments.warm_up)
            )
        same = [sys.executable, __file__, "--as-transformers", folder]
        commands: dict[str, list[str | Path]] = {
            "verify": [
                *(*WEIGHTCTL, "verify", folder / QUANTIZED, "--against", folder / REFERENCE),
                *("--check", "values", "--check", "forward", "--tokens", tokens, "--json"),
            ],
            "transformers, directories": [*same, NUMBERS, tokens],
        }
        if find_spec("accelerate"):
            commands["transformers, GGUF"] = [*same, QUANTIZED, tokens]
        is_wrong = _compare(commands, arguments.rounds, arguments.warm_up)
    sys.exit(is_wrong)


def _smollm2() -> Path:
    sys.path.insert(0, str(TESTS / "support"))
    from real_files import fetch

    return fetch("smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"


def _compare(commands: dict[str, list[str | Path]], rounds: int, warm_up: int) -> bool:
    """Run the commands in turns; print; return whether the first one's peak or number is wrong."""
    runs: dict[str, list[Run]] = {name: [] for name in commands}
    for turn in range(warm_up + rounds):
        for name, command in commands.items():
            run = measure(command)
            if turn >= warm_up:
                runs[name].append(run)
    medians = {name: statistics.median(run.seconds for run in each) for name, each in runs.items()}
    peaks = {name: max(run.peak for run in each) for name, each in runs.items()}
    for name, each in runs.items():
        taken = ", ".join(f"{run.seconds:.2f}" for run in each)
        print(
            f"{name}: {medians[name]:.2f} s ({taken}), peak {peaks[name] / 1e6:.0f} MB, "
            f"divergence {each[0].divergence:.6g}"
        )
    ours, *others = commands
    print(f"peak {peaks[ours] / 1e6:.0f} MB (target {MOST_PEAK / 1e6:.0f})")
    is_wrong = peaks[ours] > MOST_PEAK
    for name in others:
        times = medians[ours] / medians[name]
        apart = abs(runs[ours][0].divergence / runs[name][0].divergence - 1)
        print(
            f"{times:.2f} times {name} (target {MOST_TIMES}), divergences {apart:.3%} apart "
            f"(target {WITHIN:.0%})"
        )
        is_wrong |= not apart <= WITHIN
    return is_wrong


if __name__ == "__main__":
    main()
