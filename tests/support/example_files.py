"""The files that the examples of the documents and of the help pages use, under plain names."""

from __future__ import annotations

from pathlib import Path
from shutil import copyfile, copytree, ignore_patterns
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import weightctl
from real_files import fetch
from weightctl.deltas.creating import write_patch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["make_example_files"]

FIXTURES = Path(__file__).parent.parent.parent / "fixtures"
TINY = FIXTURES / "tiny-llama"


def _copy_model(path: Path) -> None:
    copytree(TINY, path, ignore=ignore_patterns("held-out.txt"))


def _convert_model(path: Path, quant: str | None = None) -> None:
    # The name of the model is that of its directory, which readers call `model`.
    with TemporaryDirectory() as folder:
        _copy_model(Path(folder) / "model")
        weightctl.convert(Path(folder) / "model", path, quant=quant)


def _copy_adapter(path: Path) -> None:
    copytree(FIXTURES / "tiny-adapter", path)


def _merge_model(path: Path) -> None:
    weightctl.convert(TINY, path, adapters=[FIXTURES / "tiny-adapter"])


def _write_patch(path: Path) -> None:
    with TemporaryDirectory() as folder:
        _merge_model(Path(folder) / "tuned")
        _copy_model(Path(folder) / "model")
        write_patch(Path(folder) / "model", Path(folder) / "tuned", path)


def _link_real_model(path: Path) -> None:
    (file,) = fetch("smollm2").glob("*.gguf")
    path.symlink_to(file)


def _copies(fixture: str) -> Callable[[Path], object]:
    return lambda path: copyfile(FIXTURES / fixture, path)


_FILES: dict[str, Callable[[Path], object]] = {
    "model": _copy_model,
    "copy": _copy_model,
    "model.gguf": _convert_model,
    "adapter": _copy_adapter,
    "tuned": _merge_model,
    "tuned.patch": _write_patch,
    "model-q8.gguf": lambda path: _convert_model(path, "Q8_0"),
    "smollm2.gguf": _link_real_model,
    "training.pt": _copies("training.pt"),
    "checkpoint.pt": _copies("training.pt"),
    "downloaded.pt": _copies("attack.pt"),
    "notes.txt": _copies("tiny-llama/held-out.txt"),
    "recipe.toml": _copies("recipe.toml"),
    "plan.toml": _copies("shard.toml"),
    "rules.toml": _copies("shard.toml"),
    "template.jinja": lambda path: path.write_text("{{ messages }}"),
}
# docs/index.md describes each of them.
_DOCUMENTED = (
    "model", "model.gguf", "adapter", "tuned", "training.pt", "downloaded.pt", "recipe.toml",
    "plan.toml",
)  # fmt: skip


def make_example_files(folder: Path, names: Iterable[str] = _DOCUMENTED) -> None:
    """Write the example files of these names into a folder."""
    for name in names:
        _FILES[name](folder / name)
