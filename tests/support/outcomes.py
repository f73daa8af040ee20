"""The kinds of output that a conversion can have, and what stands where one goes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightctl import Plan, WeightData, Weights
from weightctl.dtype import ENCODINGS
from weightctl.plan.arrangement import split
from weightctl.plan.cast import cast
from weightctl.weights.from_arrays import as_checkpoint
from weightctl.write.save import save
from weightctl.write.targets import target

if TYPE_CHECKING:
    from pathlib import Path

    from weightctl.write.targets import Target

TEMPORARY = re.compile(r".+\.weightctl-([0-9a-f]{8}|switch)\.partial(\.\w+)*")


class Kind(NamedTuple):
    """An output by its name, the encoding it is in, and whether each tensor has its own file."""

    name: str
    encoding: str
    is_split: bool = False

    @property
    def options(self) -> tuple[str, ...]:
        """What the command line is told."""
        option = "--quant" if ENCODINGS[self.encoding].quantization else "--dtype"
        return (option, self.encoding, *(("--max-shard-size", "1B") if self.is_split else ()))

    def plan(self, weights: Weights, place: Path) -> tuple[Plan, Target]:
        """Return the same as the command line makes of the options."""
        where = target(f"{place}/{self.name}")
        plan = cast(Plan.copy(weights, where.format), ENCODINGS[self.encoding])
        return split(plan, 1) if self.is_split else plan, where


KINDS = {
    "file": Kind("out.gguf", "Q8_0"),
    "directory": Kind("out/", "BF16"),
    "set": Kind("out.safetensors", "BF16", is_split=True),
    "gguf set": Kind("out.gguf", "Q8_0", is_split=True),
}


def random_weights(
    tensors: int = 8, rows: int = 256, columns: int = 1024, seed: int = 7
) -> Weights:
    """Return matrices of random float32."""
    numbers = np.random.default_rng(seed)
    names = [f"layers.{number}.weight" for number in range(tensors)]
    return as_checkpoint(
        {
            name: WeightData.from_numpy(numbers.standard_normal((rows, columns), np.float32), name)
            for name in names
        }
    )


def random_model(directory: Path, tensors: int, rows: int, seed: int = 7) -> Path:
    """Write a model of random matrices with a config beside it; return its directory."""
    directory.mkdir()
    weights = random_weights(tensors, rows, seed=seed)
    save(Plan.copy(weights, "safetensors"), directory / "model.safetensors")
    (directory / "config.json").write_text(f'{{"torch_dtype": "float32", "seed": {seed}}}')
    return directory


def standing(place: Path) -> dict[str, bytes]:
    """Return the files at a place, by their paths from there, but for temporary ones."""
    return {
        str(path.relative_to(place)): path.read_bytes()
        for path in place.rglob("*")
        if path.is_file() and not any(map(TEMPORARY.fullmatch, path.relative_to(place).parts))
    }


def leftovers(place: Path) -> list[str]:
    """Return the names of what is there only until the next run."""
    return [path.name for path in place.iterdir() if TEMPORARY.fullmatch(path.name)]
