"""KL divergence and mean loss of each scheme, beside the rounding of other libraries.

Run with `python tests/bench/quality.py`. It measures `fixtures/tiny-llama`, and the models of
`quality_model.py` that were trained; `--model FOLDER` (repeatable) names others with the same
tokenizer. Columns: another library's rounding to nearest, weightctl's, with `--search`, and with
`--imatrix` (without and with AWQ's scaling, where the type has it). Importance is measured on the
first windows of the held-out text, and figures are of the other windows. All models compute in
float32 with dequantized weights.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests" / "support"), str(Path(__file__).parent)]

from quality_library import LIBRARY  # noqa: E402
from quality_model import FOLDERS  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Mapping

FIXTURE = ROOT / "fixtures" / "tiny-llama"
WINDOW = 256
# The windows on which importance is measured.
CALIBRATION = 16
COLUMNS = ("nearest", "search", "imatrix", "scaled")


class Judge:
    """A model, and what its probabilities are without rounding."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(FIXTURE)
        ids = tokenizer((FIXTURE / "held-out.txt").read_text(), return_tensors="pt").input_ids[0]
        windows = ids[: len(ids) // WINDOW * WINDOW].reshape(-1, WINDOW)
        self.calibration, self.tokens = windows[:CALIBRATION], windows[CALIBRATION:]
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.model = model.eval()
        self.original = {name: value.clone() for name, value in model.state_dict().items()}
        self.expected = self._measure()

    def _measure(self) -> torch.Tensor:
        """Return the logarithms of the probabilities of all tokens."""
        with torch.no_grad():
            logits = torch.cat([self.model(each[None]).logits[0] for each in self.tokens])
        return logits.double().log_softmax(-1)

    def evaluate(self, values: Mapping[str, torch.Tensor]) -> tuple[float, float]:
        """Return the divergence of a model with these values, and its loss, in nats a token."""
        self.model.load_state_dict(values)
        found = self._measure()
        divergence = (self.expected.exp() * (self.expected - found)).sum(-1).mean()
        return float(divergence), self.loss(found)

    def loss(self, found: torch.Tensor) -> float:
        """Return the mean loss of probabilities."""
        likely = found.reshape(*self.tokens.shape, -1)[:, :-1]
        return float(-likely.gather(2, self.tokens[:, 1:, None]).mean())

    def write_importance(self, path: Path) -> None:
        """Write the sums of the squared inputs of each linear layer, by the names of weights."""
        import numpy as np

        from importances import imatrix_gguf

        sums: dict[str, torch.Tensor] = {}
        hooks = [
            module.register_forward_pre_hook(
                lambda _, given, name=f"{name}.weight": sums.__setitem__(
                    name, sums.get(name, 0) + given[0].double().square().sum((0, 1))
                )
            )
            for name, module in self.model.named_modules()
            if isinstance(module, torch.nn.Linear)
        ]
        with torch.no_grad():
            for each in self.calibration:
                self.model(each[None])
        for hook in hooks:
            hook.remove()
        count = np.array([self.calibration.numel()], np.float32)
        imatrix_gguf(
            path,
            {name: (each.numpy()[None].astype(np.float32), count) for name, each in sums.items()},
        )


def list_conversions(scheme: str, importance: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return the types and the options of the columns of a scheme."""
    from weightctl.plan.scheme_names import find_scheme

    recipe = find_scheme(scheme, is_directory=True)
    assert recipe is not None
    mark = "," if ":" in scheme else ":"
    weighted: dict[str, Any] = {"imatrix": importance}
    if not recipe.choice.scheme.can_scale:
        return [(scheme, {}), (scheme, {"search": True}), (scheme, weighted)]
    plain = f"{scheme}{mark}scaled=no"
    scaled = (f"{scheme}{mark}scaled=yes", weighted)
    return [(plain, {}), (plain, {"search": True}), (plain, weighted), scaled]


def compare(folder: Path, schemes: list[str]) -> None:
    """Print a line for each scheme."""
    from written_models import convert, values_in

    judge = Judge(folder)
    loss = judge.loss(judge.expected)
    print(f"{folder.name}: {loss:.4f} nats a token, {judge.tokens.numel()} tokens")
    titles = ["type", "library: KL", *(f"{each}: KL" for each in COLUMNS)]
    print("|", " | ".join([*titles, *(f"{each}: nats" for each in COLUMNS)]), "|")
    print(f"|---|{'---:|' * (1 + 2 * len(COLUMNS))}")
    for scheme in schemes:
        results: list[tuple[float, float]] = []
        changed: set[str] = set()
        with tempfile.TemporaryDirectory() as out:
            importance = Path(out) / "importance.gguf"
            judge.model.load_state_dict(judge.original)
            judge.write_importance(importance)
            for quant, options in list_conversions(scheme, importance):
                convert(folder, Path(out) / "made", quant, **options, force=True)
                values = values_in(Path(out) / "made")
                if not options:
                    changed = {
                        name
                        for name, value in values.items()
                        if not torch.equal(value, judge.original[name])
                    }
                results.append(judge.evaluate(values))
        library = judge.evaluate({
            name: LIBRARY[scheme](value.bfloat16()) if name in changed else value
            for name, value in judge.original.items()
        })  # fmt: skip
        cells = [f"{each:.5f}" for each, _ in (library, *results)]
        losses = [f"{each:.4f}" for _, each in results]
        missing = [""] * (len(COLUMNS) - len(results))
        print("|", " | ".join([scheme, *cells, *missing, *losses, *missing]), "|", flush=True)


def main() -> None:
    """Compare models."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, action="append", help="a directory; repeatable")
    parser.add_argument("--only", action="append", choices=LIBRARY, help="repeatable")
    arguments = parser.parse_args()
    trained = filter(Path.is_dir, FOLDERS.values())
    for folder in arguments.model or [FIXTURE, *trained]:
        compare(folder, list(arguments.only or LIBRARY))


if __name__ == "__main__":
    main()
