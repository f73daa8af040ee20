"""Whether a proof takes a file of llama-quantize for something else, in every recipe.

    npm pack @node-llama-cpp/linux-x64@3.22.1
    tar xf node-llama-cpp-linux-x64-3.22.1.tgz
    python tests/bench/proof_of_llama_quantize.py package/bins/linux-x64 [RECIPE ...]

`llama_model_quantize` of that package writes the files: of three models, from F32, BF16 and F16, in
each recipe, without and with an importance matrix. `weightctl verify --prove` knows the matrix, or
does not. A problem of any file is a false alarm.
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [
    str(ROOT / each) for each in ("fixtures", "tests", "tests/support", "tests/calibrate")
]

from make_recipe_goldens import Importance, load  # noqa: E402

from imatrix_models import latent, mixture_directory, tiny_llama  # noqa: E402
from importances import imatrix_dat  # noqa: E402
from recipe_models import RECIPES  # noqa: E402
from weightctl import convert, open_weights  # noqa: E402
from weightctl.verify import verify  # noqa: E402
from weightctl.verify.proof.verdicts import ProofFigures  # noqa: E402
from weightctl.weights.tree import header_of  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray


def draw_importance(source: Path) -> dict[str, NDArray[np.float32]]:
    """Return weights of the columns of each matrix, which differ by a factor of some hundreds."""
    random = np.random.default_rng(0)
    tensors = header_of(open_weights(source)).tensors
    return {
        name: np.exp(random.normal(0, 1.5, (*info.shape[:-2], info.shape[-1]))).astype(np.float32)
        for name, info in tensors.items()
        if len(info.shape) > 1
    }


def quantize(
    library: Any, source: Path, out: Path, number: int, held: Mapping[str, NDArray[np.float32]]
) -> bool:
    parameters = library.llama_model_quantize_default_params()
    parameters.threads, parameters.file_type = 2, number
    entries = (Importance * (len(held) + 1))()
    for entry, (name, values) in zip(entries, held.items(), strict=False):
        entry.name, entry.size = name.encode(), values.size
        entry.data = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    if held:
        parameters.importance = entries
    return not library.llama_model_quantize(os.fsencode(source), os.fsencode(out), parameters)


def write_sources(folder: Path) -> dict[str, tuple[Path, Path]]:
    """Return what llama-quantize reads, and the original, by name."""
    mixture = folder / "mixture.gguf"
    convert(mixture_directory(folder), mixture, dtype="f32")
    found = {"tiny-llama": tiny_llama(folder), "mixture": mixture, "latent": latent(folder)}
    sources = {name: (path, path) for name, path in found.items()}
    for dtype in ("bf16", "f16"):
        between = folder / f"{dtype}.gguf"
        convert(mixture, between, dtype=dtype)
        sources[f"mixture by way of {dtype}"] = (between, mixture)
    return sources


class Tally:
    """The files that were proved, the verdicts on their tensors, and the false alarms."""

    def __init__(self) -> None:
        self.files = 0
        self.verdicts = Counter[tuple[str, str]]()
        self.alarms: list[str] = []

    def prove(self, out: Path, original: Path, matrix: Path | None, kind: str, recipe: str) -> None:
        report = verify(out, original, checks=["structure"], prove=True, imatrix=matrix)
        figures = report.figures(ProofFigures)
        assert figures is not None
        for verdict, count in figures.counts.items():
            self.verdicts[kind, verdict] += count
        if report.problems or figures.recipe not in {recipe, ""}:
            self.alarms.append(f"{recipe} {kind}: {figures.recipe}, {report.problems[:1]}")


def main() -> None:
    library = load(Path(sys.argv[1]))
    tally = Tally()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        out, matrix = folder / "out.gguf", folder / "matrix.dat"
        for source, original in write_sources(folder).values():
            held = draw_importance(source)
            imatrix_dat(matrix, {name: (values.reshape(-1), 1) for name, values in held.items()})
            for recipe, number in RECIPES.items():
                if len(sys.argv) > 2 and recipe not in sys.argv[2:]:
                    continue
                if quantize(library, source, out, number, {}):
                    tally.files += 1
                    tally.prove(out, original, None, "without a matrix", recipe)
                if quantize(library, source, out, number, held):
                    tally.files += 1
                    tally.prove(out, original, None, "with an unknown matrix", recipe)
                    tally.prove(out, original, matrix, "with a known matrix", recipe)
    print(f"{tally.files} files, {len(tally.alarms)} false alarms")
    for (kind, verdict), count in tally.verdicts.items():
        print(f"  {kind}: {count:,} tensors {verdict}")
    print("\n".join(tally.alarms))


if __name__ == "__main__":
    main()
