"""The files that the examples of the documents and of the help pages use, under plain names."""

from __future__ import annotations

from pathlib import Path
from shutil import copyfile, copytree, ignore_patterns

import weightctl
from real_files import fetch

__all__ = ["make_example_files"]

FIXTURES = Path(__file__).parent.parent.parent / "fixtures"
_COPIES = {
    "training.pt": "training.pt",
    "downloaded.pt": "attack.pt",
    "recipe.toml": "recipe.toml",
    "plan.toml": "shard.toml",
}


def make_example_files(folder: Path, *, real: bool = False) -> None:
    """Write the example files into a folder; with `real`, `smollm2.gguf` too.

    docs/index.md describes each of them.
    """
    copytree(FIXTURES / "tiny-llama", folder / "model", ignore=ignore_patterns("held-out.txt"))
    weightctl.convert(folder / "model", folder / "model.gguf")
    for name, fixture in _COPIES.items():
        copyfile(FIXTURES / fixture, folder / name)
    if real:
        (file,) = fetch("smollm2").glob("*.gguf")
        (folder / "smollm2.gguf").symlink_to(file)
