"""What the judges say of the tiny checkpoints of model families, as a table.

Run with `python tests/bench/family_figures.py [FAMILY ...]`; without names, it takes an hour. For
each case of `tests/crossing/cases` a line has

- `llama.cpp`, `engine`, `two ranks`: how far their logits of 80 tokens are from those of
  transformers, or of the model's definition: mean KL divergence in nats, for encoders 1 - cosine;
- `back`: tensors that have the same values after conversion to GGUF and back, of how many;
- `Q8_0`, `Q4_K_M`: the divergence from transformers on the same quantized values, of llama.cpp,
  which rounds activations to 8 bits, and of the engine, which does not;
- `keys`: of the keys of config.json whose change transformers computes, how many the conversion
  computes alike, and how many it refuses;
- `texts`: of the hard texts, those with the ids of tokenizer.json in llama.cpp.

A dash is a judge that cannot run the model. A line whose judges disagree ends in `!`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).parents[2]
# ruff: noqa: E402 - the modules of the tests are found through this path
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "support")]

import numpy as np
from tokenizers import Tokenizer

from config_mutations import MutatedKeys, mutate_keys
from family_cases import CASES, for_transformers, make_checkpoint, model_class, run_transformers
from family_runs import NO_POOLING, can_run, run_ours
from hard_texts import HARD_TEXTS
from lazy import torch, transformers
from llama_cpp import ask, cosines, mean_divergence
from weightctl import convert, open_weights, shard
from weightctl.errors import WeightctlError
from weightctl.families import FAMILIES
from weightctl.split import Grid

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from family_cases import FamilyCheckpoint

MOST_DIVERGENCE, MOST_ANGLE = 2e-5, 1e-4
COLUMNS = ("case", "llama.cpp", "engine", "two ranks", "back", "Q8_0", "Q4_K_M", "keys", "texts")


def measure_distance(made: FamilyCheckpoint, found: NDArray[np.float32]) -> float:
    """Return the mean divergence from the expected logits, or an encoder's 1 - cosine."""
    if made.is_encoder:
        return 1 - float(cosines(found, made.expected).min())
    return mean_divergence(made.expected, found)


def ask_llama_cpp(made: FamilyCheckpoint, path: Path) -> NDArray[np.float32]:
    if made.is_encoder:
        return ask(path, ("embeddings", made.tokens), pooling=NO_POOLING)[0]
    return ask(path, ("logits", made.tokens), context=512, flash=made.case.flash)[0]


def compare_tensors(source: Path, back: Path, prefix: str) -> str:
    """Return how many tensors of a checkpoint have the same values in another one.

    Names are compared without `prefix`. GGUF has some norms as `1 + w`, which float32 rounds, and
    the scales of queries in a few families are in the weights.
    """
    one, other = (
        {name.removeprefix(prefix): node for name, node in open_weights(path).items()}
        for path in (source, back)
    )
    most, same = 0.0, 0
    for name in one.keys() & other.keys():
        values, found = (each[name].data().astype("float32").to_numpy() for each in (one, other))
        difference = float(np.abs(values - found).max())
        most, same = max(most, difference), same + (difference == 0)
    lost = len(one.keys() - other.keys())
    rounded = f", the others to {most:.0e}" if most else ""
    gone = f", {lost} not in GGUF" if lost else ""
    return f"{same} of {len(one)}{rounded}{gone}"


def measure_quantized(made: FamilyCheckpoint, quant: str, directory: Path) -> Iterator[float]:
    """Yield how far llama.cpp and the engine are from transformers on a quantized file's values."""
    quantized = directory / f"{quant}.gguf"
    convert(made.path, quantized, quant=quant)
    convert(quantized, directory / quant, dtype="f32")
    back = for_transformers(made.case, directory / quant, directory / f"{quant}-readable")
    model = model_class(made.case).from_pretrained(
        back, dtype=torch.float32, attn_implementation="eager"
    )
    expected = run_transformers(model.eval(), made.tokens)
    yield mean_divergence(expected, ask_llama_cpp(made, quantized))
    if can_run(quantized):
        yield mean_divergence(expected, run_ours(quantized, made.tokens))


def count_same_ids(made: FamilyCheckpoint, path: Path) -> int:
    """Return how many hard texts have the same ids in llama.cpp as in transformers."""
    tokenizer = Tokenizer.from_file(str(made.path / "tokenizer.json"))
    expected = [tokenizer.encode(text, add_special_tokens=False).ids for text in HARD_TEXTS]
    questions = [("tokenize", text, False) for text in HARD_TEXTS]
    found = ask(path, *questions, only_vocabulary=True)
    return sum(one == other for one, other in zip(expected, found, strict=True))


def describe_keys(keys: MutatedKeys) -> Iterator[str]:
    """Yield how many keys there are of each kind, and those that are computed otherwise."""
    yield f"{len(keys.alike)} alike"
    yield f"{len(keys.refused)} refused"
    if keys.recast:
        yield f"{len(keys.recast)} of another family"
    yield from keys.otherwise


def measure_case(name: str, directory: Path) -> list[str]:
    """Return the cells of a case's line."""
    made = make_checkpoint(name, directory)
    work = directory / name
    (work / "keys").mkdir(parents=True)
    gguf, back = work / "model.gguf", work / "back"
    convert(made.path, gguf, to="gguf", dtype="f32")
    convert(gguf, back, dtype="f32")
    shard(made.path, work / "ranks", tp=2)
    runs, asks = can_run(made.path), not made.case.no_llama_cpp
    distances = [
        measure_distance(made, ask_llama_cpp(made, gguf)) if asks else None,
        measure_distance(made, run_ours(gguf, made.tokens)) if runs else None,
        measure_distance(made, run_ours(made.path, made.tokens, Grid(2))) if runs else None,
    ]
    quantized = [
        [*measure_quantized(made, quant, work)] if asks and not made.is_encoder else []
        for quant in ("Q8_0", "Q4_K_M")
    ]
    most = MOST_ANGLE if made.is_encoder else MOST_DIVERGENCE
    exact = [*distances, *(each[1] for each in quantized if len(each) > 1)]
    tensors = compare_tensors(made.path, back, FAMILIES[made.case.family].load().prefix)
    keys = mutate_keys(made, work / "keys")
    texts = count_same_ids(made, gguf) if asks else None
    is_far = any(each is not None and not each < most for each in exact)
    marks = " !" if keys.otherwise or is_far else ""
    return [
        name,
        *("-" if each is None else f"{each:.1e}" for each in distances),
        tensors,
        *(", ".join(f"{each:.1e}" for each in pair) or "-" for pair in quantized),
        ", ".join(describe_keys(keys)),
        ("-" if texts is None else f"{texts} of {len(HARD_TEXTS)}") + marks,
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("families", nargs="*", metavar="FAMILY")
    wanted = parser.parse_args().families
    warnings.simplefilter("ignore")
    transformers.utils.logging.set_verbosity(transformers.utils.logging.CRITICAL)
    transformers.utils.logging.disable_progress_bar()
    names = [name for name, case in CASES.items() if not wanted or case.family in wanted]
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        for name in names:
            try:
                cells = measure_case(name, Path(directory))
            except WeightctlError as error:
                cells = [name, f"{str(error).splitlines()[0]} !"]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
